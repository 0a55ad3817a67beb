"""What the check of an environment found."""

import dataclasses
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

Severity = Literal["error", "warning"]


@dataclasses.dataclass(frozen=True)
class Finding:
    """One broken rule.

    Attributes:
        severity: "error" if training fails or learns something wrong, "warning" if it works but
            perhaps not as meant.
        rule: short name of the rule, the same for every environment that breaks it.
        message: what was found and what to change, in sentences.
    """

    severity: Severity
    rule: str
    message: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvReport:
    """All findings about one environment.

    Attributes:
        env_id: its name.
        findings: the broken rules, errors first.
        n_steps: agent steps that each of `n_episodes` episodes was run for; 0 if it could not be
            run.
        n_episodes: episodes that were run, side by side.
    """

    env_id: str
    findings: tuple[Finding, ...]
    n_steps: int
    n_episodes: int

    @property
    def ok(self) -> bool:
        """Whether there is no error; there may be warnings."""
        return all(finding.severity != "error" for finding in self.findings)

    def raise_if_bad(self) -> None:
        """Raise if there is an error.

        Raises:
            ValueError: with the messages of all errors.
        """
        errors = [f"{f.rule}: {f.message}" for f in self.findings if f.severity == "error"]
        if errors:
            raise ValueError(f"The environment {self.env_id!r} breaks rules.\n" + "\n".join(errors))

    def print(self, console: Console | None = None) -> None:
        """Print the findings as a table.

        Args:
            console: where to; None is standard output.
        """
        console = console or Console(highlight=False)
        extent = (
            f"{self.n_episodes} episodes, {self.n_steps:,} agent steps of each"
            if self.n_steps
            else "not run, because of the errors"
        )
        if not self.findings:
            console.print(f"{self.env_id}: nothing is wrong ({extent}).", markup=False)
            return
        table = Table(title=f"{self.env_id}: {extent}", title_justify="left", box=box.SIMPLE)
        table.add_column("", no_wrap=True)
        table.add_column("rule", no_wrap=True, style="bold")
        table.add_column("what was found, and what to change", overflow="fold")
        for finding in self.findings:
            colour = "red" if finding.severity == "error" else "yellow"
            table.add_row(f"[{colour}]{finding.severity}[/]", finding.rule, Text(finding.message))
        console.print(table)
