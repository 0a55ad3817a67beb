"""Multi-task TD-MPC2: one world model and planner for many tasks, learned offline from a dataset.

`TDMPC2MultiTask` is the agent. `export_episodes`, `pool_tasks`, `save_dataset` and `load_dataset`
make the dataset it learns from.
"""

from importlib.metadata import version

from wm_multitask.agent import TDMPC2MultiTask
from wm_multitask.config import MultiTaskSettings, resolve_config
from wm_multitask.dataset import MultiTaskDataset, TaskEpisodes, pool_tasks
from wm_multitask.export import export_episodes
from wm_multitask.files import load_dataset, load_episodes, save_dataset, save_episodes
from wm_multitask.sampling import OfflineData, sample
from wm_multitask.tasks import Task, TaskSet
from wm_multitask.train import MultiTaskState, task_context, task_policy

__version__ = version("wm-multitask")

__all__ = [
    "MultiTaskDataset",
    "MultiTaskSettings",
    "MultiTaskState",
    "OfflineData",
    "TDMPC2MultiTask",
    "Task",
    "TaskEpisodes",
    "TaskSet",
    "export_episodes",
    "load_dataset",
    "load_episodes",
    "pool_tasks",
    "resolve_config",
    "sample",
    "save_dataset",
    "save_episodes",
    "task_context",
    "task_policy",
]
