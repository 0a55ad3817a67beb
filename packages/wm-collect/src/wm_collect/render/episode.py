"""One recorded episode as a list of frames with captions."""

import warnings
from collections.abc import Iterator

import jax
import numpy as np

from wm_collect.environment import Environment, SimulatedEnvironment, make_env
from wm_collect.evaluate import Trajectory
from wm_collect.render.animation import add_caption


def render_episode(
    env: Environment | str,
    trajectory: Trajectory,
    *,
    every: int = 1,
    width: int = 480,
    height: int = 360,
) -> list[np.ndarray]:
    """Draw an episode, one frame per agent step, captioned with step, reward and return.

    Where MuJoCo cannot draw a Brax or Playground task on this machine, a warning says what to
    install, and the episode is drawn as curves.

    Args:
        env: the environment, or its id.
        trajectory: what `evaluate_policy(..., record=True)` returned, without a seed axis.
        every: draw every n-th agent step only; the last one is always drawn.
        width: of the picture, in pixels.
        height: of the picture without its caption, in pixels.

    Returns:
        Frames, uint8 `[height + caption, width, 3]`, from the reset to the terminal observation.

    Raises:
        ValueError: `every` or a size is below 1, or the trajectory is empty.
    """
    for name, value in (("every", every), ("width", width), ("height", height)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")
    if isinstance(env, str):
        env = make_env(env)
    if np.ndim(trajectory.length) != 0:
        raise ValueError(
            f"The trajectory holds episodes of shape {np.shape(trajectory.length)}, but one "
            f"episode is drawn at a time; index the leading axis first."
        )
    length = int(trajectory.length)
    if length < 1:
        raise ValueError("The trajectory is empty: it has no agent step to draw.")
    episode = jax.tree.map(np.asarray, trajectory)
    steps = np.unique(np.append(np.arange(0, length + 1, every), length))
    reward = np.concatenate([[0.0], episode.reward[:length]])
    returns = np.cumsum(reward)
    pictures = _pictures(env, episode, reward, steps, width, height)
    time_limit = env.spec.episode_length
    return [
        add_caption(
            picture,
            left=(env.spec.env_id, f"step {step} of {time_limit}"),
            right=(
                f"reward {reward[step]:.3f}" if step else "reset",
                f"return {returns[step]:.1f}",
            ),
            progress=step / time_limit,
        )
        for step, picture in zip(steps, pictures, strict=True)
    ]


def _pictures(
    env: Environment,
    episode: Trajectory,
    reward: np.ndarray,
    steps: np.ndarray,
    width: int,
    height: int,
) -> Iterator[np.ndarray]:
    """Yield the pictures of the steps, by the best way of drawing this environment."""
    from wm_collect.render import classic, physics, traces

    spec = env.spec
    length = len(reward) - 1
    obs = np.asarray(episode.obs)[: length + 1]
    if spec.backend == "gymnax" and spec.env_id in classic.TASKS:
        action = np.asarray(episode.action)[:length]
        led_to = np.concatenate([np.zeros_like(action[:1]), action])
        yield from classic.draw(spec.env_id, obs[steps], led_to[steps], width, height)
        return
    if isinstance(env, SimulatedEnvironment):
        model = physics.model_of(env.simulator.source)
        if model is not None:
            try:
                yield from physics.draw(model, episode.env_state.inner, steps, width, height)
                return
            except physics.NoRendererError as error:
                warnings.warn(f"{error} The episode is drawn as curves.", stacklevel=3)
    yield from traces.draw(obs, reward, steps, width, height)
