"""The settings of the multi-task agent, and their resolution for a set of tasks.

Source: nicklashansen/tdmpc2@b67b21c, `config.yaml`; its README for the batch size.
"""

import dataclasses

from wm_collect.checks import check_count
from wm_multitask.tasks import TaskSet
from wm_tdmpc2 import ModelSettings, TDMPC2Config
from wm_tdmpc2.config import planner_iterations


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiTaskSettings(ModelSettings):
    """Hyperparameters of multi-task TD-MPC2, with the paper's defaults."""

    batch_size: int = 1024
    """Slices per update, of all tasks together."""
    task_dim: int = 96
    """Width of a task's embedding."""

    def __post_init__(self) -> None:
        """Check every value that can be judged without knowing the tasks."""
        super().__post_init__()
        check_count("task_dim", self.task_dim, 1)


def resolve_config(settings: MultiTaskSettings, tasks: TaskSet, n_rows: int) -> TDMPC2Config:
    """Fill the blanks of the settings for a set of tasks.

    Observations and actions have the widths of the widest task. Discounts are the tasks' own
    (`TaskSet.discounts`): the pure functions get them with the task, and never read the
    configuration's.

    Args:
        settings: what the user gave.
        tasks: the tasks.
        n_rows: rows of an episode of the dataset.

    Raises:
        ValueError: a slice of `horizon` steps does not fit into an episode of the dataset.
    """
    if settings.horizon > n_rows - 1:
        raise ValueError(
            f"horizon must be at most {n_rows - 1}, the agent steps of an episode of the dataset, "
            f"got {settings.horizon}."
        )
    values = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    discounts = tasks.discounts(
        settings.discount_denom, settings.discount_min, settings.discount_max
    )
    values |= settings.widths()
    values |= {
        "obs_dim": tasks.obs_dim,
        "action_dim": tasks.action_dim,
        "n_tasks": tasks.n_tasks,
        "agent_episode_length": max(task.episode_length for task in tasks.tasks),
        "gamma": float(discounts.max()),
        # Nothing is collected.
        "seed_steps": 1,
        "iterations": planner_iterations(settings, tasks.action_dim),
    }
    return TDMPC2Config(**values)
