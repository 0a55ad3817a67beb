"""What a world-model agent needs around its mathematics: environments, rows, replay, a run.

The public names are imported when they are first used, so that a program that only acts with a
trained policy loads neither environments nor replay.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from wm_collect.deploy import export_policy, load_policy
    from wm_collect.driver import train
    from wm_collect.env_check import EnvReport, Finding, check_env
    from wm_collect.env_ids import known_ids
    from wm_collect.environment import (
        Environment,
        EnvSpec,
        EnvState,
        FunctionalEnv,
        FunctionalState,
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
    from wm_collect.row_inspector import inspect_rows, print_rows
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
    "EnvReport",
    "EnvSpec",
    "EnvState",
    "Environment",
    "EpisodeRecord",
    "Evaluation",
    "Finding",
    "FunctionalEnv",
    "FunctionalState",
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
    "check_env",
    "check_extensions",
    "collect_dynamic",
    "collect_static",
    "count_compilations",
    "enable_compile_cache",
    "evaluate_policy",
    "export_policy",
    "implemented_phases",
    "init_collector",
    "init_run",
    "inspect_rows",
    "known_ids",
    "load_policy",
    "make_chunk",
    "make_env",
    "plot_learning_curve",
    "print_rows",
    "quiet_xla",
    "random_policy",
    "read_rows",
    "register_env",
    "registered_envs",
    "repeat_update",
    "train",
]

# The modules that hold the names above; a test compares both, and type checkers read the imports.
_HOMES = {
    "wm_collect.checkpoint": (
        "CheckpointError",
        "Checkpoints",
    ),
    "wm_collect.clocks": ("Clock",),
    "wm_collect.collector": (
        "CollectorState",
        "Policy",
        "collect_dynamic",
        "collect_static",
        "init_collector",
        "random_policy",
    ),
    "wm_collect.compile_cache": (
        "count_compilations",
        "enable_compile_cache",
    ),
    "wm_collect.curves": ("plot_learning_curve",),
    "wm_collect.deploy": (
        "export_policy",
        "load_policy",
    ),
    "wm_collect.driver": ("train",),
    "wm_collect.env_check": (
        "EnvReport",
        "Finding",
        "check_env",
    ),
    "wm_collect.env_ids": ("known_ids",),
    "wm_collect.environment": (
        "Environment",
        "EnvSpec",
        "EnvState",
        "FunctionalEnv",
        "FunctionalState",
        "Transition",
        "agent_episode_length",
        "as_typed_key",
        "make_env",
        "register_env",
        "registered_envs",
    ),
    "wm_collect.evaluate": (
        "Evaluation",
        "Trajectory",
        "evaluate_policy",
    ),
    "wm_collect.extensions": (
        "PHASES",
        "check_extensions",
        "implemented_phases",
    ),
    "wm_collect.failures": (
        "TrainingDiverged",
        "TrainingInterrupted",
    ),
    "wm_collect.loop": (
        "Algorithm",
        "RunState",
        "init_run",
        "make_chunk",
        "repeat_update",
    ),
    "wm_collect.progress": ("RunProgress",),
    "wm_collect.quiet": ("quiet_xla",),
    "wm_collect.row": (
        "EpisodeRecord",
        "Row",
    ),
    "wm_collect.row_inspector": (
        "inspect_rows",
        "print_rows",
    ),
    "wm_collect.run_folder": ("RunFolder",),
    "wm_collect.sinks": (
        "CsvSink",
        "JsonlSink",
        "Sink",
        "TensorBoardSink",
        "WandbSink",
        "read_rows",
    ),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__version__ = version("wm-collect")


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, imported or not."""
    return sorted({*globals(), *__all__})
