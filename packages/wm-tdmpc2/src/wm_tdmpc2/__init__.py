"""TD-MPC2 for one task: a latent world model, a planner, and one compiled training program.

`TDMPC2` is the agent. The functions below it are the pure pieces it is made of, usable alone.
"""

from importlib.metadata import version

from wm_tdmpc2.agent import TDMPC2
from wm_tdmpc2.config import (
    MODEL_SIZES,
    TDMPC2Config,
    TDMPC2Settings,
    default_seed_steps,
    discount,
    resolve_config,
)
from wm_tdmpc2.noise import PlanNoise, UpdateNoise, draw_plan_noise, draw_update_noise
from wm_tdmpc2.planner import PlanOutput, plan
from wm_tdmpc2.schedule import Schedule
from wm_tdmpc2.train import TDMPC2State, planning_policy
from wm_tdmpc2.update import Batch, LearnerState, init_learner, update

__version__ = version("wm-tdmpc2")

__all__ = [
    # The agent
    "TDMPC2",
    "TDMPC2State",
    # Settings
    "MODEL_SIZES",
    "TDMPC2Config",
    "TDMPC2Settings",
    "default_seed_steps",
    "discount",
    "resolve_config",
    # Learning
    "Batch",
    "LearnerState",
    "UpdateNoise",
    "draw_update_noise",
    "init_learner",
    "update",
    # Planning
    "PlanNoise",
    "PlanOutput",
    "draw_plan_noise",
    "plan",
    "planning_policy",
    # Schedule
    "Schedule",
]
