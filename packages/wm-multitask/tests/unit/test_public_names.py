"""What the package offers, and that importing it stays within its layer."""

from importlib.metadata import version

import wm_multitask


def test_every_public_name_is_there_and_documented():
    assert list(wm_multitask.__all__) == sorted(wm_multitask.__all__)
    for name in wm_multitask.__all__:
        assert getattr(wm_multitask, name).__doc__, name


def test_the_version_is_the_one_of_the_installed_distribution():
    assert wm_multitask.__version__ == version("wm-multitask")
