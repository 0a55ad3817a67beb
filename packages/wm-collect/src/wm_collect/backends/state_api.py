"""Environments whose functions exchange one state object, as in Brax and MuJoCo Playground.

`reset(key) -> State` and `step(State, action) -> State`, where a state holds `obs`, `reward` and
`done`. The bare environment is used: the wrappers of both libraries restart every episode from one
cached state, lose truncations, or break with typed keys.
"""

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from wm_collect.actions import ContinuousActions
from wm_collect.backends.simulator import Simulator, SimulatorStep, as_flag

# Wrappers of brax 0.14.2 and playground 0.2.0 that batch, count steps or reset.
_WRAPPERS = frozenset(
    {
        "AutoResetWrapper",
        "BraxAutoResetWrapper",
        "BraxDomainRandomizationVmapWrapper",
        "DomainRandomizationVmapWrapper",
        "EpisodeWrapper",
        "EvalWrapper",
        "MadronaWrapper",
        "VmapWrapper",
    }
)


class FunctionalState(Protocol):
    """State of a `FunctionalEnv`: a pytree of arrays, such as a `NamedTuple`, with these fields.

    It may have more, for what a step needs and nobody observes. Both `reset` and `step` return the
    same fields with the same shapes and dtypes.
    """

    @property
    def obs(self) -> jax.Array:
        """What the agent observes, float32 `[O]`."""
        ...

    @property
    def reward(self) -> jax.Array:
        """Reward of the step that led here, float32 `[]`; 0 after a reset."""
        ...

    @property
    def done(self) -> jax.Array:
        """Whether the environment ended the episode here, bool or float `[]`; no time limit."""
        ...


class FunctionalEnv(Protocol):
    """The recommended form of an environment of one's own; an object of it goes into `make_env`.

    Pure functions of one environment, without a base class. Actions are vectors in [−1, 1], float32
    `[A]`. The time limit is declared and not counted, and `step` never resets: both are done
    outside. An environment that draws random numbers while stepping keeps a key in its state and
    splits it.

    An environment with discrete actions or with other action bounds is written in Gymnax's
    interface or as an `Environment`.
    """

    @property
    def action_size(self) -> int:
        """Number of action dimensions A."""
        ...

    @property
    def episode_length(self) -> int:
        """Time limit, in simulator steps."""
        ...

    @property
    def terminates(self) -> bool:
        """Whether an episode may end before the time limit, by `done`."""
        ...

    def reset(self, key: jax.Array) -> FunctionalState:
        """Return the first state of an episode, drawn with `key`."""
        ...

    def step(self, state: Any, action: jax.Array) -> FunctionalState:
        """Return the state after one simulator step."""
        ...


def done_is_termination(state: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Read `done` as a termination.

    Args:
        state: the library's state after a step.

    Returns:
        Reward, terminated and truncated, each a scalar.
    """
    return state.reward, as_flag(state.done), jnp.array(False)


def from_object(
    env: Any,
    *,
    env_id: str,
    backend: str,
    terminates: bool | None,
    episode_length: int,
    reset_ignores_key: bool = False,
    outcome: Callable[[Any], tuple[jax.Array, jax.Array, jax.Array]] = done_is_termination,
) -> Simulator:
    """Wrap a bare environment of Brax, Playground or the same make.

    Its actions lie in [-1, 1] by the convention of both libraries.

    Args:
        env: the object, with `reset`, `step` and `action_size`.
        env_id: name used in messages and files.
        backend: backend name put on the spec.
        terminates: whether episodes may end early; None when unknown.
        episode_length: time limit in simulator steps.
        reset_ignores_key: whether every episode starts from the same state.
        outcome: reads reward, terminated and truncated from the state after a step.

    Returns:
        The environment as a simulator.

    Raises:
        ValueError: the environment is inside one of the libraries' wrappers.
    """
    _refuse_wrappers(env, env_id)

    def reset(key: jax.Array) -> tuple[Any, jax.Array]:
        state = env.reset(key)
        return state, state.obs

    def step(key: jax.Array, inner: Any, action: jax.Array) -> SimulatorStep:
        del key  # these environments draw nothing while stepping
        # Both libraries write into the dictionaries of the state they are given.
        state = env.step(jax.tree.map(lambda leaf: leaf, inner), action)
        reward, terminated, truncated = outcome(state)
        return SimulatorStep(state, state.obs, reward, terminated, truncated)

    n_actions = int(env.action_size)
    return Simulator(
        env_id=env_id,
        backend=backend,
        source=env,
        reset=reset,
        step=step,
        actions=ContinuousActions.from_box(-1.0, 1.0, (n_actions,)),
        episode_length=episode_length,
        terminates=terminates,
        reset_ignores_key=reset_ignores_key,
    )


def _refuse_wrappers(env: Any, env_id: str) -> None:
    """Raise if a wrapper that steps, batches or resets differently lies around the environment."""
    layer = env
    while layer is not None:
        if type(layer).__name__ in _WRAPPERS:
            raise ValueError(
                f"The environment {env_id!r} is wrapped in {type(layer).__name__}; pass the bare "
                f"environment, because batching, time limit, action repeat and resets are done "
                f"by wm_collect."
            )
        layer = vars(layer).get("env") if hasattr(layer, "__dict__") else None
