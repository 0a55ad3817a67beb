"""DreamerV3: a recurrent latent world model, and an actor and a critic that learn in it.

`DreamerV3` is the agent. The functions below it are the pure pieces it is made of, usable alone.
"""

from importlib.metadata import version

from wm_dreamer.agent import DreamerV3
from wm_dreamer.config import MODEL_SIZES, DreamerV3Config, DreamerV3Settings, resolve_config
from wm_dreamer.imagination import Imagined, imagine
from wm_dreamer.losses import Sequences, loss, sequences
from wm_dreamer.noise import ActNoise, UpdateNoise, draw_act_noise, draw_update_noise
from wm_dreamer.observe_sequence import observe
from wm_dreamer.optimizer import adaptive_gradient_clip, laprop, scale_by_laprop, warmup_schedule
from wm_dreamer.policy import Decision, PolicyCarry, act, initial_carry
from wm_dreamer.returns import lambda_return, replay_return
from wm_dreamer.rssm import (
    Observed,
    RSSMState,
    imagine_step,
    initial_state,
    observe_step,
)
from wm_dreamer.schedule import Schedule
from wm_dreamer.train import DreamerV3State, filtering_policy
from wm_dreamer.update import Latents, LearnerState, init_learner, update

__version__ = version("wm-dreamer")

__all__ = [
    "MODEL_SIZES",
    "ActNoise",
    "Decision",
    "DreamerV3",
    "DreamerV3Config",
    "DreamerV3Settings",
    "DreamerV3State",
    "Imagined",
    "Latents",
    "LearnerState",
    "Observed",
    "PolicyCarry",
    "RSSMState",
    "Schedule",
    "Sequences",
    "UpdateNoise",
    "act",
    "adaptive_gradient_clip",
    "draw_act_noise",
    "draw_update_noise",
    "filtering_policy",
    "imagine",
    "imagine_step",
    "init_learner",
    "initial_carry",
    "initial_state",
    "lambda_return",
    "laprop",
    "loss",
    "observe",
    "observe_step",
    "replay_return",
    "resolve_config",
    "scale_by_laprop",
    "sequences",
    "update",
    "warmup_schedule",
]
