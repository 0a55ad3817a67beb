"""Environments as the collector sees them: single, pure, and never reset by themselves.

`make_env` gives every library's environments one interface:

* `reset(key) -> (state, obs)`
* `step(key, state, action) -> Transition(state, obs, reward, terminated, truncated)`

One environment at a time; `jax.vmap` outside makes a batch. `step` takes an *agent step*: it maps
the action to the environment's bounds, repeats it for `action_repeat` *simulator steps*, sums their
rewards, and stops changing anything once the episode ended within them. The observation it returns
is the one before any reset, so the last one of an episode is the terminal observation.
"""

import dataclasses
import warnings
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from wm_collect import env_ids
from wm_collect.actions import DiscreteActions
from wm_collect.backends import custom
from wm_collect.backends.custom import register_env, registered_envs
from wm_collect.backends.simulator import Simulator
from wm_collect.backends.state_api import FunctionalEnv, FunctionalState
from wm_collect.state_layout import StateLayout

__all__ = [
    "EnvSpec",
    "EnvState",
    "Environment",
    "FunctionalEnv",
    "FunctionalState",
    "SimulatedEnvironment",
    "Transition",
    "agent_episode_length",
    "as_typed_key",
    "make_env",
    "register_env",
    "registered_envs",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvSpec:
    """What is known about an environment before stepping it.

    Attributes:
        env_id: its name.
        backend: "gymnax", "brax", "playground" or "custom".
        obs_dim: size O of the observation vector.
        action_dim: number of continuous action dimensions A, or of choices if `discrete`.
        discrete: whether an action is an index instead of a vector.
        episode_length: time limit T, in agent steps.
        action_repeat: simulator steps per agent step.
        terminates: whether an episode may end before T.
        reset_ignores_key: whether every episode starts from the same state.
        action_low: lower action bounds `[A]`, in environment units; empty if `discrete`.
        action_high: upper action bounds `[A]`, in environment units; empty if `discrete`.
    """

    env_id: str
    backend: str
    obs_dim: int
    action_dim: int
    discrete: bool
    episode_length: int
    action_repeat: int
    terminates: bool
    reset_ignores_key: bool
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]

    @property
    def fixed_length(self) -> bool:
        """Whether every episode takes exactly T agent steps."""
        return not self.terminates


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvState:
    """State of one environment: plain arrays only, of the same types after reset and step.

    Attributes:
        inner: the library's own state, any pytree of arrays.
        steps: agent steps taken in this episode, int32 `[]`.
    """

    inner: Any
    steps: jax.Array


class Transition(NamedTuple):
    """Outcome of one agent step.

    Attributes:
        state: the state after the step, not reset.
        obs: observation after the step, float32 `[O]`; the terminal one if the episode ended.
        reward: sum over the simulator steps taken, float32 `[]`, in environment units.
        terminated: whether the environment ended the episode, bool `[]`.
        truncated: whether the time limit cut it, bool `[]`; never together with `terminated`.
    """

    state: EnvState
    obs: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array


@runtime_checkable
class Environment(Protocol):
    """One environment with pure functions; `jax.vmap` makes a batch of it.

    What every environment becomes, and what the rest of the package works with. An object of your
    own with these three members is accepted wherever an id is; `FunctionalEnv` asks for less.
    """

    spec: EnvSpec

    def reset(self, key: jax.Array) -> tuple[EnvState, jax.Array]:
        """Return a fresh state and its observation, float32 `[O]`, drawn with `key`."""
        ...

    def step(self, key: jax.Array, state: EnvState, action: jax.Array) -> Transition:
        """Take one agent step with an action in agent units, `[A]` or int32 `[]`."""
        ...


class SimulatedEnvironment:
    """An `Environment` over a backend's simulator; made by `make_env`.

    Both functions are jitted, so they may be called from Python as well as inside a larger program.

    Attributes:
        spec: what is known beforehand.
        simulator: the backend's environment, in simulator steps and environment units.
    """

    def __init__(self, simulator: Simulator, spec: EnvSpec, layout: StateLayout) -> None:
        self.spec = spec
        self.simulator = simulator
        self._layout = layout
        self._reset = jax.jit(self._traced_reset)
        self._step = jax.jit(self._traced_step)

    def reset(self, key: jax.Array) -> tuple[EnvState, jax.Array]:
        """Start an episode.

        Args:
            key: a typed key; a raw uint32 key is converted. Consumed.

        Returns:
            The fresh state and its observation, float32 `[O]`.
        """
        return self._reset(as_typed_key(key))

    def step(self, key: jax.Array, state: EnvState, action: jax.Array) -> Transition:
        """Take one agent step.

        A step whose observation or reward is not finite never ends the episode early: `terminated`
        stays false and the reward becomes NaN, so that the failure shows instead of being learnt.

        Args:
            key: a typed key; a raw uint32 key is converted. Consumed.
            state: the state to step from; it is not reset when its episode has ended.
            action: float `[A]` in agent units, or an integer `[]` if discrete.

        Returns:
            The transition.

        Raises:
            ValueError: the action has the wrong shape or type.
        """
        return self._step(as_typed_key(key), state, action)

    def _traced_reset(self, key: jax.Array) -> tuple[EnvState, jax.Array]:
        inner, obs = self.simulator.reset(key)
        state = EnvState(inner=self._layout.pack(inner), steps=jnp.zeros((), jnp.int32))
        return state, jnp.asarray(obs, jnp.float32)

    def _traced_step(self, key: jax.Array, state: EnvState, action: jax.Array) -> Transition:
        env_action = self.simulator.actions.from_agent(action)
        repeat = self.spec.action_repeat
        if repeat == 1:
            moved = self._simulator_step(key, state.inner, env_action)
        else:
            moved = self._repeated_step(key, state.inner, env_action)
        inner, obs, reward, terminated, cut = moved
        steps = state.steps + 1
        truncated = (cut | (steps >= self.spec.episode_length)) & ~terminated
        return Transition(EnvState(inner=inner, steps=steps), obs, reward, terminated, truncated)

    def _repeated_step(self, key: jax.Array, inner: Any, env_action: jax.Array) -> tuple[Any, ...]:
        """Repeat the action, frozen after the simulator step that ends the episode.

        Deviations: E22.
        """
        keys = jax.random.split(key, self.spec.action_repeat)
        nothing_yet = (
            inner,
            jnp.zeros((self.spec.obs_dim,), jnp.float32),
            jnp.zeros((), jnp.float32),
            jnp.zeros((), bool),
            jnp.zeros((), bool),
        )

        def sub_step(carry: tuple[Any, ...], sub_key: jax.Array) -> tuple[tuple[Any, ...], None]:
            inner, _, total, terminated, cut = carry
            moved = self._simulator_step(sub_key, inner, env_action)
            next_inner, next_obs, reward, next_terminated, next_cut = moved
            moved = (next_inner, next_obs, total + reward, next_terminated, next_cut)
            ended = terminated | cut
            return jax.tree.map(lambda old, new: jnp.where(ended, old, new), carry, moved), None

        return jax.lax.scan(sub_step, nothing_yet, keys)[0]

    def _simulator_step(self, key: jax.Array, inner: Any, env_action: jax.Array) -> tuple[Any, ...]:
        result = self.simulator.step(key, self._layout.unpack(inner), env_action)
        obs = jnp.asarray(result.obs, jnp.float32)
        reward = jnp.asarray(result.reward, jnp.float32)
        finite = jnp.isfinite(obs).all() & jnp.isfinite(reward)
        reward = jnp.where(finite, reward, jnp.nan)
        return (
            self._layout.pack(result.inner),
            obs,
            reward,
            jnp.asarray(result.terminated, bool) & finite,
            jnp.asarray(result.truncated, bool),
        )


def make_env(
    env: str | Any,
    *,
    episode_length: int | None = None,
    action_repeat: int = 1,
    env_params: Any = None,
    terminates: bool | None = None,
) -> Environment:
    """Return one environment, ready to be vmapped.

    Args:
        env: an id of Gymnax, Brax or MuJoCo Playground ("Pendulum-v1", "hopper", "CartpoleBalance";
            "gymnax/…", "brax/…" and "playground/…" name the library); a name given to
            `register_env`; "module:attribute", which is imported, from the current folder too; or
            an environment object, see `FunctionalEnv`.
        episode_length: time limit in simulator steps; None for the environment's own, which is
            1000 for Brax and for most of Playground.
        action_repeat: simulator steps per agent step.
        env_params: Gymnax parameters (an object, or a mapping of changed fields), keyword
            arguments of a Brax environment, or configuration overrides of a Playground one.
        terminates: whether an episode may end before its time limit; None to use what is known
            about the environment. Must be given for environments that nothing is known about.

    Returns:
        The environment.

    Raises:
        ModuleNotFoundError: the library is not installed; the message says how to install it.
        TypeError: the object has no known interface.
        ValueError: the id is unknown, or an argument does not suit the environment; the message
            says what is accepted.
    """
    simulator: Simulator
    if isinstance(env, str) and not custom.is_own(env):
        backend, name = env_ids.resolve(env)
        simulator = backend.load(name, episode_length=episode_length, env_params=env_params)
    else:
        env_id = None
        if isinstance(env, str):
            env_id = env
            env = custom.build(env, episode_length=episode_length, env_params=env_params)
            env_params = None
        if isinstance(env, Environment) and isinstance(env.spec, EnvSpec):
            return _ready_made(env, episode_length, action_repeat, env_params, terminates)
        simulator = custom.from_object(
            env, env_id=env_id, episode_length=episode_length, env_params=env_params
        )
    return _environment(simulator, action_repeat, terminates)


def agent_episode_length(simulator_steps: int, action_repeat: int) -> int:
    """Return the episode length T in agent steps.

    T = simulator_steps / action_repeat, which must be whole.

    Args:
        simulator_steps: the time limit, in simulator steps.
        action_repeat: simulator steps per agent step.

    Returns:
        T, in agent steps.

    Raises:
        ValueError: a number is not a positive integer, or the division leaves a remainder.
    """
    for name, value in (("episode_length", simulator_steps), ("action_repeat", action_repeat)):
        if isinstance(value, bool) or int(value) != value or value < 1:
            raise ValueError(f"{name} must be a positive whole number, but {value!r} was given.")
    steps, remainder = divmod(int(simulator_steps), int(action_repeat))
    if remainder:
        raise ValueError(
            f"The episode length of {simulator_steps} simulator steps is not a multiple of "
            f"action_repeat={action_repeat}; choose a repeat that divides it, or set "
            f"episode_length to {steps * action_repeat} or {(steps + 1) * action_repeat}."
        )
    return steps


def as_typed_key(key: jax.Array) -> jax.Array:
    """Return a typed key for a typed key or for a raw uint32 one.

    Args:
        key: a key or a batch of keys: typed `[...]` (`jax.random.key`), or raw uint32 `[..., 2]`
            (`jax.random.PRNGKey`).

    Returns:
        The same key, typed, `[...]`.

    Raises:
        TypeError: the argument is not a key.
    """
    if isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return key
    if getattr(key, "dtype", None) != jnp.uint32 or jnp.ndim(key) < 1:
        raise TypeError(
            f"A random key was expected, such as jax.random.key(0), but {key!r} was given."
        )
    return jax.random.wrap_key_data(jnp.asarray(key))


def _environment(
    simulator: Simulator, action_repeat: int, terminates: bool | None
) -> SimulatedEnvironment:
    """Check a simulator, describe it, and build the environment over it."""
    length = agent_episode_length(simulator.episode_length, action_repeat)
    if terminates is None:
        terminates = simulator.terminates
    if terminates is None:
        raise ValueError(
            f"Nothing is known about whether episodes of {simulator.env_id!r} can end before their "
            f"time limit; pass terminates=True or terminates=False, or give the environment object "
            f"an attribute of that name."
        )
    # Jitted, these are traced here once for their shapes, and not again when they are compiled.
    simulator = dataclasses.replace(
        simulator, reset=jax.jit(simulator.reset), step=jax.jit(simulator.step)
    )
    inner, obs = jax.eval_shape(simulator.reset, jax.random.key(0))
    if not isinstance(obs, jax.ShapeDtypeStruct) or len(obs.shape) != 1:
        found = (
            f"an array of shape {obs.shape}"
            if isinstance(obs, jax.ShapeDtypeStruct)
            else f"the structure {jax.tree.map(lambda leaf: leaf.shape, obs)}"
        )
        raise ValueError(
            f"The observation of {simulator.env_id!r} is {found}; only flat vectors of shape (n,) "
            f"are supported, so wrap the environment and flatten its observation."
        )
    actions = simulator.actions
    discrete = isinstance(actions, DiscreteActions)
    spec = EnvSpec(
        env_id=simulator.env_id,
        backend=simulator.backend,
        obs_dim=obs.shape[0],
        action_dim=actions.n if isinstance(actions, DiscreteActions) else actions.size,
        discrete=discrete,
        episode_length=length,
        action_repeat=int(action_repeat),
        terminates=bool(terminates),
        reset_ignores_key=simulator.reset_ignores_key,
        action_low=() if isinstance(actions, DiscreteActions) else actions.low,
        action_high=() if isinstance(actions, DiscreteActions) else actions.high,
    )
    if spec.reset_ignores_key:
        register = " (deviation E21 in docs/deviations.md)" if spec.backend == "playground" else ""
        warnings.warn(
            f"Every episode of {spec.env_id!r} starts from the same state, because its reset "
            f"ignores the random key{register}.",
            stacklevel=3,
        )
    return SimulatedEnvironment(simulator, spec, StateLayout.of(simulator, inner))


def _ready_made(
    env: Environment,
    episode_length: int | None,
    action_repeat: int,
    env_params: Any,
    terminates: bool | None,
) -> Environment:
    """Return an `Environment` object as it is, after checking that nothing else was asked for."""
    spec = env.spec
    asked = {
        "episode_length": (episode_length, spec.episode_length * spec.action_repeat),
        "action_repeat": (None if action_repeat == 1 else action_repeat, spec.action_repeat),
        "terminates": (terminates, spec.terminates),
        "env_params": (env_params, None),
    }
    for name, (wanted, own) in asked.items():
        if wanted is not None and wanted != own:
            raise ValueError(
                f"{name}={wanted!r} was asked for, but the environment object {spec.env_id!r} is "
                f"ready made with {name}={own!r}; leave the argument out, or build the object "
                f"with it."
            )
    return env
