"""One tick of collection: emit a row of every environment, then step or reset.

The collector's state holds the row to be emitted next, all but its action. A tick asks the policy
for that action, emits the row, and prepares the next one. An environment whose row is the last of
an episode is held: it is not stepped, and its next row comes from a fresh reset.

There are two ways to decide who is held. `collect_static` serves tasks whose episodes all have the
same length: every environment is held on the ticks i with i mod (T + 1) = T, so the decision is
arithmetic on the tick, and a reset is paid for once an episode. `collect_dynamic` serves episodes
of any length: each environment is held on its own, which costs a reset of every environment on
every tick. On a task of fixed length both give rows of the same form.

The tick is the absolute index of the run, unbatched: under `jax.vmap` over seeds it is the one
argument that is not mapped, so that the branch of `collect_static` stays a branch.
"""

import dataclasses
import functools
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from wm_collect.environment import Environment, EnvSpec
from wm_collect.row import EpisodeRecord, Row

# What a tick's key is folded with, so that the three draws of a tick are independent.
_POLICY, _STEP, _RESET = 0, 1, 2


class Policy(Protocol):
    """Chooses the actions of all N environments at once.

    A policy that remembers something keeps it in `carry`, and starts it afresh where `is_first`.
    """

    def __call__(
        self, carry: Any, obs: jax.Array, is_first: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Any, Any]:
        """Act on one tick's observations.

        Args:
            carry: what the policy returned on the previous tick, any pytree.
            obs: observations, `[N, O]` float32.
            is_first: whether an observation comes from a reset, `[N]` bool.
            key: this call's own key.

        Returns:
            The actions, `[N, A]` float32 in agent units or `[N]` int32; the next carry, a pytree
            of the same structure, shapes and dtypes; and the extras, any pytree of arrays to be
            stored beside the row.
        """


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class CollectorState:
    """What the next tick of collection needs: N environments and their rows to come.

    Attributes:
        env_state: states of the environments, a pytree with leading axis `[N]`.
        obs: observation of the row to come, `[N, O]` float32.
        reward: reward of the row to come, `[N]` float32.
        is_first: whether the row to come is a reset row, `[N]` bool.
        is_last: whether the row to come ends its episode, `[N]` bool.
        is_terminal: whether the row to come is a true termination, `[N]` bool.
        policy_carry: the policy's memory, any pytree.
        episode_return: rewards of the running episode in the rows emitted so far, summed, `[N]`
            float32.
        episode_length: agent steps of the running episode that led to the rows emitted so far,
            `[N]` int32.
        env_steps: agent steps taken so far by all environments together, `[]` int32; held rows
            count none.
        rows: rows emitted so far by all environments together, `[]` int32.
        n_offschedule_dones: static mode: episode ends before row T, or missing at row T, so far,
            `[]` int32.
        n_terminations: agent steps that ended in a true termination so far, `[]` int32.
    """

    env_state: Any
    obs: jax.Array
    reward: jax.Array
    is_first: jax.Array
    is_last: jax.Array
    is_terminal: jax.Array
    policy_carry: Any
    episode_return: jax.Array
    episode_length: jax.Array
    env_steps: jax.Array
    rows: jax.Array
    n_offschedule_dones: jax.Array
    n_terminations: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Entered:
    """What a step or a reset of N environments gives for the next row."""

    env_state: Any
    obs: jax.Array
    reward: jax.Array
    terminated: jax.Array
    done: jax.Array


def init_collector(
    env: Environment, n_envs: int, key: jax.Array, policy_carry: Any
) -> CollectorState:
    """Reset N environments and make the state before the first tick.

    Args:
        env: a single environment; it is vmapped here.
        n_envs: N, the number of environments.
        key: key of the first resets.
        policy_carry: the policy's first carry, any pytree.

    Returns:
        A state whose next row is the reset row of every environment.

    Raises:
        ValueError: `n_envs` is below 1, or the observation is not `[O]` as the spec says.
    """
    if n_envs < 1:
        raise ValueError(f"n_envs must be at least 1, got {n_envs}.")
    entered = _reset(env, n_envs, key)
    expected = (n_envs, env.spec.obs_dim)
    if entered.obs.shape != expected:
        raise ValueError(
            f"{env.spec.env_id}: observations of {n_envs} environments have shape "
            f"{entered.obs.shape}, but its spec says obs_dim={env.spec.obs_dim}, which gives "
            f"{expected}. Return flat observations, or correct the spec."
        )
    # Each field is its own array: a state that holds one buffer twice cannot be donated.
    return CollectorState(
        env_state=entered.env_state,
        obs=entered.obs,
        reward=entered.reward,
        is_first=jnp.ones(n_envs, bool),
        is_last=entered.done,
        is_terminal=entered.terminated,
        policy_carry=_strong(policy_carry),
        episode_return=jnp.zeros(n_envs, jnp.float32),
        episode_length=jnp.zeros(n_envs, jnp.int32),
        env_steps=jnp.zeros((), jnp.int32),
        rows=jnp.zeros((), jnp.int32),
        n_offschedule_dones=jnp.zeros((), jnp.int32),
        n_terminations=jnp.zeros((), jnp.int32),
    )


def collect_static(
    env: Environment, state: CollectorState, tick: jax.Array, key: jax.Array, policy: Policy
) -> tuple[CollectorState, Row, Any, EpisodeRecord]:
    """Collect one row of every environment, holding all of them on the ticks i mod (T + 1) = T.

    On a held tick neither the policy nor the environment runs: the carry stays, the action and the
    extras are zeros, and every environment is reset with a fresh key. Whether the environments
    keep to the schedule is counted in `n_offschedule_dones`; the rows follow the schedule anyway,
    so a count above zero means that the rows are not to be trusted.

    Args:
        env: a single environment whose episodes take exactly T = `env.spec.episode_length` steps.
        state: the state after the previous tick, or of `init_collector` at tick 0.
        tick: absolute tick of the run, `[]` int32, unbatched.
        key: this tick's own key.
        policy: chooses the actions.

    Returns:
        The next state, the rows `[N]`, the policy's extras and the record of finished episodes.

    Raises:
        TypeError: the policy or the environment changed the structure, shape or dtype of what it
            carries, or the action's shape or dtype is not the spec's; at trace time.
    """
    n_envs = state.obs.shape[0]
    last_row = env.spec.episode_length
    row_index = tick % (last_row + 1)

    # The held branch has no action and no extras of its own, but must return their shapes. The
    # inlined jit remembers its trace, so that asking for them does not trace the policy twice.
    @functools.partial(jax.jit, inline=True)
    def stepping() -> tuple[jax.Array, Any, Any, _Entered]:
        action, carry, extras = _act(env, state, key, policy)
        return action, carry, extras, _step(env, state, action, key)

    action_like, _, extras_like, _ = jax.eval_shape(stepping)

    def holding() -> tuple[jax.Array, Any, Any, _Entered]:
        action, extras = jax.tree.map(
            lambda x: jnp.zeros(x.shape, x.dtype), (action_like, extras_like)
        )
        return action, state.policy_carry, extras, _reset(env, n_envs, key)

    held = row_index == last_row
    action, carry, extras, entered = lax.cond(held, holding, stepping)

    ends = row_index == last_row - 1
    is_last = jnp.broadcast_to(ends, (n_envs,))
    row, record = _emit(state, action)
    next_state = _next_state(
        state,
        row,
        entered,
        carry,
        is_first=jnp.broadcast_to(held, (n_envs,)),
        is_last=is_last,
        n_offschedule=jnp.sum(entered.done != is_last, dtype=jnp.int32),
        n_terminated=jnp.sum(entered.terminated, dtype=jnp.int32),
    )
    return next_state, row, extras, record


def collect_dynamic(
    env: Environment, state: CollectorState, tick: jax.Array, key: jax.Array, policy: Policy
) -> tuple[CollectorState, Row, Any, EpisodeRecord]:
    """Collect one row of every environment, holding each one on the last row of its own episode.

    The policy acts for all environments on every tick; where a row is last its action is not
    executed and is stored as zero, while its extras are stored as the policy returned them. What
    the step makes of a held environment is thrown away.

    Args:
        env: a single environment; its episodes may end at any step.
        state: the state after the previous tick, or of `init_collector`.
        tick: not used; here so that both modes are called alike.
        key: this tick's own key.
        policy: chooses the actions.

    Returns:
        The next state, the rows `[N]`, the policy's extras and the record of finished episodes.

    Raises:
        TypeError: as in `collect_static`.
    """
    del tick
    held = state.is_last
    action, carry, extras = _act(env, state, key, policy)
    stepped = _step(env, state, action, key)
    entered = _where(held, _reset(env, held.shape[0], key), stepped)
    row, record = _emit(state, action)
    next_state = _next_state(
        state,
        row,
        entered,
        carry,
        is_first=held,
        is_last=entered.done,
        n_offschedule=jnp.zeros((), jnp.int32),
        n_terminated=jnp.sum(entered.terminated, dtype=jnp.int32),
    )
    return next_state, row, extras, record


def random_policy(spec: EnvSpec) -> Policy:
    """Make the policy that draws every action uniformly.

    Args:
        spec: of the environment to act in.

    Returns:
        A policy that draws from [−1, 1] in each of the A dimensions, or from the A choices of a
        discrete task. It hands its carry through and has no extras (None).
    """

    def policy(
        carry: Any, obs: jax.Array, is_first: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Any, Any]:
        n_envs = obs.shape[0]
        if spec.discrete:
            action = jax.random.randint(key, (n_envs,), 0, spec.action_dim, jnp.int32)
        else:
            shape = (n_envs, spec.action_dim)
            action = jax.random.uniform(key, shape, jnp.float32, minval=-1.0, maxval=1.0)
        return action, carry, None

    return policy


def _act(
    env: Environment, state: CollectorState, key: jax.Array, policy: Policy
) -> tuple[jax.Array, Any, Any]:
    """Ask the policy, and check what it returns against the spec and its own carry."""
    policy_key = jax.random.fold_in(key, _POLICY)
    action, carry, extras = policy(state.policy_carry, state.obs, state.is_first, policy_key)
    spec, n_envs = env.spec, state.obs.shape[0]
    shape, dtype = (
        ((n_envs,), jnp.int32) if spec.discrete else ((n_envs, spec.action_dim), jnp.float32)
    )
    action = jnp.asarray(action)
    if action.shape != shape or action.dtype != dtype:
        raise TypeError(
            f"The policy returned actions of shape {action.shape} and dtype {action.dtype}, but "
            f"{n_envs} environments of {spec.env_id} take {shape} {jnp.dtype(dtype).name}."
        )
    carry = _strong(carry)
    _require_same("the policy's carry", state.policy_carry, carry)
    return action, carry, _strong(extras)


def _step(env: Environment, state: CollectorState, action: jax.Array, key: jax.Array) -> _Entered:
    """Step every environment with its own key."""
    keys = jax.random.split(jax.random.fold_in(key, _STEP), action.shape[0])
    transition = jax.vmap(env.step)(keys, state.env_state, action)
    env_state = _strong(transition.state)
    _require_same(f"the state of {env.spec.env_id}", state.env_state, env_state)
    return _Entered(
        env_state=env_state,
        obs=transition.obs.astype(jnp.float32),
        reward=transition.reward.astype(jnp.float32),
        terminated=transition.terminated.astype(bool),
        done=(transition.terminated | transition.truncated).astype(bool),
    )


def _reset(env: Environment, n_envs: int, key: jax.Array) -> _Entered:
    """Reset every environment with its own key."""
    keys = jax.random.split(jax.random.fold_in(key, _RESET), n_envs)
    env_state, obs = jax.vmap(env.reset)(keys)
    return _Entered(
        env_state=_strong(env_state),
        obs=obs.astype(jnp.float32),
        reward=jnp.zeros(n_envs, jnp.float32),
        terminated=jnp.zeros(n_envs, bool),
        done=jnp.zeros(n_envs, bool),
    )


def _emit(state: CollectorState, action: jax.Array) -> tuple[Row, EpisodeRecord]:
    """Complete the pending rows with their actions, and record the episodes they finish."""
    row = Row(
        obs=state.obs,
        action=_where(state.is_last, jnp.zeros_like(action), action),
        reward=state.reward,
        is_first=state.is_first,
        is_last=state.is_last,
        is_terminal=state.is_terminal,
    )
    record = EpisodeRecord(
        finished=state.is_last,
        episode_return=jnp.where(state.is_last, state.episode_return + state.reward, 0.0),
        episode_length=jnp.where(state.is_last, state.episode_length + 1, 0),
        obs_finite=jnp.isfinite(row.obs).all(axis=-1),
        reward_finite=jnp.isfinite(row.reward),
        action_finite=jnp.isfinite(row.action).reshape(row.reward.shape[0], -1).all(axis=-1),
    )
    return row, record


def _next_state(
    state: CollectorState,
    row: Row,
    entered: _Entered,
    carry: Any,
    *,
    is_first: jax.Array,
    is_last: jax.Array,
    n_offschedule: jax.Array,
    n_terminated: jax.Array,
) -> CollectorState:
    """Make the pending rows of the next tick, and advance the sums and counters past `row`."""
    episode_return = state.episode_return + row.reward
    # Every row but the reset row was entered by an agent step.
    episode_length = state.episode_length + (~row.is_first).astype(jnp.int32)
    return CollectorState(
        env_state=entered.env_state,
        obs=entered.obs,
        reward=entered.reward,
        is_first=is_first,
        is_last=is_last,
        is_terminal=entered.terminated & is_last,
        policy_carry=carry,
        episode_return=jnp.where(row.is_last, 0.0, episode_return),
        episode_length=jnp.where(row.is_last, 0, episode_length),
        env_steps=state.env_steps + jnp.sum(~row.is_last, dtype=jnp.int32),
        rows=state.rows + row.is_last.shape[0],
        n_offschedule_dones=state.n_offschedule_dones + n_offschedule,
        n_terminations=state.n_terminations + n_terminated,
    )


def _where(mask: jax.Array, on_true: Any, on_false: Any) -> Any:
    """Select per environment, leaf by leaf: `mask` is `[N]`, every leaf `[N, ...]`."""

    def select(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(mask.reshape(mask.shape + (1,) * (a.ndim - 1)), a, b)

    return jax.tree.map(select, on_true, on_false)


def _strong(tree: Any) -> Any:
    """Make every leaf an array of a fixed dtype.

    A leaf that came from a Python number has a weak type, which a loop over ticks would reject as
    soon as an operation makes it strong.
    """

    def fix(leaf: Any) -> jax.Array:
        array = jnp.asarray(leaf)
        if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
            return array
        return lax.convert_element_type(array, array.dtype)

    return jax.tree.map(fix, tree)


def _require_same(what: str, before: Any, after: Any) -> None:
    """Raise if a tick changes the structure, a shape or a dtype of something it carries."""
    old_tree: Any = jax.tree.structure(before)
    new_tree: Any = jax.tree.structure(after)
    if old_tree != new_tree:
        raise TypeError(
            f"A tick must keep the structure of {what}: it was {old_tree}, now it is {new_tree}."
        )
    old_leaves = jax.tree_util.tree_leaves_with_path(before)
    for (path, old), new in zip(old_leaves, jax.tree.leaves(after), strict=True):
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise TypeError(
                f"A tick must keep the shapes and dtypes of {what}: the leaf "
                f"{jax.tree_util.keystr(path) or '(itself)'} was {old.dtype}{list(old.shape)}, "
                f"now it is {new.dtype}{list(new.shape)}."
            )
