"""From a single-task run to data: the episodes that its replay still holds."""

from collections.abc import Mapping

import jax
import numpy as np

from wm_collect import RunState
from wm_collect.replay import EpisodeBufferState
from wm_multitask.dataset import TaskEpisodes
from wm_multitask.tasks import Task
from wm_tdmpc2 import TDMPC2


def export_episodes(
    agent: TDMPC2,
    state: RunState,
    *,
    name: str | None = None,
    full_history: bool = True,
) -> TaskEpisodes:
    """Return every complete episode that the replay of a run holds, in collection order.

    Round follows round, and within a round environment 0 to N − 1; a state of several seeds gives
    the episodes of its first seed, then those of the next. The running episodes are left out.

    A run keeps all of its episodes unless its `buffer_size` is smaller than the run is long. Then
    the oldest rounds are gone, and with them the early behaviour that a dataset may be meant to
    have: that is an error here unless `full_history` is switched off.

    The environment of a task is built again from its name. One that was given to the agent as an
    object has to be registered under its name (`wm_collect.register_env`) for that.

    Args:
        agent: the agent that made the state, not episodic.
        state: a state that its `train` returned, or one restored from a checkpoint.
        name: the task's name; None for the environment's id.
        full_history: whether rounds that the replay has evicted are an error.

    Returns:
        The episodes, in the host's memory.

    Raises:
        ValueError: the run is episodic, the state is not the agent's, it has no complete episode,
            rounds were evicted, or a number in it is not valid (see `TaskEpisodes.check`).
    """
    if agent.config.episodic:
        raise ValueError(
            f"{agent.env.spec.env_id} was trained with episodic=True, and its episodes have no "
            "common length; only runs with episodes of fixed length can be exported."
        )
    task = _task_of(agent, name)
    buffer = _checked_buffer(agent, state)
    n_slots = buffer.reward.shape[-3]
    n_complete = agent.ticks_done(state) // (task.episode_length + 1)
    if n_complete == 0:
        raise ValueError(
            f"The run on {task.name!r} has not completed an episode of {task.episode_length} agent "
            "steps yet; train it longer."
        )
    # One slot is the running round's.
    n_held = min(n_complete, n_slots - 1)
    n_evicted = n_complete - n_held
    if n_evicted and full_history:
        raise ValueError(
            f"The replay of the run on {task.name!r} holds the last {n_held} of {n_complete} "
            f"rounds of episodes; the first {n_evicted} were evicted. Train with a buffer_size of "
            "at least n_timesteps to keep all, or pass full_history=False to export what is left."
        )
    slots = np.arange(n_evicted, n_complete) % n_slots

    def ordered(ring: jax.Array) -> np.ndarray:
        """Return the held episodes of `[R, N, ...]` or `[S, R, N, ...]` as `[n, ...]`."""
        rounds = np.asarray(ring)
        by_seed = rounds if buffer.reward.ndim == 4 else rounds[None]
        held = by_seed[:, slots]
        return held.reshape(-1, *held.shape[3:])

    episodes = TaskEpisodes(
        task=task,
        obs=ordered(buffer.obs),
        action=ordered(buffer.action),
        reward=ordered(buffer.reward),
    )
    episodes.check()
    return episodes


def _task_of(agent: TDMPC2, name: str | None) -> Task:
    spec = agent.env.spec
    if agent.env_params is not None and not isinstance(agent.env_params, Mapping):
        raise ValueError(
            f"{spec.env_id} was made with env_params that are an object, "
            f"{type(agent.env_params).__name__}, and a task needs plain values to build its "
            "environment again. Give the agent a mapping of the fields that differ."
        )
    return Task(
        name=agent.env_id if name is None else name,
        obs_dim=spec.obs_dim,
        action_dim=spec.action_dim,
        episode_length=spec.episode_length,
        env_id=agent.env_id,
        action_repeat=spec.action_repeat,
        env_episode_length=agent.settings.episode_length,
        env_params=agent.env_params,
    )


def _checked_buffer(agent: TDMPC2, state: RunState) -> EpisodeBufferState:
    """Return the replay of a state, once it is known to be the agent's."""
    buffer, spec, n_envs = state.agent.buffer, agent.env.spec, agent.config.n_envs
    wanted = (n_envs, spec.episode_length + 1)
    widths = {"obs": (spec.obs_dim,), "action": (spec.action_dim,), "reward": ()}
    fits = isinstance(buffer, EpisodeBufferState)
    for field, width in widths.items():
        shape = getattr(buffer, field).shape if fits else ()
        n_leading = len(shape) - len(wanted + width)
        fits = fits and n_leading in (1, 2) and shape[n_leading:] == wanted + width
    if not fits:
        raise ValueError(
            f"The state is not one of this agent: its replay must hold rounds of {n_envs} "
            f"environment(s) with {spec.episode_length + 1} rows of {spec.obs_dim} observations "
            f"and {spec.action_dim} actions. Make the agent with the settings of the run."
        )
    return buffer
