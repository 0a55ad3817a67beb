"""Importing MuJoCo without side effects in the user's terminal and folder."""

import contextlib
import ctypes.util
import logging
import os
import sys
from collections.abc import Iterator

_logger = logging.getLogger("wm_collect.mujoco")


@contextlib.contextmanager
def mujoco_imports() -> Iterator[None]:
    """Import MuJoCo and compile its models within this context.

    * On Linux without a display, `MUJOCO_GL` is set to an off-screen renderer that is present,
      unless the user has set it: MuJoCo reads it once, at its first import.
    * MuJoCo appends its warnings to a file MUJOCO_LOG.TXT in the current folder; within this
      context they go to the logger "wm_collect.mujoco" instead.
    """
    choose_renderer()
    try:
        import mujoco
    except ModuleNotFoundError:
        # The caller's own import fails next, and says what to install.
        yield
        return
    earlier = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(_logger.info)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(earlier)


def choose_renderer() -> None:
    """Set `MUJOCO_GL` if it is unset, nothing is displayed, and MuJoCo is not imported yet."""
    headless = not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    if "MUJOCO_GL" in os.environ or "mujoco" in sys.modules:
        return
    if not (sys.platform.startswith("linux") and headless):
        return
    for library, name in (("EGL", "egl"), ("OSMesa", "osmesa")):
        if ctypes.util.find_library(library):
            os.environ["MUJOCO_GL"] = name
            return
