"""What the command line tells about a run: a few lines (`info`) or a page (`report`)."""

from collections.abc import Callable, Sequence
from pathlib import Path

from wm_collect import run_output
from wm_collect.agent import Agent, Trainer
from wm_collect.checkpoint import Checkpoints
from wm_collect.cli_options import Report
from wm_collect.cli_runs import per_seed, relative, restore
from wm_collect.loop import RunState
from wm_collect.protocol import paper_departures
from wm_collect.report import Section, diagnosed_section, run_facts, write_report
from wm_collect.run_folder import RunFolder
from wm_collect.seed_series import Rows

Examine = Callable[[int, RunState], Sequence[Section]]
"""`examine(seed, state)`: the sections of a report on one training seed's state."""


def print_run(trainer: Trainer, folder: RunFolder) -> None:
    """Print what a run is, how far it came and what it has saved.

    Args:
        trainer: the run's agent.
        folder: its run folder.
    """
    ticks = Checkpoints(folder.checkpoints).ticks()
    timesteps = ", ".join(f"{trainer.clock.timestep(tick):,}" for tick in ticks)
    saved = {"checkpoints": f"after {timesteps} {trainer.clock.unit}" if ticks else "none"}
    run_output.print_description(
        trainer.describe() | _facts(trainer, folder, folder.log_rows()) | saved,
        title=f"{trainer.name} on {trainer.subject}",
    )


def report_agent(agent: Agent, folder: RunFolder, options: Report) -> None:
    """Write the report of a run on one environment, and print where it is.

    Args:
        agent: the run's agent.
        folder: its run folder.
        options: what the user asked for.
    """

    def examine(training_seed: int, state: RunState) -> list[Section]:
        return [
            diagnosed_section(
                agent,
                state,
                title=f"training seed {training_seed}",
                n_episodes=options.episodes,
                seed=options.seed,
            )
        ]

    report_run(agent, folder, options, examine)


def report_run(trainer: Trainer, folder: RunFolder, options: Report, examine: Examine) -> None:
    """Write a run's report, its seeds examined one after the other, and print where it is.

    A run without a checkpoint is reported by its log alone.

    Raises:
        ValueError: the number of episodes is below 1.
        CheckpointError: the checkpoint cannot be read.
    """
    if options.episodes < 1:
        raise ValueError(f"episodes must be at least 1, got {options.episodes}.")
    rows = folder.log_rows()
    unit = trainer.clock.unit
    sections: list[Section] = []
    if Checkpoints(folder.checkpoints).latest_tick() is None:
        note = "The run has no checkpoint yet: this page shows its log only."
        print(note)
    else:
        state, metadata = restore(trainer, folder, best=options.best, fallback=options.fallback)
        which = "with the best evaluation" if options.best else "the newest"
        note = (
            f"Examined: the checkpoint after {metadata['timestep']:,} {unit} ({which}), on "
            f"{options.episodes} evaluation episode(s) drawn with the seed {options.seed}."
        )
        for training_seed, one in per_seed(folder.settings["run"]["seed"], state):
            print(f"Examining training seed {training_seed} on {options.episodes} episode(s).")
            sections += examine(training_seed, one)
    path: Path = write_report(
        folder,
        title=f"{trainer.name} on {trainer.subject}",
        facts=_facts(trainer, folder, rows),
        rows=rows,
        unit=unit,
        log_panels=trainer.log_panels,
        sections=sections,
        note=note,
    )
    print(relative(path))


def _facts(trainer: Trainer, folder: RunFolder, rows: Rows) -> dict[str, str]:
    """Return what a run was and how far it came."""
    return run_facts(folder, rows, trainer.clock.unit, paper_departures(trainer.settings))
