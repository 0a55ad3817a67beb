"""What an agent gives the export: its decision as a pure function, and the arrays that reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import jax

if TYPE_CHECKING:  # a deployed policy is loaded without environments
    from wm_collect.environment import Environment


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deployable:
    """A trained policy, ready to be exported.

    Attributes:
        agent: name of the agent.
        env: the environment it acts in; says what is observed and which actions there are.
        weights: pytree of the arrays that `act` reads, and no others.
        init_carry: `init_carry(n)`: what the policy carries into the first decision of N
            environments, a pytree of zeros, each leaf `[N, ...]`.
        act: `act(weights, carry, obs, is_first, key) -> (action, carry)` for any N: `obs`
            float32 `[N, O]`, `is_first` bool `[N]` (true where an episode begins: the carry of
            that row is then not used), `action` float `[N, A]` in agent units or int32 `[N]`.
        planner: what one decision computes, plain values; None for a policy that does not plan.
    """

    agent: str
    env: Environment
    weights: Any
    init_carry: Callable[[int], Any]
    act: Callable[[Any, Any, jax.Array, jax.Array, jax.Array], tuple[jax.Array, Any]]
    planner: Mapping[str, Any] | None = None


class DeployableAgent(Protocol):
    """An agent whose policy can be exported: every `wm_collect.agent.Trainer` is one."""

    @property
    def deployable(self) -> Callable[..., Deployable]:
        """Return `deployable(state, **options)`; the options are the agent's own."""
        ...
