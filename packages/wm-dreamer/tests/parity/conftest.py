"""The precision that whole networks are compared with."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(scope="module", autouse=True)
def _full_precision() -> Iterator[None]:
    with jax.default_matmul_precision("highest"):
        yield
