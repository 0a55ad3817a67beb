"""wm_collect."""

from wm_collect.clocks import Clock
from wm_collect.driver import train
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
from wm_collect.evaluate import Evaluation, Trajectory, evaluate_policy
from wm_collect.extensions import PHASES, check_extensions, implemented_phases
from wm_collect.failures import TrainingDiverged, TrainingInterrupted
from wm_collect.loop import Algorithm, RunState, init_run, make_chunk, repeat_update

__all__ = [
    "PHASES",
    "Algorithm",
    "Clock",
    "EnvSpec",
    "EnvState",
    "Environment",
    "Evaluation",
    "RunState",
    "TrainingDiverged",
    "TrainingInterrupted",
    "Trajectory",
    "Transition",
    "agent_episode_length",
    "as_typed_key",
    "check_extensions",
    "evaluate_policy",
    "implemented_phases",
    "init_run",
    "known_ids",
    "make_chunk",
    "make_env",
    "register_env",
    "registered_envs",
    "repeat_update",
    "train",
]
