"""The command `wm-tdmpc2`."""

import sys
from collections.abc import Sequence

from wm_collect import cli
from wm_collect.cli_options import AgentCommand
from wm_tdmpc2.agent import TDMPC2
from wm_tdmpc2.config import TDMPC2Settings
from wm_tdmpc2.deploy import PlannerBudget

COMMAND = AgentCommand(
    prog="wm-tdmpc2",
    short_name="tdmpc2",
    agent=TDMPC2,
    settings=TDMPC2Settings,
    budget=PlannerBudget,
)


def run(args: Sequence[str] | None = None) -> int:
    """Run the command line with the given arguments and return its exit status."""
    return cli.main(COMMAND, args)


def main() -> None:
    """Run the command line and exit."""
    sys.exit(run())
