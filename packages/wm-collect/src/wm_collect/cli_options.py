"""What can be said on the command line: the subcommands, their options, and how they are parsed.

The options of `train` and `info` are the fields of the agent's settings dataclass, so an option
cannot exist without its keyword argument or the reverse; their help is the fields' docstrings.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import tyro

from wm_collect.agent import Agent
from wm_collect.protocol import PAPER, Protocol, find_protocol


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoBudget:
    """The budget of an agent whose decisions always compute the same."""


@dataclasses.dataclass(frozen=True)
class AgentCommand:
    """What an agent package tells the command line about itself.

    Attributes:
        prog: name of the installed script.
        short_name: used in the default name of run folders.
        agent: the agent's class, which also has its protocols.
        settings: dataclass of the agent's settings, its fields documented.
        budget: dataclass of what one decision of an exported policy may compute, its fields
            documented; they are keyword arguments of the agent's `deployable`.
    """

    prog: str
    short_name: str
    agent: type[Agent]
    settings: type
    budget: type = NoBudget


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How long to train, and what to write down."""

    n_timesteps: int = 1_000_000
    """Timesteps to train for."""
    seed: tuple[int, ...] = (0,)
    """One seed, or several that train side by side."""
    num_episode_test: int = 10
    """Episodes of one evaluation; 0 for none."""
    log_frequency: int | None = None
    """Timesteps between log rows; None gives 50 rows."""
    eval_frequency: int | None = None
    """Timesteps between evaluations; None gives 4."""
    save_frequency: int | None = None
    """Timesteps between checkpoints; None saves with each evaluation."""
    save_minutes: float | None = None
    """Also save when the last checkpoint is older than so many minutes."""
    root: Path = Path("runs")
    """Folder of all runs."""
    name: str | None = None
    """Folder of this run inside root; None makes one from task, agent and time."""
    animation: bool = True
    """Draw an animation of one evaluation episode at the end (pictures are drawn anyway)."""
    tensorboard: bool = False
    """Also write TensorBoard files into the run folder."""
    wandb: str | None = None
    """Also log to this Weights & Biases project."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvOptions:
    """What the environment is told."""

    env_params: dict[str, float] | None = None
    """Parameters of the environment to change, as pairs: name value name value."""
    terminates: bool | None = None
    """Whether episodes may end early, for an environment nothing is known about."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resume:
    """Go on with a run that was interrupted, or train a finished one further."""

    run: Annotated[Path, tyro.conf.Positional]
    """The run folder."""
    n_timesteps: int | None = None
    """Timesteps at which the run ends; None keeps what it was started with."""
    fallback: bool = False
    """If the newest checkpoint is damaged, use the one before it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Measure a trained run on fresh episodes."""

    run: Annotated[Path, tyro.conf.Positional]
    """The run folder."""
    episodes: int = 10
    """Episodes to run."""
    seed: int = 0
    """Draws the episodes."""
    best: bool = False
    """Use the checkpoint with the best evaluation instead of the newest."""
    fallback: bool = False
    """If the checkpoint is damaged, use the one before it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Render:
    """Draw an episode of a trained run as an animation."""

    run: Annotated[Path, tyro.conf.Positional]
    """The run folder."""
    out: Path | None = None
    """Where to write it, a .gif or .mp4; None overwrites the run's evaluation.gif."""
    seed: int = 0
    """Draws the episode."""
    best: bool = False
    """Use the checkpoint with the best evaluation instead of the newest."""
    fallback: bool = False
    """If the checkpoint is damaged, use the one before it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Export:
    """Write a trained policy to a folder that acts without the training code."""

    run: Annotated[Path, tyro.conf.Positional]
    """The run folder."""
    out: Path | None = None
    """Folder to make; None is `policy` in the run folder."""
    training_seed: int | None = None
    """The seed whose policy to write; may be left out if the run trained only one."""
    best: bool = False
    """Use the checkpoint with the best evaluation instead of the newest."""
    fallback: bool = False
    """If the checkpoint is damaged, use the one before it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Examine a trained run, and write a page that explains its curve."""

    run: Annotated[Path, tyro.conf.Positional]
    """The run folder; the page is its report.html."""
    episodes: int = 8
    """Episodes on which the agent's predictions are examined."""
    seed: int = 0
    """Draws the episodes."""
    best: bool = False
    """Use the checkpoint with the best evaluation instead of the newest."""
    fallback: bool = False
    """If the checkpoint is damaged, use the one before it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plot:
    """Draw the learning curves of one or more runs over each other."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """The run folders."""
    out: Path = Path("learning_curves.png")
    """Where to write the picture; its ending chooses the format."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckEnv:
    """Check that an environment keeps the rules, and print some of its rows."""

    env_id: Annotated[str, tyro.conf.Positional]
    """Environment: an id, a registered name, or module:attribute of your own code."""
    rows: int = 20
    """Rows to print, if no error was found; 0 for none."""
    n_steps: int | None = None
    """Agent steps of each episode that is run; None for one whole episode."""
    episode_length: int | None = None
    """Time limit in simulator steps; None keeps the environment's own."""
    seed: int = 0
    """Draws resets, steps and actions."""
    env: Annotated[EnvOptions, tyro.conf.arg(name="")] = EnvOptions()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Doctor:
    """Check that what is installed works and computes right numbers, in about a minute."""


def parse(command: AgentCommand, args: list[str]) -> Any:
    """Return the subcommand that `args` give, as an object of its class.

    `Info`, `Train` and `ExportWithin` are made here, because their options are the agent's.

    Raises:
        SystemExit: the arguments do not parse, or ask for help.
        ValueError: the protocol is unknown.
    """
    preset = _protocol_of(command, args)
    defaults = command.settings(**preset.settings)
    full_budget = command.budget()
    names = ", ".join(f"{name} ({p.summary})" for name, p in command.agent.protocols.items())

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Info:
        """Print what there is to know about a run before it, memory included, or about one made."""

        env_id: Annotated[str, tyro.conf.Positional]
        """Environment: an id of Gymnax, Brax or MuJoCo Playground, or module:attribute; info also
        takes a run folder."""
        protocol: Annotated[str, tyro.conf.arg(help=f"Named set of defaults: {names}.")] = "paper"
        settings: Annotated[command.settings, tyro.conf.arg(name="")] = defaults  # type: ignore
        env: Annotated[EnvOptions, tyro.conf.arg(name="")] = EnvOptions()
        options: Annotated[RunOptions, tyro.conf.arg(name="")] = RunOptions(**preset.run)
        trains: ClassVar[bool] = False

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Train(Info):
        """Train an agent in a new run folder."""

        trains: ClassVar[bool] = True

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class ExportWithin(Export):
        """Write a trained policy to a folder that acts without the training code."""

        budget: Annotated[command.budget, tyro.conf.arg(name="")] = full_budget  # type: ignore

    commands = (
        Annotated[Train, tyro.conf.subcommand("train")]
        | Annotated[Resume, tyro.conf.subcommand("resume")]
        | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
        | Annotated[Render, tyro.conf.subcommand("render")]
        | Annotated[ExportWithin, tyro.conf.subcommand("export")]
        | Annotated[Report, tyro.conf.subcommand("report")]
        | Annotated[Plot, tyro.conf.subcommand("plot")]
        | Annotated[Info, tyro.conf.subcommand("info")]
        | Annotated[CheckEnv, tyro.conf.subcommand("check")]
        | Annotated[Doctor, tyro.conf.subcommand("doctor")]
    )
    with settings_registry(command.settings):
        return tyro.cli(commands, args=args, prog=command.prog, config=(tyro.conf.OmitArgPrefixes,))


def settings_registry(settings: type) -> tyro.constructors.ConstructorRegistry:
    """Return tyro's rules for a settings class, to be entered around `tyro.cli`.

    Schedules are Python callables; on the command line a learning rate is a number.
    """
    registry = tyro.constructors.ConstructorRegistry()

    @registry.primitive_rule
    def learning_rate(
        info: tyro.constructors.PrimitiveTypeInfo,
    ) -> tyro.constructors.PrimitiveConstructorSpec | None:
        if info.type is not _callable_or_float(settings):
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar="FLOAT",
            instance_from_str=lambda texts: float(texts[0]),
            is_instance=lambda value: isinstance(value, float),
            str_from_instance=lambda value: [str(value)],
        )

    return registry


def _callable_or_float(settings: type) -> Any:
    fields = {field.name: field.type for field in dataclasses.fields(settings)}
    return fields.get("learning_rate")


def _protocol_of(command: AgentCommand, args: Sequence[str]) -> Protocol:
    """Return the protocol named on the command line, which sets the defaults of the others."""
    name = PAPER
    for i, arg in enumerate(args):
        if arg == "--protocol" and i + 1 < len(args):
            name = args[i + 1]
        elif arg.startswith("--protocol="):
            name = arg.partition("=")[2]
    return find_protocol(command.agent.protocols, name)
