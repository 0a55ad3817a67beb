"""Environments whose every row says where it came from, and checks of rows and of states.

For tests of agents, buffers and schedules: `CounterEnv` writes the episode and the row's place in
it into its observations and rewards, so that a mixed-up row shows. `ConstantRewardEnv` and
`ActionRewardEnv` are tasks whose optimal values and actions are known.

For tests of environments: collect rows from yours and check them,

    rows = collect_rows(env, n_envs=4, n_ticks=2000, key=jax.random.key(0))
    check_rows(rows, env.spec)

For tests of resuming: `check_same_state` compares two states of a run bit for bit.
"""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wm_collect.environment import EnvSpec, EnvState, Transition
from wm_collect.row import Row
from wm_collect.row_inspector import collect_rows as collect_rows


class CounterEnv:
    """Episodes of scripted lengths whose rows name their episode and their place in it.

    A reset draws the episode's number e in 0 to 9,999,999 from its key. Episode e takes
    `lengths[e % len(lengths)]` agent steps and ends with `terminates[e % len(terminates)]`.
    Its row k has

    - observation `[e, k, first entry of the action that led here (0 at row 0), 0, ...]`, `[O]`;
    - reward `1000 k + e % 1000` (0 at row 0, which no step has entered).

    All are exact in float32. Steps past the episode's end go on counting and stay done. Actions are
    recorded as given, without the clipping of a real task.

    The Python calls of `reset` and `step` are counted in `n_reset_calls` and `n_step_calls`: under
    `jax.jit` Python runs only when the program is traced, so a count that does not grow with the
    run's length proves that the run stayed on the device.
    """

    N_EPISODES = 10_000_000

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        terminates: Sequence[bool] = (False,),
        obs_dim: int = 3,
        action_dim: int = 2,
        discrete: bool = False,
        episode_length: int | None = None,
        declare_fixed_length: bool | None = None,
    ) -> None:
        """Script the environment.

        Args:
            lengths: agent steps of the episodes, at least 1 each.
            terminates: whether an episode ends by termination, else it is truncated; True or False
                for all, or as many as there are lengths.
            obs_dim: O, at least 3.
            action_dim: A, or the number of choices.
            discrete: whether actions are choices, `[]` int32, else `[A]` float32.
            episode_length: T of the spec; by default the longest of `lengths`. Lengths that differ
                from it make an environment that breaks its promise, where that is wanted.
            declare_fixed_length: what the spec promises; by default the truth.

        Raises:
            ValueError: the script is empty, a length is below 1, the two scripts cannot be paired,
                or `obs_dim` is below 3.
        """
        if not lengths or min(lengths) < 1:
            raise ValueError(f"lengths must be whole numbers of at least 1, got {lengths}.")
        if len(terminates) not in (1, len(lengths)):
            raise ValueError(
                f"terminates must have 1 entry or one for each of the {len(lengths)} lengths, "
                f"got {len(terminates)}."
            )
        if obs_dim < 3:
            raise ValueError(f"obs_dim must be at least 3, got {obs_dim}.")
        self.lengths = tuple(lengths)
        self.terminates = tuple(terminates) * (len(lengths) // len(terminates))
        longest = max(lengths) if episode_length is None else episode_length
        fixed = not any(terminates) and all(length == longest for length in lengths)
        if declare_fixed_length is not None:
            fixed = declare_fixed_length
        self.spec = _spec("counter", obs_dim, action_dim, discrete, longest, terminates=not fixed)
        self.n_reset_calls = 0
        self.n_step_calls = 0

    def reset(self, key: jax.Array) -> tuple[EnvState, jax.Array]:
        """Begin the episode that `key` draws."""
        self.n_reset_calls += 1
        episode = self.episode_of(key)
        steps = jnp.zeros((), jnp.int32)
        return EnvState(inner=episode, steps=steps), self._obs(episode, steps, jnp.float32(0))

    def step(self, key: jax.Array, state: EnvState, action: jax.Array) -> Transition:
        """Count one step."""
        del key
        self.n_step_calls += 1
        episode, steps = state.inner, state.steps + 1
        nth = episode % len(self.lengths)
        over = steps >= jnp.array(self.lengths, jnp.int32)[nth]
        terminates = jnp.array(self.terminates)[nth]
        first_entry = jnp.ravel(action)[0].astype(jnp.float32)
        return Transition(
            state=EnvState(inner=episode, steps=steps),
            obs=self._obs(episode, steps, first_entry),
            reward=(1000 * steps + episode % 1000).astype(jnp.float32),
            terminated=over & terminates,
            truncated=over & ~terminates,
        )

    @classmethod
    def episode_of(cls, key: jax.Array) -> jax.Array:
        """Return the number of the episode that a reset with `key` begins, `[]` int32."""
        return jax.random.randint(key, (), 0, cls.N_EPISODES, jnp.int32)

    def _obs(self, episode: jax.Array, steps: jax.Array, action: jax.Array) -> jax.Array:
        rest = jnp.zeros(self.spec.obs_dim - 3, jnp.float32)
        numbers = jnp.stack([episode.astype(jnp.float32), steps.astype(jnp.float32), action])
        return jnp.concatenate([numbers, rest])


class _Probe(abc.ABC):
    """A constant observation of ones, and a time limit that is the only end of an episode."""

    def __init__(
        self, name: str, *, episode_length: int = 10, obs_dim: int = 2, action_dim: int = 1
    ) -> None:
        self.spec = _spec(name, obs_dim, action_dim, False, episode_length)

    def reset(self, key: jax.Array) -> tuple[EnvState, jax.Array]:
        """Begin an episode; all are alike, and `key` is not used."""
        del key
        return EnvState(inner=(), steps=jnp.zeros((), jnp.int32)), self._obs()

    def step(self, key: jax.Array, state: EnvState, action: jax.Array) -> Transition:
        """Pay the reward of `action`, `[A]`."""
        del key
        steps = state.steps + 1
        return Transition(
            state=EnvState(inner=(), steps=steps),
            obs=self._obs(),
            reward=self._reward(action),
            terminated=jnp.zeros((), bool),
            truncated=steps >= self.spec.episode_length,
        )

    def _obs(self) -> jax.Array:
        return jnp.ones(self.spec.obs_dim, jnp.float32)

    @abc.abstractmethod
    def _reward(self, action: jax.Array) -> jax.Array:
        """Return the reward of `action`, `[]` float32."""


class ConstantRewardEnv(_Probe):
    """The same reward on every step, and only a time limit.

    The time limit is no termination, so that values bootstrap through it: the value of every row
    under every policy is `reward / (1 − γ)`, however short the episodes.
    """

    def __init__(
        self,
        reward: float = 1.0,
        *,
        episode_length: int = 10,
        obs_dim: int = 2,
        action_dim: int = 1,
    ) -> None:
        """Fix the reward and the sizes.

        Args:
            reward: paid on every step.
            episode_length: T, in agent steps.
            obs_dim: O; every observation is all ones.
            action_dim: A, continuous.
        """
        super().__init__(
            "constant-reward",
            episode_length=episode_length,
            obs_dim=obs_dim,
            action_dim=action_dim,
        )
        self.reward = reward

    def _reward(self, action: jax.Array) -> jax.Array:
        return jnp.full((), self.reward, jnp.float32)


class ActionRewardEnv(_Probe):
    """The reward is the action clipped to [−1, 1], averaged over its dimensions; only a time limit.

    The best action is +1 in every dimension at every row, which is worth `1 / (1 − γ)`.
    """

    def __init__(self, *, episode_length: int = 10, obs_dim: int = 2, action_dim: int = 1) -> None:
        """Fix the sizes.

        Args:
            episode_length: T, in agent steps.
            obs_dim: O; every observation is all ones.
            action_dim: A, continuous.
        """
        super().__init__(
            "action-reward", episode_length=episode_length, obs_dim=obs_dim, action_dim=action_dim
        )

    def _reward(self, action: jax.Array) -> jax.Array:
        return jnp.mean(jnp.clip(action, -1.0, 1.0))


def check_rows(rows: Row, spec: EnvSpec | None = None) -> None:
    """Check the rules that every stream of rows keeps, whatever the environment.

    Args:
        rows: rows stacked over ticks from the beginning of a run, `[ticks, N, ...]`.
        spec: if given, shapes, action ranges and episode lengths are checked against it too.

    Raises:
        AssertionError: a rule is broken; the message says which, and where first.
    """
    obs, action, reward, first, last, terminal = (
        np.asarray(getattr(rows, field.name)) for field in dataclasses.fields(Row)
    )
    flags = {"is_first": first, "is_last": last, "is_terminal": terminal}
    for name, array in {"reward": reward, **flags}.items():
        if array.shape != obs.shape[:2]:
            raise AssertionError(f"{name} has shape {array.shape}, the rows {obs.shape[:2]}.")
    for name, array in flags.items():
        if array.dtype != bool:
            raise AssertionError(f"{name} has dtype {array.dtype}, not bool.")
    not_finite = ~np.isfinite(reward) | ~np.isfinite(obs).all(axis=-1)
    acts = action.reshape((*obs.shape[:2], -1))
    _none(not_finite, "an observation or a reward is not finite")
    _none(first & (reward != 0), "the reward of a reset row is not 0")
    _none(first & last, "a row is both the first and the last of its episode")
    _none(terminal & ~last, "a row is terminal but not the last of its episode")
    _none(last & (acts != 0).any(axis=-1), "the action of a last row is not 0")
    _none(~first[:1], "the stream does not begin with a reset row")
    _none(last[:-1] & ~first[1:], "a last row is not followed by a reset row", shift=1)
    _none(first[1:] & ~last[:-1], "a reset row does not follow a last row", shift=1)
    if spec is not None:
        _check_against_spec(obs, action, first, last, spec)


def check_same_state(expected: Any, got: Any) -> None:
    """Check that two states are the same bit for bit, as a resumed run's and a whole one's are.

    Args:
        expected: a pytree of arrays, random keys among them.
        got: another.

    Raises:
        AssertionError: they differ in structure, or a leaf in shape, dtype or bits; the message
            names the first.
    """
    # jax's type stubs know no comparison of structures.
    structures: list[Any] = [jax.tree.structure(state) for state in (expected, got)]
    if structures[0] != structures[1]:
        raise AssertionError(f"the states differ in structure: {structures[0]}, {structures[1]}.")
    leaves = jax.tree_util.tree_leaves_with_path(expected)
    for (path, a), b in zip(leaves, jax.tree.leaves(got), strict=True):
        a, b = _as_stored(a), _as_stored(b)
        name = jax.tree_util.keystr(path) or "the state itself"
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            raise AssertionError(
                f"{name} is {a.dtype}{list(a.shape)} in one state, {b.dtype}{list(b.shape)} in the "
                "other."
            )
        if a.tobytes() != b.tobytes():
            bits = (np.ravel(x).view(np.uint8).reshape(x.size, -1) for x in (a, b))
            n_different = np.count_nonzero(np.any(np.not_equal(*bits), axis=1))
            raise AssertionError(f"{name} differs in {n_different} of {a.size} entries.")


def _as_stored(leaf: Any) -> np.ndarray:
    """Return a leaf as a plain array, of a random key its words."""
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def _check_against_spec(
    obs: np.ndarray, action: np.ndarray, first: np.ndarray, last: np.ndarray, spec: EnvSpec
) -> None:
    """Check shapes, ranges and episode lengths."""
    shape = () if spec.discrete else (spec.action_dim,)
    if obs.shape[2:] != (spec.obs_dim,) or action.shape[2:] != shape:
        raise AssertionError(
            f"rows have obs {obs.shape[2:]} and action {action.shape[2:]}, "
            f"the spec says {(spec.obs_dim,)} and {shape}."
        )
    if spec.discrete:
        _none((action < 0) | (action >= spec.action_dim), "an action is none of the choices")
    row_index = np.zeros(first.shape, int)
    for tick in range(1, first.shape[0]):
        row_index[tick] = np.where(first[tick], 0, row_index[tick - 1] + 1)
    limit = spec.episode_length
    _none((row_index == limit) & ~last, f"an episode goes on after {limit} agent steps")
    if spec.fixed_length:
        _none(last & (row_index < limit), f"an episode is shorter than {limit} agent steps")


def _none(wrong: np.ndarray, what: str, shift: int = 0) -> None:
    """Raise if any entry of `wrong` `[ticks, N]` is True; `shift` names a later tick."""
    if wrong.any():
        tick, env = np.argwhere(wrong)[0]
        raise AssertionError(f"{what}: tick {tick + shift}, environment {env}.")


def _spec(
    name: str,
    obs_dim: int,
    action_dim: int,
    discrete: bool,
    episode_length: int,
    terminates: bool = False,
) -> EnvSpec:
    """Describe an environment of this module."""
    bounds = () if discrete else (1.0,) * action_dim
    return EnvSpec(
        env_id=name,
        backend="testing",
        obs_dim=obs_dim,
        action_dim=action_dim,
        discrete=discrete,
        episode_length=episode_length,
        action_repeat=1,
        terminates=terminates,
        reset_ignores_key=name != "counter",
        action_low=tuple(-high for high in bounds),
        action_high=bounds,
    )
