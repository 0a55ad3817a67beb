"""What the agents share on the host: training, resuming and evaluating behind two small classes.

An agent package subclasses `Agent`, says how its settings become an `Algorithm`, and inherits
`train`, `evaluate` and the use of run folders. `Trainer` is the part of it that needs no
environment, for agents that learn from data.
"""

import abc
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np

from wm_collect import driver, forecast, randomness
from wm_collect.checkpoint import Checkpoints
from wm_collect.clocks import Clock
from wm_collect.compile_cache import enable_compile_cache, quiet_xla
from wm_collect.deploy.deployable import Deployable
from wm_collect.diagnostics import Diagnostics, LogPanel
from wm_collect.environment import Environment
from wm_collect.evaluate import Evaluate, Evaluation, TaskEvaluations, Trajectory
from wm_collect.extensions import PHASES, check_extensions
from wm_collect.forecast import MemoryForecast
from wm_collect.loop import Algorithm, RunState, init_run
from wm_collect.progress import RunProgress
from wm_collect.protocol import PAPER, Protocol, departures, find_protocol
from wm_collect.run_folder import RunFolder
from wm_collect.sinks import CsvSink, JsonlSink, Sink

_LOG_ROWS = 50
_EVALUATIONS = 4


@dataclasses.dataclass(frozen=True)
class Frequencies:
    """Timesteps between log rows, evaluations and checkpoints."""

    log: int
    eval: int
    save: int

    @classmethod
    def resolve(
        cls, n_timesteps: int, log: int | None, evaluate: int | None, save: int | None
    ) -> "Frequencies":
        """Fill what the user left open from the length of the run."""

        def period(parts: int) -> int:
            return max(1, math.ceil(n_timesteps / parts))

        evaluate = evaluate or period(_EVALUATIONS)
        return cls(log=log or period(_LOG_ROWS), eval=evaluate, save=save or evaluate)


class Trainer(abc.ABC):
    """An agent as far as training goes: it has functions for the training loop, and a clock.

    Attributes:
        name: what messages call it.
        settings: the arguments as given, a dataclass.
        extensions: the extensions it runs, see `wm_collect.extensions`.
        replay_setting: name of the setting that bounds its replay; None if it has none.
        log_panels: what of its log a report draws, besides the returns.
    """

    name: str
    settings: Any
    log_panels: tuple[LogPanel, ...] = ()
    replay_setting: str | None = None
    supported_extension_phases: tuple[str, ...] = PHASES

    def __init__(self, extensions: Sequence[Any]) -> None:
        self.extensions = check_extensions(extensions, self.supported_extension_phases, self.name)
        self._one_seed_like: dict[int, RunState] = {}

    @property
    @abc.abstractmethod
    def subject(self) -> str:
        """What it is trained on, for titles."""

    @property
    @abc.abstractmethod
    def clock(self) -> Clock:
        """What a tick means to the user."""

    @abc.abstractmethod
    def algorithm(self, n_timesteps: int) -> Algorithm:
        """Return the functions of a run that ends at `n_timesteps`, its replay sized for it."""

    @abc.abstractmethod
    def evaluation(self, n_episodes: int) -> Evaluate | TaskEvaluations:
        """Return what measures one seed's state by `n_episodes` episodes (of each task)."""

    @abc.abstractmethod
    def deployable(self, state: RunState) -> Deployable:
        """Return the trained policy, to be written by `wm_collect.deploy.export_policy`.

        An agent may take keyword arguments of its own besides.

        Args:
            state: a state without a seed axis.

        Raises:
            ValueError: the state holds several seeds.
        """

    @abc.abstractmethod
    def ticks_done(self, state: RunState) -> int:
        """Return the ticks behind a state.

        Raises:
            ValueError: the seeds of the state are not equally far.
        """

    @abc.abstractmethod
    def describe(self) -> dict[str, str]:
        """Return what there is to know before a run, as label and text."""

    @property
    def shared(self) -> Any:
        """Data that the updates of all seeds read, see `wm_collect.loop.make_chunk`; None for none.

        Returns:
            Any pytree of arrays.
        """
        return None

    def replay_bytes_per_seed(self, n_timesteps: int) -> int:
        """Return the bytes of one seed's replay in a run that ends at `n_timesteps`."""
        del n_timesteps
        return 0

    def forecast(
        self, n_timesteps: int, *, n_seeds: int = 1, working: bool = True
    ) -> MemoryForecast:
        """Return what memory a run will need, without compiling anything.

        Args:
            n_timesteps: where the run ends.
            n_seeds: seeds side by side.
            working: also estimate what an update needs, which traces it (a few seconds).
        """
        state = self.state_like(0, n_timesteps)
        replay = self.replay_bytes_per_seed(n_timesteps)
        reading = () if self.shared is None else (self.shared,)
        update_bytes = 0
        if working:
            update_bytes = forecast.working_bytes(
                self.algorithm(n_timesteps).update,
                state.agent,
                jax.ShapeDtypeStruct((), np.int32),
                jax.eval_shape(lambda: jax.random.key(0)),
                jax.ShapeDtypeStruct((), np.bool_),
                *reading,
            )
        replay_rows = 0
        if self.replay_setting is not None:
            replay_rows = min(n_timesteps, getattr(self.settings, self.replay_setting))
        device, device_name = forecast.device_memory()
        return MemoryForecast(
            n_seeds=n_seeds,
            replay=replay,
            learner=forecast.tree_bytes(state) - replay,
            shared=forecast.tree_bytes(reading),
            working=update_bytes,
            device=device,
            device_name=device_name,
            replay_setting=self.replay_setting,
            replay_rows=replay_rows,
        )

    def resized(self, state: RunState, n_timesteps: int) -> RunState:
        """Return the state with its replay sized for a run that ends at `n_timesteps`."""
        del n_timesteps
        return state

    def train(
        self,
        seed: int | Sequence[int] = 0,
        n_timesteps: int = 1_000_000,
        *,
        initial_state: RunState | None = None,
        num_episode_test: int = 10,
        log_frequency: int | None = None,
        eval_frequency: int | None = None,
        save_frequency: int | None = None,
        save_minutes: float | None = None,
        folder: RunFolder | None = None,
        sinks: Sequence[Sink] = (),
        log_state: dict[str, Any] | None = None,
        progress: bool = True,
        resume_hint: str = "",
        chunk_seconds: float = 1.5,
        max_chunk_ticks: int = 1000,
    ) -> tuple[RunState, dict[str, np.ndarray]]:
        """Train, and return the final state and the logged series.

        Args:
            seed: one seed, or a list of seeds trained side by side in one program; results then
                lead with a seed axis.
            n_timesteps: how far to train, in the agent's timesteps; counted from
                `initial_state` when one is given.
            initial_state: state of an earlier call, to go on from; its buffers are consumed.
            num_episode_test: episodes of one evaluation; 0 for no evaluation.
            log_frequency: timesteps between log rows; None gives 50 rows.
            eval_frequency: timesteps between evaluations; None gives 4. There is always one at
                the end.
            save_frequency: timesteps between checkpoints, where there is a folder; None saves
                with each evaluation.
            save_minutes: also save when the last checkpoint is older than so many minutes.
            folder: run folder for log rows and checkpoints; None keeps everything in memory.
            sinks: further places for log rows; closed at the end.
            log_state: what a checkpoint stored under this name, when its state is `initial_state`.
            progress: show progress on standard output.
            resume_hint: shown when the run is interrupted.
            chunk_seconds: about how long the host waits between two looks at the run.
            max_chunk_ticks: the most ticks between two looks.

        Returns:
            The state, and the columns of the log rows by name, `[n_rows]` or `[S, n_rows]`: NaN
            where a row has no such value.

        Raises:
            ValueError: an argument does not fit, or the environment breaks the agent's terms.
            TrainingDiverged: no seed is left that learns: each met a number that is not finite.
            TrainingInterrupted: Ctrl-C was pressed, or SIGTERM arrived.
        """
        start_tick = 0 if initial_state is None else self.ticks_done(initial_state)
        done = self.clock.timestep(start_tick)
        self.check_run(seed, n_timesteps, num_episode_test, done=done)
        total = done + n_timesteps
        frequencies = Frequencies.resolve(
            n_timesteps, log_frequency, eval_frequency, save_frequency
        )
        enable_compile_cache()
        if initial_state is not None:
            initial_state = self.resized(initial_state, total)
        checkpoints = None
        if folder is not None:
            sinks = (JsonlSink(folder.metrics_jsonl), CsvSink(folder.metrics_csv), *sinks)
            checkpoints = Checkpoints(folder.checkpoints)
        shown = RunProgress(
            total,
            start=done,
            title=f"{self.name} on {self.subject}",
            enabled=progress,
        )
        with quiet_xla(), shown:
            return driver.train(
                self.algorithm(total),
                seeds=seed,
                stop_tick=self.clock.completed_at(total),
                clock=self.clock,
                log_every=frequencies.log,
                extensions=self.extensions,
                initial=initial_state,
                shared=self.shared,
                start_tick=start_tick,
                log_state=log_state,
                evaluate=self.evaluation(num_episode_test) if num_episode_test else None,
                eval_every=frequencies.eval,
                checkpoints=checkpoints,
                save_every=frequencies.save,
                save_minutes=save_minutes,
                metadata={"n_timesteps": total},
                sinks=sinks,
                progress=shown,
                resume_hint=resume_hint,
                chunk_seconds=chunk_seconds,
                max_chunk_ticks=max_chunk_ticks,
            )

    def check_run(
        self,
        seed: int | Sequence[int],
        n_timesteps: int,
        num_episode_test: int,
        *,
        done: int = 0,
    ) -> None:
        """Check the arguments of `train` that can be wrong before anything is made.

        Args:
            seed: as for `train`.
            n_timesteps: how far to train.
            num_episode_test: episodes of one evaluation.
            done: timesteps behind the state to go on from.

        Raises:
            ValueError: a number is out of range, or the run does not fit the settings or the
                device's memory.
            TypeError: a seed is not an integer.
        """
        if isinstance(n_timesteps, bool) or not isinstance(n_timesteps, int) or n_timesteps < 1:
            raise ValueError(
                f"n_timesteps must be a whole number of at least 1, got {n_timesteps!r}."
            )
        if num_episode_test < 0:
            raise ValueError(f"num_episode_test must be at least 0, got {num_episode_test}.")
        n_seeds = randomness.seed_keys(seed).size
        self.forecast(done + n_timesteps, n_seeds=n_seeds, working=False).check()

    def state_like(self, seed: int | Sequence[int], n_timesteps: int) -> RunState:
        """Return the shapes of a state of a run that ends at `n_timesteps`, for restoring one."""
        if n_timesteps not in self._one_seed_like:  # tracing takes about a second
            algorithm = self.algorithm(n_timesteps)
            self._one_seed_like[n_timesteps] = jax.eval_shape(
                lambda key: init_run(algorithm, self.extensions, key), jax.random.key(0)
            )
        seeds = randomness.seed_keys(seed).shape
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((*seeds, *leaf.shape), leaf.dtype),
            self._one_seed_like[n_timesteps],
        )


class Agent(Trainer):
    """A world-model agent on one environment.

    Attributes:
        env: the environment it trains on.
        predicts_observations: whether its model predicts what it will observe, and
            `draw_predictions` shows it.
        protocols: its named sets of defaults.
        protocol: the name of the one in use.
    """

    predicts_observations: bool = False
    protocols: Mapping[str, Protocol] = {PAPER: Protocol("the paper's hyperparameters")}

    def __init__(self, env: Environment, extensions: Sequence[Any]) -> None:
        super().__init__(extensions)
        self.env = env
        self.protocol = PAPER

    @classmethod
    def from_protocol(cls, protocol: str, env_id: str | Any, **settings: Any) -> Self:
        """Make an agent with the settings of a named protocol.

        `describe_departures` says what differs from it. The protocol's length of a run, and other
        arguments of `train`, are in `protocols[protocol].run`.

        Args:
            protocol: a name of `protocols`.
            env_id: the environment, as for the class itself.
            **settings: arguments of the class that override the protocol's.

        Raises:
            ValueError: there is no such protocol, or as the class itself.
        """
        found = find_protocol(cls.protocols, protocol)
        # A class that can be made takes an id and settings, see its own signature.
        make: Callable[..., Self] = cls
        agent = make(env_id, **{**found.settings, **settings})
        agent.protocol = protocol
        return agent

    def describe_departures(self) -> dict[str, str]:
        """Return what differs from the paper's settings and from the protocol's, as `describe`."""
        return departures(self.protocol, self.protocols[self.protocol], self.settings)

    @abc.abstractmethod
    def evaluator(self, n_episodes: int, *, record: bool = False) -> Evaluate:
        """Return `evaluate(agent_state, key) -> Evaluation`, for one seed."""

    @property
    def subject(self) -> str:
        """The environment's id."""
        return self.env.spec.env_id

    def evaluation(self, n_episodes: int) -> Evaluate:
        """Return `evaluator(n_episodes)`."""
        return self.evaluator(n_episodes)

    def ticks_done(self, state: RunState) -> int:
        """Return the ticks behind a state: the rows each environment's collector has emitted.

        Raises:
            ValueError: the seeds of the state are not equally far.
        """
        collector = state.agent.collector
        rows = same_count(collector.rows, "rows")
        n_envs = collector.is_last.shape[-1]
        return rows // n_envs

    def draw_predictions(self, state: RunState, episode: Evaluation, path: Path) -> None:
        """Draw the model's predictions over a recorded episode, if it makes any; else nothing.

        Args:
            state: a state without a seed axis.
            episode: an evaluation with `record=True`.
            path: picture to write.
        """
        return

    def diagnose(
        self, state: RunState, episodes: Sequence[Trajectory], key: jax.Array
    ) -> Diagnostics:
        """Return how well a state's predictions fit episodes that it played.

        Args:
            state: a state without a seed axis.
            episodes: recorded episodes, see `record_episodes`; at least one.
            key: draws what predictions sample; consumed.
        """
        del state, episodes, key
        return Diagnostics()

    def record_episodes(
        self, state: RunState, *, n_episodes: int = 8, seed: int = 0
    ) -> list[Trajectory]:
        """Play episodes one after the other and return what happened, see `play_episodes`.

        Episode i is the one that `evaluate` records with the seed `seed + i`.

        Args:
            state: a state without a seed axis.
            n_episodes: at least 1.
            seed: draws the episodes; unrelated to the training seed.

        Raises:
            ValueError: `n_episodes` is below 1.
        """
        keys = [jax.random.key(seed + i) for i in range(n_episodes)]
        return play_episodes(self.evaluator(1, record=True), state, keys)

    def evaluate(
        self, state: RunState, *, n_episodes: int = 10, seed: int = 0, record: bool = False
    ) -> Evaluation:
        """Run episodes with a trained state of one seed in fresh environments.

        Args:
            state: a state without a seed axis.
            n_episodes: episodes, all stepped together.
            seed: draws the episodes; unrelated to the training seed.
            record: keep the first episode's trajectory, for rendering.
        """
        enable_compile_cache()
        run = jax.jit(self.evaluator(n_episodes, record=record))
        with quiet_xla():
            return jax.block_until_ready(run(state.agent, jax.random.key(seed)))


def play_episodes(
    evaluate: Evaluate, state: RunState, keys: Sequence[jax.Array]
) -> list[Trajectory]:
    """Play one episode per key, and return what happened as NumPy arrays.

    They are played one after the other: by the program that also draws the animation of a run, and
    in the memory of one episode. The environment's own states are kept of the first episode only;
    they serve to draw it, and can be large.

    Args:
        evaluate: measures one episode and records it.
        state: a state without a seed axis.
        keys: one for each episode.

    Raises:
        ValueError: there is no key.
    """
    if not keys:
        raise ValueError("n_episodes must be at least 1, got 0.")
    enable_compile_cache()
    run = jax.jit(evaluate)
    episodes = []
    with quiet_xla():
        for i, key in enumerate(keys):
            trajectory: Any = run(state.agent, key).trajectory
            kept = trajectory if i == 0 else dataclasses.replace(trajectory, env_state=None)
            episodes.append(jax.device_get(kept))
    return episodes


def same_count(counts: Any, what: str) -> int:
    """Return how far a state is, from a count that all of its seeds must share.

    Raises:
        ValueError: the seeds of the state are not equally far.
    """
    values = np.unique(np.asarray(counts))
    if values.size != 1:
        raise ValueError(f"the seeds of a state must be equally far, got {values.tolist()} {what}.")
    return int(values[0])


def check_one_seed(count: Any) -> None:
    """Refuse a state of several seeds where that of one is needed.

    Args:
        count: a number of the state that is `[]` without a seed axis.

    Raises:
        ValueError: it has a seed axis.
    """
    shape = np.shape(count)
    if shape:
        raise ValueError(
            f"the state holds {shape[0]} seeds side by side, and the state of one is needed: "
            "take it with jax.tree.map(lambda leaf: leaf[i], state)."
        )
