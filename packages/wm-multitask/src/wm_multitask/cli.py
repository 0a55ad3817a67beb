"""The command `wm-multitask`: from single-task runs to a dataset, from a dataset to an agent."""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import jax
import numpy as np
import tyro

from wm_collect import cli as agent_cli
from wm_collect import doctor, run_output
from wm_collect.cli_export import export_run
from wm_collect.cli_options import Doctor, Plot, Render, Report, Resume, settings_registry
from wm_collect.cli_options import Export as ExportRun
from wm_collect.cli_report import print_run, report_run
from wm_collect.cli_runs import (
    continue_run,
    exit_status,
    per_seed,
    relative,
    report_command,
    restore,
    run_settings,
    seed_argument,
    train_in_folder,
)
from wm_collect.loop import RunState
from wm_collect.protocol import paper_departures
from wm_collect.report import Section, section
from wm_collect.run_folder import RunFolder
from wm_multitask.agent import NORMALISED_SCORE, TDMPC2MultiTask
from wm_multitask.config import MultiTaskSettings
from wm_multitask.dataset import MultiTaskDataset, pool_tasks
from wm_multitask.export import export_episodes
from wm_multitask.files import load_dataset, load_episodes, save_dataset, save_episodes
from wm_tdmpc2 import TDMPC2
from wm_tdmpc2.cli import COMMAND as SINGLE_TASK
from wm_tdmpc2.deploy import PlannerBudget

PROG = "wm-multitask"
DEFAULTS = MultiTaskSettings()
FULL_BUDGET = PlannerBudget()
SHORT_NAME = "multitask"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Export:
    """Write the episodes of a single-task run to a file (a policy: export-policy)."""

    run: Annotated[Path, tyro.conf.Positional]
    """Run folder of wm-tdmpc2."""
    out: Annotated[Path, tyro.conf.Positional]
    """File to write, an .npz."""
    name: str | None = None
    """The task's name; None is the environment's id."""
    full_history: bool = True
    """Refuse a run whose replay has already dropped its first episodes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pool:
    """Put the episodes of several tasks into one dataset."""

    episodes: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Files that export wrote; tasks are numbered in their order."""
    out: Path = Path("dataset.npz")
    """File to write, an .npz."""
    max_episodes_per_task: int | None = None
    """Keep so many episodes of each task, spread evenly over its history; None keeps all."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """Read a dataset through and name everything that is wrong with it."""

    dataset: Annotated[Path, tyro.conf.Positional]
    """File that pool wrote."""
    hash: str | None = None
    """The content hash it must have."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How long to train, and what to write down."""

    n_timesteps: int = 100_000
    """Updates to train for."""
    seed: tuple[int, ...] = (0,)
    """One seed, or several that train side by side."""
    num_episode_test: int = 10
    """Episodes of each task in one evaluation; 0 for none."""
    log_frequency: int | None = None
    """Updates between log rows; None gives 50 rows."""
    eval_frequency: int | None = None
    """Updates between evaluations; None gives 4."""
    save_frequency: int | None = None
    """Updates between checkpoints; None saves with each evaluation."""
    save_minutes: float | None = None
    """Also save when the last checkpoint is older than so many minutes."""
    root: Path = Path("runs")
    """Folder of all runs."""
    name: str | None = None
    """Folder of this run inside root; None makes one from agent and time."""
    tensorboard: bool = False
    """Also write TensorBoard files into the run folder."""
    wandb: str | None = None
    """Also log to this Weights & Biases project."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Info:
    """Print what there is to know about a run before it, memory included, or about one made."""

    dataset: Annotated[Path, tyro.conf.Positional]
    """File that pool wrote; info also takes a run folder."""
    settings: Annotated[MultiTaskSettings, tyro.conf.arg(name="")] = DEFAULTS
    options: Annotated[RunOptions, tyro.conf.arg(name="")] = RunOptions()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train(Info):
    """Train one agent on all tasks of a dataset, in a new run folder."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Measure a trained run on fresh episodes of each task."""

    run: Annotated[Path, tyro.conf.Positional]
    """The run folder."""
    tasks: tuple[str, ...] = ()
    """Names of the tasks; none given measures all."""
    episodes: int = 10
    """Episodes of each task."""
    seed: int = 0
    """Draws the episodes."""
    best: bool = False
    """Use the checkpoint with the best evaluation instead of the newest."""
    fallback: bool = False
    """If the checkpoint is damaged, use the one before it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RenderTask(Render):
    """Draw an episode of one task of a trained run as an animation."""

    task: str | None = None
    """Name of the task; may be left out if there is only one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportPolicy(ExportRun):
    """Write a trained policy of one task to a folder that acts without the training code."""

    task: str | None = None
    """Name of the task; may be left out if there is only one."""
    budget: Annotated[PlannerBudget, tyro.conf.arg(name="")] = FULL_BUDGET


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportTasks(Report):
    """Examine a trained run task by task, and write a page that explains its curve."""

    tasks: tuple[str, ...] = ()
    """Names of the tasks; none given examines all."""


_COMMANDS = (
    Annotated[Export, tyro.conf.subcommand("export")]
    | Annotated[Pool, tyro.conf.subcommand("pool")]
    | Annotated[Check, tyro.conf.subcommand("check")]
    | Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Resume, tyro.conf.subcommand("resume")]
    | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
    | Annotated[RenderTask, tyro.conf.subcommand("render")]
    | Annotated[ExportPolicy, tyro.conf.subcommand("export-policy")]
    | Annotated[ReportTasks, tyro.conf.subcommand("report")]
    | Annotated[Plot, tyro.conf.subcommand("plot")]
    | Annotated[Info, tyro.conf.subcommand("info")]
    | Annotated[Doctor, tyro.conf.subcommand("doctor")]
)


def run(args: Sequence[str] | None = None) -> int:
    """Run the command line with the given arguments and return its exit status."""
    args = list(sys.argv[1:] if args is None else args)

    def action() -> int | None:
        with settings_registry(MultiTaskSettings):
            parsed: Any = tyro.cli(
                _COMMANDS, args=args, prog=PROG, config=(tyro.conf.OmitArgPrefixes,)
            )
        actions: dict[type, Callable[[Any], int | None]] = {
            Export: _export,
            Pool: _pool,
            Check: _check,
            Train: _train,
            Resume: _resume,
            Evaluate: _evaluate,
            RenderTask: _render,
            ExportPolicy: _export_policy,
            ReportTasks: _report,
            Plot: agent_cli.plot,
            Info: _info,
            Doctor: lambda parsed: doctor.print_checks(),
        }
        return actions[type(parsed)](parsed)

    return exit_status(PROG, action)


def main() -> None:
    """Run the command line and exit."""
    sys.exit(run())


def _export(parsed: Export) -> None:
    folder, opened = agent_cli.open_run(SINGLE_TASK, parsed.run)
    agent = cast(TDMPC2, opened)
    state, metadata = restore(agent, folder)
    episodes = export_episodes(
        agent,
        state,
        name=parsed.name,
        full_history=parsed.full_history,
    )
    path = save_episodes(episodes, parsed.out)
    print(
        f"{relative(path.absolute())}: {episodes.n_episodes:,} episodes of "
        f"{episodes.task.episode_length:,} agent steps of {episodes.task.name}, "
        f"from {metadata['timestep']:,} timesteps."
    )


def _pool(parsed: Pool) -> None:
    if not parsed.episodes:
        raise ValueError("give at least one file of episodes to pool.")
    episodes = [load_episodes(path) for path in parsed.episodes]
    dataset = pool_tasks(episodes, max_episodes_per_task=parsed.max_episodes_per_task)
    path = save_dataset(dataset, parsed.out)
    _print_dataset(path, dataset)


def _check(parsed: Check) -> None:
    dataset = load_dataset(parsed.dataset, expected_hash=parsed.hash)
    _print_dataset(parsed.dataset, dataset)
    print("Nothing is wrong with it.")


def _print_dataset(path: Path, dataset: MultiTaskDataset) -> None:
    print(
        f"{relative(path.absolute())}: {dataset.n_episodes:,} episodes of {dataset.n_rows:,} rows"
    )
    for name, n_episodes in zip(dataset.tasks.names, dataset.episodes_per_task, strict=True):
        print(f"  {name}: {n_episodes:,} episodes")
    print(f"content hash {dataset.content_hash}")


def _info(parsed: Info) -> None:
    if parsed.dataset.is_dir():
        folder, agent = open_run(parsed.dataset)
        agent_cli.require_no_options(parsed, Info(dataset=parsed.dataset))
        print_run(agent, folder)
        return
    agent = _make_agent(parsed.dataset, parsed.settings, None)
    memory = agent.forecast(parsed.options.n_timesteps, n_seeds=len(parsed.options.seed))
    _print_description(agent, parsed.settings, memory.describe())
    memory.check()


def _train(parsed: Train) -> None:
    agent = _make_agent(parsed.dataset, parsed.settings, None)
    options = parsed.options
    agent.check_run(seed_argument(options.seed), options.n_timesteps, options.num_episode_test)
    folder = RunFolder.create(
        options.root,
        options.name,
        settings={
            "agent": SHORT_NAME,
            "dataset": str(parsed.dataset.absolute()),
            "dataset_hash": agent.dataset.content_hash,
            "tasks": agent.tasks.to_json(),
            "settings": dataclasses.asdict(parsed.settings),
            "run": run_settings(options),
            "description": agent.describe(),
        },
        env_id=f"{agent.tasks.n_tasks}-tasks",
        agent=SHORT_NAME,
    )
    _print_description(agent, parsed.settings)
    print(f"Run folder: {relative(folder.path)}")
    _run(agent, folder, None, options.n_timesteps, {})


def _resume(parsed: Resume) -> None:
    folder, agent = open_run(parsed.run)
    state, further, log_state = continue_run(
        agent, folder, parsed.n_timesteps, fallback=parsed.fallback
    )
    _run(agent, folder, state, further, log_state)


def _run(
    agent: TDMPC2MultiTask,
    folder: RunFolder,
    state: RunState | None,
    n_timesteps: int,
    log_state: dict[str, Any],
) -> None:
    """Train in a run folder, then draw what it holds."""
    _, series = train_in_folder(agent, folder, state, n_timesteps, log_state, prog=PROG)
    run_output.draw_run(agent, folder)
    run_output.print_summary(folder, series, relative)
    print(f"To see why: {report_command(PROG, folder)}")


def _evaluate(parsed: Evaluate) -> None:
    folder, agent = open_run(parsed.run)
    state, metadata = restore(agent, folder, best=parsed.best, fallback=parsed.fallback)
    print(
        f"{agent.name} after {metadata['timestep']:,} updates, {parsed.episodes} episode(s) of "
        "each task:"
    )
    for seed, one in per_seed(folder.settings["run"]["seed"], state):
        results = agent.evaluate(
            one, n_episodes=parsed.episodes, seed=parsed.seed, tasks=parsed.tasks or None
        )
        print(f"training seed {seed}:")
        for task, result in results.items():
            returns = np.asarray(result.episode_return)
            print(
                f"  {task}: mean return {returns.mean():.1f}, "
                f"standard deviation {returns.std():.1f}"
            )
        score = np.mean([np.mean(result.episode_return) for result in results.values()]) / 10
        print(f"  {NORMALISED_SCORE.partition('/')[2]} {score:.1f}")


def _render(parsed: RenderTask) -> None:
    folder, agent = open_run(parsed.run)
    index = agent.tasks.chosen(parsed.task)
    name = agent.tasks.names[index]
    state, _ = restore(agent, folder, best=parsed.best, fallback=parsed.fallback)
    _, first = next(per_seed(folder.settings["run"]["seed"], state))
    result = agent.evaluate(first, n_episodes=1, seed=parsed.seed, tasks=[name], record=True)[name]
    out = parsed.out or folder.evaluation_gif
    run_output.draw_episode(agent.envs[index], result, out)
    print(f"{name}: return {float(result.episode_return[0]):.1f}: {relative(out.absolute())}")


def _export_policy(parsed: ExportPolicy) -> None:
    folder, agent = open_run(parsed.run)
    export_run(agent, folder, parsed, {"task": parsed.task, **dataclasses.asdict(parsed.budget)})


def _report(parsed: ReportTasks) -> None:
    folder, agent = open_run(parsed.run)
    tasks = parsed.tasks or agent.tasks.names
    for task in tasks:
        agent.tasks.index(task)  # an unknown name is refused before anything is played

    def examine(training_seed: int, state: RunState) -> list[Section]:
        sections = []
        for task in tasks:
            episodes = agent.record_episodes(
                state, task, n_episodes=parsed.episodes, seed=parsed.seed
            )
            diagnostics = agent.diagnose(state, task, episodes, jax.random.key(parsed.seed))
            title = f"{task}, training seed {training_seed}"
            env = agent.envs[agent.tasks.index(task)]
            sections.append(section(title, env, episodes, diagnostics))
        return sections

    report_run(agent, folder, parsed, examine)


def open_run(path: Path) -> tuple[RunFolder, TDMPC2MultiTask]:
    """Open a run folder and make its agent again, on the same data."""
    folder = RunFolder.open(path)
    stored = folder.settings
    if stored.get("agent") != SHORT_NAME:
        raise ValueError(
            f"{path} was trained by {stored.get('agent')!r}; {PROG} reads runs of {SHORT_NAME!r}."
        )
    settings = MultiTaskSettings(**stored["settings"])
    return folder, _make_agent(Path(stored["dataset"]), settings, stored["dataset_hash"])


def _make_agent(
    dataset: Path, settings: MultiTaskSettings, expected_hash: str | None
) -> TDMPC2MultiTask:
    values = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
    return TDMPC2MultiTask(load_dataset(dataset, expected_hash=expected_hash), **values)


def _print_description(
    agent: TDMPC2MultiTask, settings: MultiTaskSettings, memory: dict[str, str] | None = None
) -> None:
    lines = agent.describe() | (memory or {}) | {"departures": paper_departures(settings)}
    run_output.print_description(lines, title=agent.name)
