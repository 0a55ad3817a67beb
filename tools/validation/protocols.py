"""What is run for each algorithm: its registered protocol, tasks, budgets and seeds."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from validation import tasks
from validation.curves import REFERENCE
from wm_collect.cli_options import AgentCommand
from wm_collect.metrics import EVAL_RETURN, TRAIN_RETURN
from wm_dreamer.cli import COMMAND as DREAMERV3_COMMAND
from wm_tdmpc2.cli import COMMAND as TDMPC2_COMMAND

ROOT = Path("runs/validation")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Validation:
    """Runs of one algorithm that are compared with published curves.

    Attributes:
        name: names the folder of the runs.
        command: the agent.
        protocol: name of the agent's registered protocol, which is what a judged run follows.
        settings: settings of the agent beyond the protocol's.
        run: options of `train`; those that decide what a score is are part of the protocol.
        budgets: environment frames of each task's run, by the id of its environment.
        seeds: the seeds to train; a task needs at least as many to be judged.
        score: the column of the log that is scored: training or evaluation returns.
        reference: file of the published curves.
    """

    name: str
    command: AgentCommand
    protocol: str
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    run: Mapping[str, Any]
    budgets: Mapping[str, int]
    seeds: tuple[int, ...]
    score: str
    reference: Path

    @property
    def registered(self) -> Any:
        """Return the settings that a judged run has, a dataclass."""
        protocol = self.command.agent.protocols[self.protocol]
        return self.command.settings(**{**protocol.settings, **self.settings})

    @property
    def registered_run(self) -> dict[str, Any]:
        """Return the options of `train` without which a score would mean something else."""
        names = ["eval_frequency", "num_episode_test"]
        if self.score == TRAIN_RETURN:
            names = ["log_frequency"]
        return {name: self.run[name] for name in names}

    @property
    def score_every(self) -> int:
        """Return the timesteps between two values of the score."""
        return self.run["log_frequency" if self.score == TRAIN_RETURN else "eval_frequency"]

    def n_timesteps(self, env_id: str) -> int:
        """Return the length of a task's run in the agent's timesteps."""
        return self.budgets[env_id] // self.registered.action_repeat


# Training episodes are scored, as in the paper; evaluations are for the reader of a run.
DREAMERV3 = Validation(
    name="dreamerv3",
    command=DREAMERV3_COMMAND,
    protocol="dmc-proprio-paper",
    run={
        "log_frequency": 5_000,
        "eval_frequency": 25_000,
        "num_episode_test": 10,
        "animation": False,
    },
    budgets=dict.fromkeys(tasks.DREAMERV3.values(), 500_000),
    seeds=(0, 1, 2, 3, 4),
    score=TRAIN_RETURN,
    reference=REFERENCE / "dreamerv3_dmc_proprio.json",
)

# Where the published curves end: frames are twice the agent steps.
_TDMPC2_BUDGETS = dict.fromkeys(tasks.TDMPC2.values(), 4_000_000) | dict.fromkeys(
    ("HumanoidRun", "HumanoidStand", "HumanoidWalk"), 14_000_000
)

TDMPC2 = Validation(
    name="tdmpc2",
    command=TDMPC2_COMMAND,
    protocol="dmc-paper",
    run={
        "log_frequency": 10_000,
        "eval_frequency": 50_000,
        "num_episode_test": 10,
        "animation": False,
    },
    budgets=_TDMPC2_BUDGETS,
    seeds=(1, 2, 3),
    score=EVAL_RETURN,
    reference=REFERENCE / "tdmpc2_dmc.json",
)

VALIDATIONS = {validation.name: validation for validation in (DREAMERV3, TDMPC2)}
