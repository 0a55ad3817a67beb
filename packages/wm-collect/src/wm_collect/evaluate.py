"""Evaluation of a policy: one episode in each of E fresh environments, all stepped together."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wm_collect.collector import Policy
from wm_collect.environment import Environment, as_typed_key

# Purposes folded into the evaluation's key, and again with the agent step where there is one.
_RESET, _POLICY, _STEP = 0, 1, 2


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Trajectory:
    """One recorded episode, padded to the time limit T; only the first steps are its own.

    Attributes:
        env_state: environment states from the reset on, each leaf `[T + 1, ...]`.
        obs: observations from the reset on, `[T + 1, O]`.
        action: agent's actions, `[T, A]` in agent units, or int32 `[T]`.
        reward: reward received after each action, `[T]`.
        length: agent steps of the episode, int32 `[]`: entries up to `length` are valid.
        terminated: whether the environment ended the episode, bool `[]`; a time limit does not.
    """

    env_state: Any
    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    length: jax.Array
    terminated: jax.Array | bool = False


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What an evaluation measured.

    Attributes:
        episode_return: undiscounted return of each episode, `[E]`.
        episode_length: agent steps of each episode, int32 `[E]`.
        trajectory: the first episode, if it was asked for.
    """

    episode_return: jax.Array
    episode_length: jax.Array
    trajectory: Trajectory | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Progress:
    """Carry of the loop over agent steps."""

    t: jax.Array
    env_state: Any
    obs: jax.Array
    policy_carry: Any
    running: jax.Array
    episode_return: jax.Array
    episode_length: jax.Array
    trajectory: Trajectory | None


Evaluate = Callable[[Any, jax.Array], Evaluation]
"""`evaluate(agent_state, key) -> Evaluation`, traced into one program, for one seed."""


@dataclasses.dataclass(frozen=True)
class TaskEvaluations:
    """How an agent of several tasks is measured: each task by its own program.

    Attributes:
        tasks: the evaluation of each task, by name.
        summary: `summary({task: mean return}) -> {name: value}`, further numbers for the log row,
            of values that lead with a seed axis where there is one.
    """

    tasks: Mapping[str, Evaluate]
    summary: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]


def evaluate_policy(
    env: Environment,
    policy: Policy,
    init_carry: Any,
    n_episodes: int,
    key: jax.Array,
    *,
    record: bool = False,
) -> Evaluation:
    """Run one episode in each of `n_episodes` fresh environments, and return what they earned.

    An environment that has ended is frozen, its later rewards are not counted, and the loop stops
    once all have ended. This is a pure function to be called inside `jax.jit`; the time limit and
    the action repeat are those of `env`.

    Args:
        env: one environment.
        policy: acts for the whole batch of E environments; `is_first` is true at the first step
            and false afterwards. It goes on being called for ended environments, whose actions
            are ignored.
        init_carry: what the policy carries into the first step, with E environments.
        n_episodes: E, at least 1.
        key: consumed.
        record: whether to return the first episode's trajectory, for rendering.

    Returns:
        Returns and lengths of the episodes, `[E]`.

    Raises:
        ValueError: `n_episodes` is below 1.
    """
    if n_episodes < 1:
        raise ValueError(f"n_episodes must be at least 1, got {n_episodes}.")
    key = as_typed_key(key)
    policy_key = jax.random.fold_in(key, _POLICY)
    step_key = jax.random.fold_in(key, _STEP)
    time_limit = env.spec.episode_length

    reset_keys = jax.random.split(jax.random.fold_in(key, _RESET), n_episodes)
    env_state, obs = jax.vmap(env.reset)(reset_keys)

    def step(progress: _Progress) -> _Progress:
        t, running = progress.t, progress.running
        is_first = jnp.full(n_episodes, t == 0)
        action, policy_carry, _ = policy(
            progress.policy_carry, progress.obs, is_first, jax.random.fold_in(policy_key, t)
        )
        step_keys = jax.random.split(jax.random.fold_in(step_key, t), n_episodes)
        moved = jax.vmap(env.step)(step_keys, progress.env_state, action)
        env_state = _where(running, moved.state, progress.env_state)
        obs = _where(running, moved.obs, progress.obs)
        reward = jnp.where(running, moved.reward, 0.0)
        trajectory = progress.trajectory
        if trajectory is not None:
            trajectory = _record(trajectory, t, env_state, obs, action, reward)
            ended = trajectory.terminated | (running & moved.terminated)[0]
            trajectory = dataclasses.replace(trajectory, terminated=ended)
        return _Progress(
            t=t + 1,
            env_state=env_state,
            obs=obs,
            policy_carry=policy_carry,
            running=running & ~moved.terminated & ~moved.truncated,
            episode_return=progress.episode_return + reward,
            episode_length=progress.episode_length + running,
            trajectory=trajectory,
        )

    def unfinished(progress: _Progress) -> jax.Array:
        before_limit = progress.t < time_limit
        # Only where it can make a difference: under a vmap over seeds this condition differs from
        # seed to seed, and the loop has to select every value it carries.
        return before_limit & progress.running.any() if env.spec.terminates else before_limit

    start = _Progress(
        t=jnp.zeros((), jnp.int32),
        env_state=env_state,
        obs=obs,
        policy_carry=init_carry,
        running=jnp.ones(n_episodes, bool),
        episode_return=jnp.zeros(n_episodes, jnp.float32),
        episode_length=jnp.zeros(n_episodes, jnp.int32),
        trajectory=None,
    )
    if record:
        action = jax.eval_shape(policy, init_carry, obs, start.running, policy_key)[0]
        start = dataclasses.replace(
            start, trajectory=_empty_trajectory(time_limit, env_state, obs, action)
        )
    end = jax.lax.while_loop(unfinished, step, start)

    trajectory = end.trajectory
    if trajectory is not None:
        trajectory = dataclasses.replace(trajectory, length=end.episode_length[0])
    return Evaluation(
        episode_return=end.episode_return,
        episode_length=end.episode_length,
        trajectory=trajectory,
    )


def _empty_trajectory(time_limit: int, env_state: Any, obs: Any, action: Any) -> Trajectory:
    """Return a trajectory of zeros with the first states and observations in place."""

    def rows(n: int, batched: Any) -> jax.Array:
        return jnp.zeros((n, *batched.shape[1:]), batched.dtype)

    def rows_from(batched: jax.Array) -> jax.Array:
        return rows(time_limit + 1, batched).at[0].set(batched[0])

    return Trajectory(
        env_state=jax.tree.map(rows_from, env_state),
        obs=rows_from(obs),
        action=rows(time_limit, action),
        reward=jnp.zeros(time_limit, jnp.float32),
        length=jnp.zeros((), jnp.int32),
        terminated=jnp.zeros((), bool),
    )


def _record(
    trajectory: Trajectory, t: jax.Array, env_state: Any, obs: Any, action: Any, reward: Any
) -> Trajectory:
    """Write the first environment's step `t` into the trajectory."""

    def put(rows: jax.Array, index: jax.Array, batched: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_index_in_dim(rows, batched[0], index, 0)

    return dataclasses.replace(
        trajectory,
        env_state=jax.tree.map(lambda r, x: put(r, t + 1, x), trajectory.env_state, env_state),
        obs=put(trajectory.obs, t + 1, obs),
        action=put(trajectory.action, t, action),
        reward=put(trajectory.reward, t, reward),
    )


def _where(running: jax.Array, new: Any, old: Any) -> Any:
    """Select per environment between two pytrees whose leaves lead with `[E]`."""

    def select(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(running.reshape(-1, *(1,) * (a.ndim - 1)), a, b)

    return jax.tree.map(select, new, old)
