"""Acting: filter the observation into a posterior state, then sample an action.

There is no deterministic mode: training, exploration and evaluation all sample the latents and
the action.

Source: danijar/dreamerv3@2411f7d, dreamerv3/agent.py, `Agent.policy`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from wm_dreamer import networks, rssm
from wm_dreamer.action_distributions import (
    ActionDistribution,
    action_distribution,
    action_vector,
)
from wm_dreamer.config import DreamerV3Config
from wm_dreamer.noise import ActNoise
from wm_dreamer.rssm import Observed, Params, RSSMState


class PolicyCarry(NamedTuple):
    """What the policy remembers of N environments from one row to the next.

    Attributes:
        state: posterior states, `[N, ...]`.
        action: the actions chosen there, `[N, A]` float32 or `[N]` int32: the raw samples, also
            where the row was the last of its episode and its action was not executed.
    """

    state: RSSMState
    action: jax.Array


class Decision(NamedTuple):
    """One decision for N environments, and what led to it.

    Attributes:
        action: `[N, A]` float32 in agent units, not clipped, or `[N]` int32.
        carry: for the next decision.
        observed: the posterior, without a time axis.
        policy: the distribution of the action.
    """

    action: jax.Array
    carry: PolicyCarry
    observed: Observed
    policy: ActionDistribution


def initial_carry(config: DreamerV3Config, n_envs: int) -> PolicyCarry:
    """Return the carry before the first row: zeros."""
    if config.discrete:
        action = jnp.zeros((n_envs,), jnp.int32)
    else:
        action = jnp.zeros((n_envs, config.action_dim), jnp.float32)
    return PolicyCarry(rssm.initial_state(config, n_envs), action)


def acting_params(params: Params) -> Params:
    """Return the parameters that `act` reads: encoder, actor, and the RSSM without its prior."""
    rssm_params = {k: v for k, v in params["rssm"].items() if not k.startswith("prior_")}
    return {"encoder": params["encoder"], "rssm": rssm_params, "actor": params["actor"]}


def act(
    params: Params,
    carry: PolicyCarry,
    obs: jax.Array,
    is_first: jax.Array,
    noise: ActNoise,
    *,
    config: DreamerV3Config,
) -> Decision:
    """Choose the actions of N environments.

    Args:
        params: needs the modules `encoder`, `rssm` and `actor`, see `acting_params`.
        carry: of the previous rows; ignored where `is_first`.
        obs: `[N, O]` float32, raw units.
        is_first: `[N]` bool.
        noise: the decision's draws.
        config: sizes.
    """
    observed = rssm.observe_step(
        params["rssm"],
        carry.state,
        action_vector(carry.action, config=config),
        networks.encode(params["encoder"], obs, config=config),
        is_first,
        noise.posterior,
        config=config,
    )
    features = jnp.concatenate([observed.deter, observed.stoch], axis=-1)
    outputs = networks.apply(networks.Actor(config), params["actor"], features)
    policy = action_distribution(outputs, config=config)
    action = policy.sample(noise.action)
    if config.discrete:
        action = jnp.argmax(action, axis=-1).astype(jnp.int32)
    next_carry = PolicyCarry(RSSMState(observed.deter, observed.stoch), action)
    return Decision(action, next_carry, observed, policy)
