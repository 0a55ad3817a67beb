"""Drawings of Gymnax's classic control tasks, from their observations.

Each task has one function that draws the things that never move and returns a function that moves
the others; it is given one observation `[O]` and the agent's action that led to it.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from wm_collect.render.canvas import ACCENT, GOAL, INK, MUTED, SECOND, Canvas

Move = Callable[[np.ndarray, np.ndarray], None]


def draw(
    env_id: str, obs: np.ndarray, action: np.ndarray, width: int, height: int
) -> Iterator[np.ndarray]:
    """Yield one picture per observation.

    Args:
        env_id: a key of `TASKS`.
        obs: observations, `[n, O]`.
        action: the action that led to each, `[n, ...]`; zero for a reset observation.
        width: of a picture, in pixels.
        height: likewise.

    Yields:
        Pictures, uint8 `[height, width, 3]`.
    """
    canvas = Canvas(width, height)
    move = TASKS[env_id](canvas)
    for seen, chosen in zip(obs, action, strict=True):
        move(seen, chosen)
        yield canvas.pixels()


def _pendulum(canvas: Canvas) -> Move:
    from matplotlib.patches import Arc, Circle

    axes = canvas.scene((-1.35, 1.35), (-1.35, 1.35))
    axes.add_patch(Circle((0, 0), 1.0, fill=False, color=MUTED, lw=1, ls=(0, (2, 4))))
    (rod,) = axes.plot([], [], color=ACCENT, lw=11, solid_capstyle="round")
    torque = Arc((0, 0), 0.5, 0.5, color=SECOND, lw=3)
    axes.add_patch(torque)
    (head,) = axes.plot([], [], marker=(3, 0, 0), ms=10, color=SECOND, ls="")
    axes.add_patch(Circle((0, 0), 0.055, color=INK, zorder=5))

    def move(obs: np.ndarray, action: np.ndarray) -> None:
        cos, sin = obs[0], obs[1]
        rod.set_data([0, -sin], [0, cos])
        # A full torque is drawn as a third of a turn, counterclockwise if positive.
        turn = 120.0 * float(np.clip(np.nan_to_num(action.reshape(-1)[0]), -1, 1))
        end = math.radians(-90 + turn)
        torque.theta1, torque.theta2 = (-90, -90 + turn) if turn > 0 else (-90 + turn, -90)
        visible = abs(turn) > 3
        torque.set_visible(visible)
        head.set_visible(visible)
        head.set_data([0.25 * math.cos(end)], [0.25 * math.sin(end)])
        head.set_marker((3, 0, round(-90 + turn) + (0 if turn > 0 else 180)))

    return move


def _cartpole(canvas: Canvas) -> Move:
    from matplotlib.patches import Circle, FancyBboxPatch

    limit, pole = 2.4, 1.5
    axes = canvas.scene((-2.75, 2.75), (-0.75, 2.1))
    axes.plot([-10, 10], [0, 0], color=MUTED, lw=2, zorder=0)
    for side in (-limit, limit):
        axes.plot([side, side], [-0.16, 0.16], color=ACCENT, lw=3, zorder=0)
    cart = FancyBboxPatch(
        (0, -0.15), 0.7, 0.3, boxstyle="round,pad=0,rounding_size=0.06", color=SECOND
    )
    axes.add_patch(cart)
    (rod,) = axes.plot([], [], color=ACCENT, lw=9, solid_capstyle="round")
    axle = Circle((0, 0.1), 0.05, color=INK, zorder=5)
    axes.add_patch(axle)

    def move(obs: np.ndarray, action: np.ndarray) -> None:
        x, angle = float(obs[0]), float(obs[2])
        cart.set_x(x - 0.35)
        axle.set_center((x, 0.1))
        rod.set_data([x, x + pole * math.sin(angle)], [0.1, 0.1 + pole * math.cos(angle)])

    return move


def _mountain_car(goal: float) -> Callable[[Canvas], Move]:
    def prepare(canvas: Canvas) -> Move:
        from matplotlib.patches import Circle

        axes = canvas.scene((-1.25, 0.65), (-0.05, 1.25))
        ground = np.linspace(-1.2, 0.6, 200)
        axes.fill_between(ground, _hill(ground), -2, color="#e4e1da", zorder=0)
        axes.plot(ground, _hill(ground), color=INK, lw=1.5)
        top = _hill(np.array(goal))
        axes.plot([goal, goal], [top, top + 0.17], color=INK, lw=1.5)
        axes.fill(
            [goal, goal + 0.1, goal], [top + 0.17, top + 0.135, top + 0.1], color=GOAL, zorder=3
        )
        (body,) = axes.fill([0], [0], color=ACCENT, zorder=4)
        wheels = [Circle((0, 0), 0.022, color=INK, zorder=5) for _ in range(2)]
        for wheel in wheels:
            axes.add_patch(wheel)

        def move(obs: np.ndarray, action: np.ndarray) -> None:
            x = float(obs[0])
            slope = math.atan(1.35 * math.cos(3 * x))
            turn = np.array(
                [[math.cos(slope), -math.sin(slope)], [math.sin(slope), math.cos(slope)]]
            )
            at = np.array([x, float(_hill(np.array(x)))])
            outline = [(-0.08, 0.03), (-0.08, 0.075), (-0.04, 0.11), (0.04, 0.11), (0.08, 0.07)]
            body.set_xy(np.array([*outline, (0.08, 0.03)]) @ turn.T + at)
            for wheel, offset in zip(wheels, (-0.045, 0.045), strict=True):
                wheel.set_center(tuple(turn @ np.array([offset, 0.024]) + at))

        return move

    return prepare


def _hill(x: np.ndarray) -> np.ndarray:
    return 0.45 * np.sin(3 * x) + 0.55


def _acrobot(canvas: Canvas) -> Move:
    axes = canvas.scene((-2.3, 2.3), (-2.2, 2.2))
    axes.plot([-10, 10], [1, 1], color=GOAL, lw=1.5, ls=(0, (4, 4)))
    (upper,) = axes.plot([], [], color=ACCENT, lw=10, solid_capstyle="round")
    (lower,) = axes.plot([], [], color=SECOND, lw=10, solid_capstyle="round")
    (joints,) = axes.plot([], [], "o", color=INK, ms=8, zorder=5)

    def move(obs: np.ndarray, action: np.ndarray) -> None:
        first = math.atan2(obs[1], obs[0])
        both = first + math.atan2(obs[3], obs[2])
        elbow = np.array([math.sin(first), -math.cos(first)])
        tip = elbow + np.array([math.sin(both), -math.cos(both)])
        upper.set_data([0, elbow[0]], [0, elbow[1]])
        lower.set_data([elbow[0], tip[0]], [elbow[1], tip[1]])
        joints.set_data([0, elbow[0]], [0, elbow[1]])

    return move


TASKS: dict[str, Callable[[Any], Move]] = {
    "Pendulum-v1": _pendulum,
    "CartPole-v1": _cartpole,
    "MountainCar-v0": _mountain_car(0.5),
    "MountainCarContinuous-v0": _mountain_car(0.45),
    "Acrobot-v1": _acrobot,
}
