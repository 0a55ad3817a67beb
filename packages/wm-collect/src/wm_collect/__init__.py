"""What a world-model agent needs around its mathematics: environments, rows, replay, a run."""

from importlib.metadata import version

from wm_collect.clocks import Clock
from wm_collect.collector import (
    CollectorState,
    Policy,
    collect_dynamic,
    collect_static,
    init_collector,
    random_policy,
)
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
from wm_collect.row import EpisodeRecord, Row

__all__ = [
    "PHASES",
    "Algorithm",
    "Clock",
    "CollectorState",
    "EnvSpec",
    "EnvState",
    "Environment",
    "EpisodeRecord",
    "Evaluation",
    "Policy",
    "Row",
    "RunState",
    "TrainingDiverged",
    "TrainingInterrupted",
    "Trajectory",
    "Transition",
    "agent_episode_length",
    "as_typed_key",
    "check_extensions",
    "collect_dynamic",
    "collect_static",
    "evaluate_policy",
    "implemented_phases",
    "init_collector",
    "init_run",
    "known_ids",
    "make_chunk",
    "make_env",
    "random_policy",
    "register_env",
    "registered_envs",
    "repeat_update",
    "train",
]

__version__ = version("wm-collect")
