"""What the agents share on the host: training, resuming and evaluating behind two small classes.

An agent package subclasses `Agent`, says how its settings become an `Algorithm`, and inherits
`train`, `evaluate` and the use of run folders. `Trainer` is the part of it that needs no
environment, for agents that learn from data.
"""

import abc
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from wm_collect import driver, randomness
from wm_collect.checkpoint import Checkpoints
from wm_collect.clocks import Clock
from wm_collect.compile_cache import enable_compile_cache, quiet_xla
from wm_collect.environment import Environment
from wm_collect.evaluate import Evaluate, Evaluation, TaskEvaluations
from wm_collect.extensions import PHASES, check_extensions
from wm_collect.loop import Algorithm, RunState, init_run
from wm_collect.progress import RunProgress
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
        extensions: the extensions it runs, see `wm_collect.extensions`.
    """

    name: str
    supported_extension_phases: tuple[str, ...] = PHASES

    def __init__(self, extensions: Sequence[Any]) -> None:
        self.extensions = check_extensions(extensions, self.supported_extension_phases, self.name)

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
            TrainingDiverged: a loss or a parameter is no longer finite.
            TrainingInterrupted: Ctrl-C.
        """
        self.check_run(seed, n_timesteps, num_episode_test)
        frequencies = Frequencies.resolve(
            n_timesteps, log_frequency, eval_frequency, save_frequency
        )
        enable_compile_cache()
        start_tick = 0 if initial_state is None else self.ticks_done(initial_state)
        total = self.clock.timestep(start_tick) + n_timesteps
        if initial_state is not None:
            initial_state = self.resized(initial_state, total)
        checkpoints = None
        if folder is not None:
            sinks = (JsonlSink(folder.metrics_jsonl), CsvSink(folder.metrics_csv), *sinks)
            checkpoints = Checkpoints(folder.checkpoints)
        shown = RunProgress(
            total,
            start=self.clock.timestep(start_tick),
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
                metadata={"n_timesteps": total},
                sinks=sinks,
                progress=shown,
                resume_hint=resume_hint,
                chunk_seconds=chunk_seconds,
                max_chunk_ticks=max_chunk_ticks,
            )

    def check_run(self, seed: int | Sequence[int], n_timesteps: int, num_episode_test: int) -> None:
        """Check the arguments of `train` that can be wrong before anything is made.

        Raises:
            ValueError: a number is out of range, or the run does not fit the settings.
            TypeError: a seed is not an integer.
        """
        if isinstance(n_timesteps, bool) or not isinstance(n_timesteps, int) or n_timesteps < 1:
            raise ValueError(
                f"n_timesteps must be a whole number of at least 1, got {n_timesteps!r}."
            )
        if num_episode_test < 0:
            raise ValueError(f"num_episode_test must be at least 0, got {num_episode_test}.")
        randomness.seed_keys(seed)
        self.algorithm(n_timesteps)

    def state_like(self, seed: int | Sequence[int], n_timesteps: int) -> RunState:
        """Return the shapes of a state of a run that ends at `n_timesteps`, for restoring one."""
        algorithm = self.algorithm(n_timesteps)

        def start(key: jax.Array) -> RunState:
            return init_run(algorithm, self.extensions, key)

        keys = randomness.seed_keys(seed)
        return jax.eval_shape(jax.vmap(start) if keys.ndim else start, keys)


class Agent(Trainer):
    """A world-model agent on one environment.

    Attributes:
        env: the environment it trains on.
        predicts_observations: whether its model predicts what it will observe, and
            `draw_predictions` shows it.
    """

    predicts_observations: bool = False

    def __init__(self, env: Environment, extensions: Sequence[Any]) -> None:
        super().__init__(extensions)
        self.env = env

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


def same_count(counts: Any, what: str) -> int:
    """Return how far a state is, from a count that all of its seeds must share.

    Raises:
        ValueError: the seeds of the state are not equally far.
    """
    values = np.unique(np.asarray(counts))
    if values.size != 1:
        raise ValueError(f"the seeds of a state must be equally far, got {values.tolist()} {what}.")
    return int(values[0])
