"""Pictures of Brax and Playground states by MuJoCo's off-screen renderer."""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from wm_collect.backends.mujoco_import import mujoco_imports


class NoRendererError(RuntimeError):
    """MuJoCo cannot open an off-screen renderer on this machine."""


def model_of(source: Any) -> Any | None:
    """Return the MuJoCo model of a library's environment object, or None if it has none."""
    system = getattr(source, "sys", None)
    return getattr(source, "mj_model", None) or getattr(system, "mj_model", None)


def open_renderer(model: Any, width: int, height: int) -> Any:
    """Return a `mujoco.Renderer` of a model, to be closed by the caller.

    Raises:
        NoRendererError: no OpenGL library works here.
    """
    with mujoco_imports(), warnings.catch_warnings():
        import glfw
        import mujoco

        # Without a display GLFW only warns. MuJoCo would go on without a context, which fails once
        # and ends the process at the second renderer.
        warnings.simplefilter("error", glfw.GLFWError)
        try:
            # A context that could not be opened is deleted as if it had been.
            if not hasattr(mujoco.GLContext, "_context"):
                mujoco.GLContext._context = None
            return mujoco.Renderer(model, height, width)
        except Exception as error:  # each OpenGL platform fails in its own way
            raise NoRendererError(
                f"MuJoCo could not open an off-screen renderer ({type(error).__name__}: {error}). "
                f"Install an OpenGL library (on Debian and Ubuntu: libegl1 and libgl1-mesa-dri, or "
                f"libosmesa6), set MUJOCO_GL=egl or MUJOCO_GL=osmesa before Python starts, and try "
                f"again."
            ) from error


def draw(
    model: Any, inner: Any, steps: np.ndarray, width: int, height: int
) -> Iterator[np.ndarray]:
    """Yield one picture per step.

    The first camera of the model is used, or a free one if it has none.

    Args:
        model: the MuJoCo model.
        inner: the library's states of the episode, each leaf `[L + 1, ...]`.
        steps: the steps to draw, `[n]`.
        width: of a picture, in pixels.
        height: likewise.

    Yields:
        Pictures, uint8 `[height, width, 3]`.

    Raises:
        NoRendererError: no OpenGL library works here.
    """
    with mujoco_imports():
        import mujoco

        poses = {name: np.asarray(value) for name, value in _poses(inner).items()}
        data = mujoco.MjData(model)
        # A picture may be larger than the buffer the model declares.
        model.vis.global_.offwidth = max(model.vis.global_.offwidth, width)
        model.vis.global_.offheight = max(model.vis.global_.offheight, height)
        renderer = open_renderer(model, width, height)
        try:
            for step in steps:
                for name, values in poses.items():
                    getattr(data, name)[:] = values[step]
                mujoco.mj_forward(model, data)
                renderer.update_scene(data, camera=0 if model.ncam else -1)
                yield renderer.render()
        finally:
            renderer.close()


def _poses(inner: Any) -> dict[str, Any]:
    """Return the fields of MuJoCo's data that decide what is seen."""
    if hasattr(inner, "data"):
        data = inner.data
        # Targets of reacher, finger, fish and swimmer are mocap bodies, moved by the reset.
        names = ("qpos", "qvel", "mocap_pos", "mocap_quat")
        return {name: getattr(data, name) for name in names if hasattr(data, name)}
    return {"qpos": inner.pipeline_state.q, "qvel": inner.pipeline_state.qd}
