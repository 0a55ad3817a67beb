"""wm_collect."""

# Environments
from wm_collect.env_ids import known_ids
from wm_collect.environment import (
    Environment,
    EnvSpec,
    EnvState,
    Transition,
    agent_episode_length,
    as_typed_key,
    make_env,
    register_env,
    registered_envs,
)

__all__ = [
    # Environments
    "EnvSpec",
    "EnvState",
    "Environment",
    "Transition",
    "agent_episode_length",
    "as_typed_key",
    "known_ids",
    "make_env",
    "register_env",
    "registered_envs",
]
