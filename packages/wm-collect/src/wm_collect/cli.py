"""The command line every agent package installs: train, resume, evaluate, export and the rest.

An agent package describes itself with an `AgentCommand` and calls `main`;
`wm_collect.cli_options` says what can be given.
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wm_collect import doctor, run_output
from wm_collect.agent import Agent
from wm_collect.cli_check import check_environment
from wm_collect.cli_export import export_run
from wm_collect.cli_options import (
    AgentCommand,
    CheckEnv,
    Doctor,
    EnvOptions,
    Evaluate,
    Export,
    Plot,
    Render,
    Report,
    Resume,
    RunOptions,
    parse,
)
from wm_collect.cli_report import print_run, report_agent
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
from wm_collect.curves import plot_learning_curve
from wm_collect.loop import RunState
from wm_collect.protocol import PAPER, changes
from wm_collect.run_folder import RunFolder


def main(command: AgentCommand, args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status, see `wm_collect.cli_runs.exit_status`."""
    args = list(sys.argv[1:] if args is None else args)

    def action() -> int | None:
        parsed = parse(command, args)
        if isinstance(parsed, CheckEnv):
            return check_environment(parsed)
        if isinstance(parsed, Doctor):
            return doctor.print_checks()
        if isinstance(parsed, Resume):
            _resume(command, parsed)
        elif isinstance(parsed, Evaluate):
            _evaluate(command, parsed)
        elif isinstance(parsed, Render):
            _render(command, parsed)
        elif isinstance(parsed, Export):
            _export(command, parsed)
        elif isinstance(parsed, Report):
            _report(command, parsed)
        elif isinstance(parsed, Plot):
            plot(parsed)
        elif parsed.trains:
            _train(command, parsed)
        else:
            _info(command, parsed)
        return None

    return exit_status(command.prog, action)


def _train(command: AgentCommand, parsed: Any) -> None:
    agent = _make_agent(command, parsed.env_id, parsed.settings, parsed.env, parsed.protocol)
    options: RunOptions = parsed.options
    agent.check_run(seed_argument(options.seed), options.n_timesteps, options.num_episode_test)
    folder = RunFolder.create(
        options.root,
        options.name,
        settings={
            "agent": command.short_name,
            "env_id": parsed.env_id,
            "env": dataclasses.asdict(parsed.env),
            "protocol": parsed.protocol,
            "settings": dataclasses.asdict(parsed.settings),
            "run": run_settings(options),
            "description": agent.describe(),
            "departures": _departures(agent, parsed),
        },
        env_id=parsed.env_id.replace("/", "-"),
        agent=command.short_name,
    )
    _print_description(agent, agent.describe() | _departures(agent, parsed))
    print(f"Run folder: {relative(folder.path)}")
    _run(command, agent, folder, None, options.n_timesteps, {})


def _resume(command: AgentCommand, parsed: Resume) -> None:
    folder, agent = open_run(command, parsed.run)
    state, further, log_state = continue_run(
        agent, folder, parsed.n_timesteps, fallback=parsed.fallback
    )
    _run(command, agent, folder, state, further, log_state)


def _evaluate(command: AgentCommand, parsed: Evaluate) -> None:
    agent, seeds, state, metadata = _trained(command, parsed)
    print(
        f"{agent.name} on {agent.env.spec.env_id} after {metadata['timestep']:,} timesteps, "
        f"{parsed.episodes} episode(s):"
    )
    for seed, one in per_seed(seeds, state):
        result = agent.evaluate(one, n_episodes=parsed.episodes, seed=parsed.seed)
        returns = np.asarray(result.episode_return)
        print(
            f"training seed {seed}: mean return {returns.mean():.1f}, "
            f"standard deviation {returns.std():.1f}, from {returns.min():.1f} to "
            f"{returns.max():.1f}, mean length {np.mean(result.episode_length):.1f}"
        )


def _render(command: AgentCommand, parsed: Render) -> None:
    agent, seeds, state, _ = _trained(command, parsed)
    _, first = next(per_seed(seeds, state))
    result = agent.evaluate(first, n_episodes=1, seed=parsed.seed, record=True)
    out = parsed.out or RunFolder.open(parsed.run).evaluation_gif
    run_output.draw_episode(agent.env, result, out)
    print(f"Return {float(result.episode_return[0]):.1f}: {relative(out.absolute())}")


def _export(command: AgentCommand, parsed: Any) -> None:
    folder, agent = open_run(command, parsed.run)
    export_run(agent, folder, parsed, dataclasses.asdict(parsed.budget))


def _report(command: AgentCommand, parsed: Report) -> None:
    folder, agent = open_run(command, parsed.run)
    report_agent(agent, folder, parsed)


def plot(parsed: Plot) -> None:
    """Draw the learning curves of run folders over each other."""
    if not parsed.runs:
        raise ValueError("give at least one run folder to plot.")
    folders = [RunFolder.open(path) for path in parsed.runs]
    labels = {folder.path.name: folder.metrics_jsonl for folder in folders}
    plot_learning_curve(labels, parsed.out)
    print(relative(parsed.out.absolute()))


def _info(command: AgentCommand, parsed: Any) -> None:
    if Path(parsed.env_id).is_dir():
        folder, agent = open_run(command, Path(parsed.env_id))
        require_no_options(parsed, type(parsed)(env_id=parsed.env_id))
        print_run(agent, folder)
        return
    agent = _make_agent(command, parsed.env_id, parsed.settings, parsed.env, parsed.protocol)
    memory = agent.forecast(parsed.options.n_timesteps, n_seeds=len(parsed.options.seed))
    _print_description(agent, agent.describe() | memory.describe() | _departures(agent, parsed))
    memory.check()


def require_no_options(parsed: Any, without: Any) -> None:
    """Refuse options beside a run folder, which already says how the run was made.

    Args:
        parsed: what was given.
        without: the same without any option.

    Raises:
        ValueError: the two differ.
    """
    if parsed != without:
        raise ValueError("info takes no options beside a run folder: the run's own are printed.")


def _departures(agent: Agent, parsed: Any) -> dict[str, str]:
    """Return what a run changes of the paper's settings and of its protocol's, as lines."""
    usual = RunOptions(**agent.protocols[agent.protocol].run)
    kept = dataclasses.asdict(usual) | {
        name: getattr(parsed.options, name) for name in ("n_timesteps", "num_episode_test")
    }
    whose = "default" if agent.protocol == PAPER else agent.protocol
    changed = changes(RunOptions(**kept), usual, whose)
    changed += changes(parsed.env, EnvOptions(), whose)
    lines = agent.describe_departures()
    return lines | ({"run's own": ", ".join(changed)} if changed else {})


def _print_description(agent: Agent, lines: dict[str, str]) -> None:
    """Print what there is to know before a run."""
    run_output.print_description(lines, title=f"{agent.name}, protocol {agent.protocol}")


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
    final, series = train_in_folder(agent, folder, state, n_timesteps, log_state, prog=command.prog)
    run_output.draw_run(agent, folder)
    if run["animation"] or agent.predicts_observations:
        _, first = next(per_seed(run["seed"], final))
        print("Drawing one evaluation episode.")
        result = agent.evaluate(first, n_episodes=1, record=True)
        if agent.predicts_observations:
            agent.draw_predictions(first, result, folder.open_loop)
        if run["animation"]:
            run_output.draw_episode(agent.env, result, folder.evaluation_gif)
    run_output.print_summary(folder, series, relative)
    print(f"To see why: {report_command(command.prog, folder)}")


def open_run(command: AgentCommand, path: Path) -> tuple[RunFolder, Agent]:
    """Open a run folder and make its agent again.

    Raises:
        FileNotFoundError: there is no run there.
        ValueError: the run is of another agent.
    """
    folder = RunFolder.open(path)
    stored = folder.settings
    if stored.get("agent") != command.short_name:
        raise ValueError(
            f"{path} was trained by {stored.get('agent')!r}; {command.prog} reads runs of "
            f"{command.short_name!r}."
        )
    settings = command.settings(**stored["settings"])
    env = EnvOptions(**stored["env"])
    return folder, _make_agent(command, stored["env_id"], settings, env, stored["protocol"])


def _trained(
    command: AgentCommand, parsed: Evaluate | Render
) -> tuple[Agent, list[int], RunState, dict[str, Any]]:
    """Return a run's agent, seeds, chosen checkpoint and its metadata."""
    folder, agent = open_run(command, parsed.run)
    state, metadata = restore(agent, folder, best=parsed.best, fallback=parsed.fallback)
    return agent, folder.settings["run"]["seed"], state, metadata


def _make_agent(
    command: AgentCommand, env_id: str, settings: Any, env: EnvOptions, protocol: str
) -> Agent:
    values = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
    return command.agent.from_protocol(
        protocol, env_id, **values, env_params=env.env_params, terminates=env.terminates
    )
