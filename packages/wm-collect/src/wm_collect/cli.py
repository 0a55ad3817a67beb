"""The command line every agent package installs: train, resume, evaluate, render, plot, info.

An agent package describes itself with an `AgentCommand` and calls `main`;
`wm_collect.cli_options` says what can be given.
"""

import contextlib
import dataclasses
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from wm_collect import reports
from wm_collect.agent import Agent, Frequencies
from wm_collect.checkpoint import CheckpointError, Checkpoints
from wm_collect.cli_options import (
    AgentCommand,
    EnvOptions,
    Evaluate,
    Plot,
    Render,
    Resume,
    RunOptions,
    parse,
)
from wm_collect.curves import plot_learning_curve
from wm_collect.failures import TrainingDiverged, TrainingInterrupted
from wm_collect.loop import RunState
from wm_collect.run_folder import RunFolder
from wm_collect.sinks import Sink, TensorBoardSink, WandbSink

_COMPLETE = 0
_FAILED = 1
_INTERRUPTED = 130


def main(command: AgentCommand, args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    User errors end with one sentence on standard error and status 1, Ctrl-C with status 130.
    """
    args = list(sys.argv[1:] if args is None else args)
    try:
        parsed = parse(command, args)
        if isinstance(parsed, Resume):
            _resume(command, parsed)
        elif isinstance(parsed, Evaluate):
            _evaluate(command, parsed)
        elif isinstance(parsed, Render):
            _render(command, parsed)
        elif isinstance(parsed, Plot):
            _plot(parsed)
        elif hasattr(parsed, "options"):
            _train(command, parsed)
        else:
            _info(command, parsed)
    except TrainingInterrupted as stopped:
        print(stopped, file=sys.stderr)
        return _INTERRUPTED
    except (ValueError, TypeError, OSError, ImportError, CheckpointError, TrainingDiverged) as e:
        if isinstance(e, TypeError) and e.__traceback__ is not None and _inside_library(e):
            raise
        print(f"{command.prog}: {e}", file=sys.stderr)
        return _FAILED
    return _COMPLETE


def _inside_library(error: BaseException) -> bool:
    """Return whether an error was raised outside our own checks: then its traceback is wanted."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is None or not trace.tb_frame.f_globals.get("__name__", "").startswith("wm_")


def _train(command: AgentCommand, parsed: Any) -> None:
    agent = _make_agent(command, parsed.env_id, parsed.settings, parsed.env)
    options: RunOptions = parsed.options
    agent.check_run(_seed(options.seed), options.n_timesteps, options.num_episode_test)
    frequencies = Frequencies.resolve(
        options.n_timesteps,
        options.log_frequency,
        options.eval_frequency,
        options.save_frequency,
    )
    run_values = dataclasses.asdict(options) | {
        "root": str(options.root),
        "seed": list(options.seed),
        "log_frequency": frequencies.log,
        "eval_frequency": frequencies.eval,
        "save_frequency": frequencies.save,
    }
    folder = RunFolder.create(
        options.root,
        options.name,
        settings={
            "agent": command.short_name,
            "env_id": parsed.env_id,
            "env": dataclasses.asdict(parsed.env),
            "protocol": parsed.protocol,
            "settings": dataclasses.asdict(parsed.settings),
            "run": run_values,
            "description": agent.describe(),
        },
        env_id=parsed.env_id.replace("/", "-"),
        agent=command.short_name,
    )
    _print_description(command, agent, parsed)
    print(f"Run folder: {_relative(folder.path)}")
    _run(command, agent, folder, None, options.n_timesteps, {})


def _resume(command: AgentCommand, parsed: Resume) -> None:
    folder, agent, run = _open(command, parsed.run)
    planned = run["n_timesteps"] if parsed.n_timesteps is None else parsed.n_timesteps
    if Checkpoints(folder.checkpoints).latest_tick() is None:
        print("No checkpoint was saved yet: starting from the beginning.")
        for log in (folder.metrics_jsonl, folder.metrics_csv):
            log.unlink(missing_ok=True)
        _run(command, agent, folder, None, planned, {})
        return
    state, metadata = _restore(agent, folder, run, None, fallback=parsed.fallback)
    done = metadata["timestep"]
    if done >= planned:
        raise ValueError(
            f"the run is complete with {done:,} timesteps; train it further with "
            f"--n-timesteps and a larger number."
        )
    print(f"Resuming {_relative(folder.path)} at {done:,} of {planned:,} timesteps.")
    _run(command, agent, folder, state, planned - done, metadata["log_state"])


def _evaluate(command: AgentCommand, parsed: Evaluate) -> None:
    agent, seeds, state, metadata = _trained(command, parsed)
    print(
        f"{agent.name} on {agent.env.spec.env_id} after {metadata['timestep']:,} timesteps, "
        f"{parsed.episodes} episode(s):"
    )
    for seed, one in _per_seed(seeds, state):
        result = agent.evaluate(one, n_episodes=parsed.episodes, seed=parsed.seed)
        returns = np.asarray(result.episode_return)
        print(
            f"training seed {seed}: mean return {returns.mean():.1f}, "
            f"standard deviation {returns.std():.1f}, from {returns.min():.1f} to "
            f"{returns.max():.1f}, mean length {np.mean(result.episode_length):.1f}"
        )


def _render(command: AgentCommand, parsed: Render) -> None:
    agent, seeds, state, _ = _trained(command, parsed)
    _, first = next(_per_seed(seeds, state))
    result = agent.evaluate(first, n_episodes=1, seed=parsed.seed, record=True)
    out = parsed.out or RunFolder.open(parsed.run).evaluation_gif
    reports.draw_episode(agent.env, result, out)
    print(f"Return {float(result.episode_return[0]):.1f}: {_relative(out.absolute())}")


def _plot(parsed: Plot) -> None:
    if not parsed.runs:
        raise ValueError("give at least one run folder to plot.")
    folders = [RunFolder.open(path) for path in parsed.runs]
    labels = {folder.path.name: folder.metrics_jsonl for folder in folders}
    plot_learning_curve(labels, parsed.out)
    print(_relative(parsed.out.absolute()))


def _info(command: AgentCommand, parsed: Any) -> None:
    agent = _make_agent(command, parsed.env_id, parsed.settings, parsed.env)
    _print_description(command, agent, parsed)


def _print_description(command: AgentCommand, agent: Agent, parsed: Any) -> None:
    """Print what there is to know before a run, and every setting that is not the paper's."""
    title = f"{agent.name}, protocol {parsed.protocol}"
    paper = command.settings()
    changed = []
    for field in dataclasses.fields(paper):
        value, default = getattr(parsed.settings, field.name), getattr(paper, field.name)
        if value != default:
            # A blank of the paper's settings follows from the model size or the task.
            stated = "" if default is None else f" (paper: {default})"
            changed.append(f"{field.name} {value}{stated}")
    departures = {"departures": ", ".join(changed) or "none: the paper's hyperparameters"}
    reports.print_description(agent.describe() | departures, title=title)


def _run(
    command: AgentCommand,
    agent: Agent,
    folder: RunFolder,
    state: RunState | None,
    n_timesteps: int,
    log_state: dict[str, Any],
) -> None:
    """Train in a run folder, then draw what it holds."""
    run = folder.settings["run"]
    with _extra_sinks(folder, run) as sinks:
        final, series = agent.train(
            seed=_seed(run["seed"]),
            n_timesteps=n_timesteps,
            initial_state=state,
            num_episode_test=run["num_episode_test"],
            log_frequency=run["log_frequency"],
            eval_frequency=run["eval_frequency"],
            save_frequency=run["save_frequency"],
            folder=folder,
            sinks=sinks,
            log_state=log_state or None,
            resume_hint=f"{command.prog} resume {shlex.quote(_relative(folder.path))}",
        )
    reports.draw_run(agent, folder)
    if run["animation"] or agent.predicts_observations:
        _, first = next(_per_seed(run["seed"], final))
        print("Drawing one evaluation episode.")
        result = agent.evaluate(first, n_episodes=1, record=True)
        if agent.predicts_observations:
            agent.draw_predictions(first, result, folder.open_loop)
        if run["animation"]:
            reports.draw_episode(agent.env, result, folder.evaluation_gif)
    reports.print_summary(folder, series, _relative)


@contextlib.contextmanager
def _extra_sinks(folder: RunFolder, run: Mapping[str, Any]) -> Iterator[list[Sink]]:
    sinks: list[Sink] = []
    if run["tensorboard"]:
        sinks.append(TensorBoardSink(folder.path / "tensorboard"))
    if run["wandb"]:
        sinks.append(
            WandbSink(
                run["wandb"],
                folder.path.name,
                folder.path / "wandb",
                config=folder.settings,
                run_id=folder.path.name,
            )
        )
    yield sinks


def _open(command: AgentCommand, path: Path) -> tuple[RunFolder, Agent, dict[str, Any]]:
    """Open a run folder and make its agent again."""
    folder = RunFolder.open(path)
    stored = folder.settings
    if stored.get("agent") != command.short_name:
        raise ValueError(
            f"{path} was trained by {stored.get('agent')!r}; {command.prog} reads runs of "
            f"{command.short_name!r}."
        )
    settings = command.settings(**stored["settings"])
    agent = _make_agent(command, stored["env_id"], settings, EnvOptions(**stored["env"]))
    return folder, agent, stored["run"]


def _trained(
    command: AgentCommand, parsed: Evaluate | Render
) -> tuple[Agent, list[int], RunState, dict[str, Any]]:
    """Return a run's agent, seeds, chosen checkpoint and its metadata."""
    folder, agent, run = _open(command, parsed.run)
    tick = Checkpoints(folder.checkpoints).best_tick() if parsed.best else None
    state, metadata = _restore(agent, folder, run, tick, fallback=parsed.fallback)
    return agent, run["seed"], state, metadata


def _restore(
    agent: Agent, folder: RunFolder, run: Mapping[str, Any], tick: int | None, *, fallback: bool
) -> tuple[RunState, dict[str, Any]]:
    """Read a checkpoint; the replay's size follows from the length the run then had."""
    checkpoints = Checkpoints(folder.checkpoints)
    if tick is None:
        tick = checkpoints.latest_tick()
        if tick is None:
            raise CheckpointError(f"{folder.checkpoints} has no checkpoint to restore")
    try:
        planned = checkpoints.metadata(tick)["n_timesteps"]
    except CheckpointError as error:
        if not fallback or error.fallback_tick is None:
            raise
        return _restore(agent, folder, run, error.fallback_tick, fallback=True)
    template = agent.state_like(_seed(run["seed"]), planned)
    return checkpoints.restore(template, tick, fallback=fallback)


def _make_agent(command: AgentCommand, env_id: str, settings: Any, env: EnvOptions) -> Agent:
    values = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
    return command.agent(env_id, **values, env_params=env.env_params, terminates=env.terminates)


def _seed(seeds: Sequence[int]) -> int | list[int]:
    """Return one seed as a number, which trains without a seed axis, or several as a list."""
    return seeds[0] if len(seeds) == 1 else list(seeds)


def _per_seed(seeds: Sequence[int], state: RunState) -> Iterator[tuple[int, RunState]]:
    """Yield each seed with its own state, without a seed axis."""
    if len(seeds) == 1:
        yield seeds[0], state
        return
    for i, seed in enumerate(seeds):
        yield seed, jax.tree.map(lambda leaf, i=i: leaf[i], state)


def _relative(path: Path) -> str:
    """Return the path as a user in this folder would type it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
