"""What a world-model agent needs around its mathematics: environments, rows, replay, a run."""

from importlib.metadata import version

from wm_collect.checkpoint import CheckpointError, Checkpoints
from wm_collect.clocks import Clock
from wm_collect.collector import (
    CollectorState,
    Policy,
    collect_dynamic,
    collect_static,
    init_collector,
    random_policy,
)
from wm_collect.compile_cache import count_compilations, enable_compile_cache
from wm_collect.curves import plot_learning_curve
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
from wm_collect.progress import RunProgress
from wm_collect.quiet import quiet_xla
from wm_collect.row import EpisodeRecord, Row
from wm_collect.run_folder import RunFolder
from wm_collect.sinks import CsvSink, JsonlSink, Sink, TensorBoardSink, WandbSink, read_rows

__all__ = [
    "PHASES",
    "Algorithm",
    "CheckpointError",
    "Checkpoints",
    "Clock",
    "CollectorState",
    "CsvSink",
    "EnvSpec",
    "EnvState",
    "Environment",
    "EpisodeRecord",
    "Evaluation",
    "JsonlSink",
    "Policy",
    "Row",
    "RunFolder",
    "RunProgress",
    "RunState",
    "Sink",
    "TensorBoardSink",
    "TrainingDiverged",
    "TrainingInterrupted",
    "Trajectory",
    "Transition",
    "WandbSink",
    "agent_episode_length",
    "as_typed_key",
    "check_extensions",
    "collect_dynamic",
    "collect_static",
    "count_compilations",
    "enable_compile_cache",
    "evaluate_policy",
    "implemented_phases",
    "init_collector",
    "init_run",
    "known_ids",
    "make_chunk",
    "make_env",
    "plot_learning_curve",
    "quiet_xla",
    "random_policy",
    "read_rows",
    "register_env",
    "registered_envs",
    "repeat_update",
    "train",
]

__version__ = version("wm-collect")
