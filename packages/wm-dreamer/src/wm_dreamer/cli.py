"""The command `wm-dreamer`."""

import sys
from collections.abc import Sequence

from wm_collect import cli
from wm_collect.cli_options import AgentCommand
from wm_dreamer.agent import DreamerV3
from wm_dreamer.config import DreamerV3Settings

COMMAND = AgentCommand(
    prog="wm-dreamer",
    short_name="dreamerv3",
    agent=DreamerV3,
    settings=DreamerV3Settings,
)


def run(args: Sequence[str] | None = None) -> int:
    """Run the command line with the given arguments and return its exit status."""
    return cli.main(COMMAND, args)


def main() -> None:
    """Run the command line and exit."""
    sys.exit(run())
