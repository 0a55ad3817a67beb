"""Run an environment for one episode in several copies, and write down what happened."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from wm_collect.env_check.given import Given
from wm_collect.environment import Environment, EnvSpec

N_EPISODES = 8
_N_RESETS = 64


class Episodes(NamedTuple):
    """Episodes of E environments with random actions; all but the states are NumPy arrays.

    Nothing is reset: a step after the end of an episode goes on from where it ended.

    Attributes:
        reset_obs: observations of many resets with different keys, `[R, O]`; the first E of them
            begin the episodes.
        resets_vary: whether anything in their states or observations differs, `[]` bool.
        obs: observation after each step, `[L, E, O]`.
        reward: `[L, E]`.
        terminated: `[L, E]` bool.
        truncated: `[L, E]` bool.
        before_end: state before the step that ended the episode, a pytree `[E, ...]`.
        at_end: state after that step.
        last_action: action of that step, `[E, A]` or `[E]`.
    """

    reset_obs: Any
    resets_vary: Any
    obs: Any
    reward: Any
    terminated: Any
    truncated: Any
    before_end: Any
    at_end: Any
    last_action: Any

    @property
    def ends(self) -> np.ndarray:
        """Index of the step that ended each episode, `[E]`; L where none did."""
        done = self.terminated | self.truncated
        return np.where(done.any(0), done.argmax(0), len(done))


def run_episodes(env: Environment, n_steps: int, key: jax.Array) -> Episodes:
    """Run one episode in each of `N_EPISODES` environments, and on from its end.

    Args:
        env: the environment as an agent would use it.
        n_steps: agent steps, L.
        key: draws resets, steps and actions.
    """
    episodes = jax.jit(lambda key: _episodes(env, n_steps, key))(key)
    # States may hold typed keys, which NumPy has no type for.
    rest = {
        name: np.asarray(value)
        for name, value in episodes._asdict().items()
        if name not in ("before_end", "at_end")
    }
    return episodes._replace(**rest)


def _episodes(env: Environment, n_steps: int, key: jax.Array) -> Episodes:
    reset_key, run_key = jax.random.split(key)
    states, reset_obs = jax.vmap(env.reset)(jax.random.split(reset_key, _N_RESETS))
    states = jax.tree.map(_strong, states)
    leaves = [reset_obs, *(leaf for leaf in jax.tree.leaves(states) if not _holds_keys(leaf))]
    vary = jnp.stack([jnp.any(leaf != leaf[:1]) for leaf in leaves]).any()
    state = jax.tree.map(lambda leaf: leaf[:N_EPISODES], states)

    def step(carry: Any, key: jax.Array) -> tuple[Any, Any]:
        state, ended, before_end, at_end, last_action = carry
        action_key, step_key = jax.random.split(key)
        action = random_actions(env.spec, action_key, N_EPISODES)
        moved = jax.vmap(env.step)(jax.random.split(step_key, N_EPISODES), state, action)
        after = jax.tree.map(_strong, moved.state)
        # Followed up to the first end, and kept from there on.
        before_end, at_end, last_action = jax.tree.map(
            lambda old, new: _select(ended, old, new),
            (before_end, at_end, last_action),
            (state, after, action),
        )
        ended |= moved.terminated | moved.truncated
        row = (
            moved.obs.astype(jnp.float32),
            moved.reward.astype(jnp.float32),
            moved.terminated,
            moved.truncated,
        )
        return (after, ended, before_end, at_end, last_action), row

    action = jnp.zeros_like(random_actions(env.spec, run_key, N_EPISODES))
    start = (state, jnp.zeros(N_EPISODES, bool), state, state, action)
    (_, _, *saved), rows = jax.lax.scan(step, start, jax.random.split(run_key, n_steps))
    return Episodes(reset_obs.astype(jnp.float32), vary, *rows, *saved)


def random_actions(spec: EnvSpec, key: jax.Array, n: int) -> jax.Array:
    """Draw actions in agent units, `[n, A]` float32, or `[n]` int32."""
    if spec.discrete:
        return jax.random.randint(key, (n,), 0, spec.action_dim, jnp.int32)
    return jax.random.uniform(key, (n, spec.action_dim), jnp.float32, minval=-1.0, maxval=1.0)


class Repeated(NamedTuple):
    """Steps of E environments, made again with keys that all of them share.

    Attributes:
        obs: observation after the step, `[2 keys, E, O]`.
        done: whether it ended an episode, `[2 keys, E]` bool.
    """

    obs: Any
    done: Any


def step_with_shared_keys(
    env: Environment, states: Any, actions: np.ndarray, key: jax.Array
) -> Repeated:
    """Step from saved states with one key for all of them, and once more with another."""

    @jax.jit
    def run(states: Any, actions: jax.Array, key: jax.Array) -> Repeated:
        def with_key(key: jax.Array) -> Repeated:
            moved = jax.vmap(env.step, in_axes=(None, 0, 0))(key, states, actions)
            return Repeated(moved.obs, moved.terminated | moved.truncated)

        return jax.vmap(with_key)(jax.random.split(key))

    return jax.tree.map(np.asarray, run(states, jnp.asarray(actions), key))


def reset_and_step(given: Given, key: jax.Array) -> Any:
    """Return state and observation of a reset, and all that a step from there gives.

    Compiled anew at each call, so that Python runs each time.
    """

    def run(key: jax.Array) -> Any:
        reset_key, step_key = jax.random.split(key)
        state, obs = given.reset(reset_key)
        return state, obs, given.step(step_key, state, given.action)

    return jax.tree.map(_plain, jax.jit(run)(key))


def reset_and_step_vmapped(given: Given, key: jax.Array) -> Any:
    """Return what `reset_and_step` does, computed beside another environment."""

    def run(key: jax.Array) -> Any:
        reset_key, step_key = jax.random.split(key)
        state, obs = given.reset(reset_key)
        return state, obs, given.step(step_key, state, given.action)

    both = jax.jit(jax.vmap(run))(jnp.stack([key, jax.random.fold_in(key, 1)]))
    return jax.tree.map(lambda leaf: _plain(leaf)[0], both)


def step_at_and_beyond_the_bounds(env: Environment, key: jax.Array) -> tuple[Any, Any]:
    """Return observations and rewards of steps with actions at the bounds, and of some beyond."""

    @jax.jit
    def run(key: jax.Array, scale: jax.Array) -> Any:
        state, _ = env.reset(key)
        action = jnp.where(jnp.arange(env.spec.action_dim) % 2 == 0, scale, -scale)
        moved = env.step(key, state, action)
        return moved.obs, moved.reward

    at, beyond = (jax.tree.map(np.asarray, run(key, jnp.float32(x))) for x in (1.0, 1.5))
    return at, beyond


def _strong(leaf: Any) -> jax.Array:
    """Return an array without a weak type, which no loop could carry."""
    array = jnp.asarray(leaf)
    return array if _is_key(array) else jax.lax.convert_element_type(array, array.dtype)


def _plain(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _is_key(leaf: jax.Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _holds_keys(leaf: jax.Array) -> bool:
    """Return whether a batched leaf holds random keys, typed or raw."""
    return _is_key(leaf) or (
        leaf.dtype == jnp.uint32 and leaf.ndim > 1 and leaf.shape[-1] in (2, 4)
    )


def _select(mask: jax.Array, on_true: jax.Array, on_false: jax.Array) -> jax.Array:
    return jnp.where(mask.reshape(mask.shape + (1,) * (on_true.ndim - 1)), on_true, on_false)
