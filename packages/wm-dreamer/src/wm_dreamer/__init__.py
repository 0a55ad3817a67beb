"""DreamerV3 in JAX: in preparation, this version holds no agent yet."""

from importlib.metadata import version

__all__: list[str] = []
__version__ = version("wm-dreamer")
