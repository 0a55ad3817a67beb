"""Which versions decide a run's numbers, for whatever a run writes down."""

import sys
from importlib import metadata

_VERSIONED = (
    "wm-numerics",
    "wm-collect",
    "wm-dreamer",
    "wm-tdmpc2",
    "wm-multitask",
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "numpy",
    "orbax-checkpoint",
    "gymnax",
    "brax",
    "playground",
    "mujoco",
)


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that decide a run's numbers."""
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in _VERSIONED:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions
