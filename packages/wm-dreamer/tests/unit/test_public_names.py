"""What the package offers today: its version, and nothing else."""

from importlib.metadata import version

import wm_dreamer


def test_the_package_offers_no_public_name_yet():
    assert set(wm_dreamer.__all__) == set()


def test_the_version_is_the_one_of_the_installed_distribution():
    assert wm_dreamer.__version__ == version("wm-dreamer")
