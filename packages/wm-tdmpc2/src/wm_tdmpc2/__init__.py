"""TD-MPC2 for one task: a latent world model, a planner, and one compiled training program.

`TDMPC2` is the agent. The functions below it are the pure pieces it is made of, usable alone.
"""

from importlib.metadata import version

from wm_tdmpc2.agent import TDMPC2
from wm_tdmpc2.config import (
    MODEL_SIZES,
    ModelSettings,
    TDMPC2Config,
    TDMPC2Settings,
    default_seed_steps,
    discount,
    resolve_config,
)
from wm_tdmpc2.noise import PlanNoise, UpdateNoise, draw_plan_noise, draw_update_noise
from wm_tdmpc2.planner import PlanOutput, plan
from wm_tdmpc2.schedule import RowSchedule, Schedule, schedule_of
from wm_tdmpc2.task_context import TaskContext
from wm_tdmpc2.train import TDMPC2State, planning_policy
from wm_tdmpc2.update import Batch, LearnerState, init_learner, update

__version__ = version("wm-tdmpc2")

__all__ = [
    "MODEL_SIZES",
    "TDMPC2",
    "Batch",
    "LearnerState",
    "ModelSettings",
    "PlanNoise",
    "PlanOutput",
    "RowSchedule",
    "Schedule",
    "TDMPC2Config",
    "TDMPC2Settings",
    "TDMPC2State",
    "TaskContext",
    "UpdateNoise",
    "default_seed_steps",
    "discount",
    "draw_plan_noise",
    "draw_update_noise",
    "init_learner",
    "plan",
    "planning_policy",
    "resolve_config",
    "schedule_of",
    "update",
]
