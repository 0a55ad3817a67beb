"""The versions a run writes down."""

import pytest

from wm_collect import versions


def test_versions_leave_out_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "_VERSIONED", ("jax", "no-such-package-anywhere"))
    assert set(versions.installed_versions()) == {"python", "jax"}
