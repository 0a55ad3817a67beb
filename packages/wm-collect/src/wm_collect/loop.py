"""The training loop: one compiled program that advances a run by a chunk of absolute ticks.

At every tick the agent collects one row per environment, then makes that tick's updates. An agent
gives the loop an `Algorithm`, a bundle of pure functions for a single seed; the loop supplies
every key (`wm_collect.randomness`), counts the updates, folds the extensions, and runs several
seeds side by side.

Whether work is done depends only on the absolute tick, which carries no seed axis: inside the
seed `vmap` the update loop therefore stays a loop with one scalar condition, instead of becoming
a select that computes both branches and copies the replay.

A chunk's first and last tick are run-time arguments, so one compiled program serves chunks of any
length, and cutting a run into other chunks cannot change its results.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from wm_collect import extensions as ext
from wm_collect import randomness
from wm_collect.environment import as_typed_key
from wm_collect.health import Health
from wm_collect.row import EpisodeRecord

State = TypeVar("State")


def _nothing(state: Any) -> dict[str, jax.Array]:
    return {}


def _no_complaint(counters: dict[str, int]) -> str | None:
    return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Algorithm:
    """What an agent gives the training loop: pure functions of one seed's state.

    Attributes:
        name: how messages call the agent.
        init: `init(key) -> state`.
        collect: `collect(state, tick, key) -> (state, EpisodeRecord)`: emits and stores the
            tick's rows. `tick` is the absolute index, int32 `[]` without a seed axis.
        update: `update(state, tick, key, halted) -> (state, metrics)`: one update of the whole
            agent. `halted`, bool `[]`, says that the seed has met a number that is not finite: then
            the update leaves all that learning changes as it is. `metrics` has exactly the names in
            `metric_names`, each a scalar. In a run with shared data it is called as
            `update(state, tick, key, halted, shared)`.
        updates_before: `updates_before(tick) -> count`: the updates made at ticks 0 to `tick − 1`
            of a run, in closed form and non-decreasing. It is called with traced int32 scalars
            and, on the host, with Python integers.
        metric_names: the names `update` reports, e.g. `("Loss/reward", "Train/grad_norm")`. A
            name without a slash is logged under `Loss/`.
        n_envs: environments stepped together, N.
        trained: `trained(state) -> pytree` of the arrays that learning changes (parameters,
            optimiser states). A seed stops learning when one of them is not finite.
        counters: `counters(state) -> {name: scalar}`: cheap numbers read after every chunk.
        check: `check({name: number}) -> sentence or None`, on the host, with the counters of one
            seed. A sentence stops the run with a `ValueError`.
        supported_phases: the extension phases this agent runs.
    """

    name: str
    init: Callable[[jax.Array], Any]
    collect: Callable[[Any, jax.Array, jax.Array], tuple[Any, EpisodeRecord]]
    update: Callable[..., tuple[Any, dict[str, jax.Array]]]
    updates_before: Callable[[Any], Any]
    metric_names: tuple[str, ...]
    n_envs: int
    trained: Callable[[Any], Any] = _nothing
    counters: Callable[[Any], dict[str, jax.Array]] = _nothing
    check: Callable[[dict[str, Any]], str | None] = _no_complaint
    supported_phases: tuple[str, ...] = ext.PHASES

    def n_updates(self, tick: jax.Array) -> jax.Array:
        """Return how many updates are made at `tick`, int32 `[]`."""
        before = jnp.asarray(self.updates_before(tick), jnp.int32)
        after = jnp.asarray(self.updates_before(tick + 1), jnp.int32)
        return after - before


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class RunState:
    """All that a run needs to go on from a tick; every leaf leads with `[S]` for a list of seeds.

    Attributes:
        agent: the agent's state, collector and replay included.
        extensions: one carry per extension.
        health: whether a number was not finite, and which was the first.
    """

    agent: Any
    extensions: tuple[Any, ...]
    health: Health


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class TickRecords:
    """What a chunk reports of its ticks; row `k` is tick `start + k`, later rows are zero.

    `C` is the largest chunk length the program was built for. Every array leads with `[S]` when
    the run has a list of seeds.

    Attributes:
        finished: whether an environment's episode ended at the tick, bool `[C, N]`.
        episode_return: undiscounted return where finished, `[C, N]`.
        episode_length: agent steps where finished, int32 `[C, N]`.
        n_updates: updates made at the tick, int32 `[C]`.
        metrics: mean of each metric over the tick's updates, `[C]`; zero when there were none.
    """

    finished: jax.Array
    episode_return: jax.Array
    episode_length: jax.Array
    n_updates: jax.Array
    metrics: dict[str, jax.Array]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class ChunkReport:
    """What a chunk returns next to the run's state.

    Attributes:
        ticks: the per-tick records.
        counters: the agent's counters at the end of the chunk, scalars.
        health: that of the run's state.
    """

    ticks: TickRecords
    counters: dict[str, jax.Array]
    health: Health


def init_run(algorithm: Algorithm, extensions: Sequence[Any], seed_key: jax.Array) -> RunState:
    """Return the state of a fresh run at tick 0, after the extensions' `pretrain` phases.

    A resumed run takes its state from a checkpoint; `jax.eval_shape` of this function gives the
    shapes to restore without computing anything.

    Args:
        algorithm: the agent's functions.
        extensions: extension objects, in the order in which they are applied.
        seed_key: key of the run's seed, `[]`; `vmap` this function for several seeds.

    Raises:
        ValueError: an extension implements a phase that the agent does not run.
    """
    extensions = ext.check_extensions(extensions, algorithm.supported_phases, algorithm.name)
    seed_key = as_typed_key(seed_key)
    agent = algorithm.init(jax.random.fold_in(seed_key, randomness.INIT_STREAM))
    agent, carries = ext.start_extensions(extensions, agent, seed_key)
    return RunState(agent=agent, extensions=carries, health=Health.good())


def make_chunk(
    algorithm: Algorithm,
    extensions: Sequence[Any] = (),
    *,
    max_chunk_ticks: int,
    seeds_batched: bool,
) -> jax.stages.Wrapped:
    """Return the jitted function that advances a run from tick `start` to tick `stop`.

    `chunk(run_state, seed_keys, start, stop, shared) -> (run_state, report)` runs the ticks `start`
    to `stop − 1`. It consumes the state given to it (its buffers are donated). `start` and `stop`
    are int32 scalars with `stop − start <= max_chunk_ticks`; they are traced, so every chunk
    length shares one compiled program. `shared` is data that all seeds read and nobody changes, for
    example a dataset, or None: an argument without a seed axis, so it is neither copied per seed
    nor a constant of the program.

    Args:
        algorithm: the agent's functions.
        extensions: extension objects, in the order in which they are applied.
        max_chunk_ticks: rows of the per-tick records, C.
        seeds_batched: whether states and keys lead with a seed axis.

    Raises:
        ValueError: an extension implements a phase that the agent does not run, or
            `max_chunk_ticks` is below 1.
    """
    if max_chunk_ticks < 1:
        raise ValueError(f"max_chunk_ticks must be at least 1, got {max_chunk_ticks}.")
    extensions = ext.check_extensions(extensions, algorithm.supported_phases, algorithm.name)

    def chunk(
        run_state: RunState, seed_key: jax.Array, start: jax.Array, stop: jax.Array, shared: Any
    ) -> tuple[RunState, ChunkReport]:
        def advance(
            tick: jax.Array, carry: tuple[RunState, TickRecords]
        ) -> tuple[RunState, TickRecords]:
            run_state, records = carry
            run_state, record = _tick(algorithm, extensions, run_state, seed_key, tick, shared)
            records = jax.tree.map(
                lambda rows, row: jax.lax.dynamic_update_index_in_dim(rows, row, tick - start, 0),
                records,
                record,
            )
            return run_state, records

        records = _empty_records(algorithm, max_chunk_ticks)
        run_state, records = jax.lax.fori_loop(start, stop, advance, (run_state, records))
        health = run_state.health.after_chunk(
            _trained_leaves(algorithm, run_state),
            len(algorithm.metric_names),
            tick=stop - 1,
            update=algorithm.updates_before(stop),
        )
        run_state = dataclasses.replace(run_state, health=health)
        report = ChunkReport(
            ticks=records, counters=algorithm.counters(run_state.agent), health=health
        )
        return run_state, report

    if seeds_batched:
        chunk = jax.vmap(chunk, in_axes=(0, 0, None, None, None))
    return jax.jit(chunk, donate_argnums=0)


def repeat_update(state: State, n: jax.Array, update: Callable[[State, jax.Array], State]) -> State:
    """Apply `update(state, j)` for j = 0 to n − 1.

    With `n` computed from the unbatched tick this lowers, also under a `vmap` over the state, to a
    while loop with a scalar condition that works on the state in place.

    Args:
        state: any pytree.
        n: number of repetitions, int32 `[]`, without a seed axis.
        update: one update; `j` is int32 `[]`.
    """
    return jax.lax.fori_loop(0, n, lambda j, carry: update(carry, j), state)


def trained_names(algorithm: Algorithm, agent: Any) -> tuple[str, ...]:
    """Return readable paths of the arrays that learning changes, in the order of `Health`.

    Args:
        algorithm: the agent's functions.
        agent: the agent's state without a seed axis, or its shapes.
    """
    trained = jax.eval_shape(algorithm.trained, agent)
    leaves = jax.tree_util.tree_leaves_with_path(trained)
    return tuple(
        jax.tree_util.keystr(path, simple=True, separator="/") or "trained values"
        for path, leaf in leaves
        if jnp.issubdtype(leaf.dtype, jnp.inexact)
    )


def _tick(
    algorithm: Algorithm,
    extensions: Sequence[Any],
    run_state: RunState,
    seed_key: jax.Array,
    tick: jax.Array,
    shared: Any,
) -> tuple[RunState, TickRecords]:
    """Collect one row per environment at `tick`, then make the tick's updates."""
    key = randomness.tick_key(seed_key, tick)
    collect_key = jax.random.fold_in(key, randomness.COLLECT)
    update_key = jax.random.fold_in(key, randomness.UPDATE)
    post_update_key = jax.random.fold_in(key, randomness.POST_UPDATE)

    agent, episodes = algorithm.collect(run_state.agent, tick, collect_key)

    first_update = jnp.asarray(algorithm.updates_before(tick), jnp.int32)
    n_updates = algorithm.n_updates(tick)
    health = run_state.health.after_rows(episodes, tick, first_update)
    reading = () if shared is None else (shared,)

    def update(
        carry: tuple[RunState, dict[str, jax.Array]], j: jax.Array
    ) -> tuple[RunState, dict[str, jax.Array]]:
        run_state, sums = carry
        agent, metrics = algorithm.update(
            run_state.agent,
            tick,
            jax.random.fold_in(update_key, j),
            run_state.health.stopped,
            *reading,
        )
        _check_metric_names(algorithm, metrics)
        health = run_state.health.after_update(
            metrics, algorithm.metric_names, tick, first_update + j
        )
        agent, carries = ext.apply_post_update(
            extensions,
            agent,
            run_state.extensions,
            jax.random.fold_in(post_update_key, j),
            first_update + j,
            metrics,
        )
        sums = {name: sums[name] + metrics[name].astype(jnp.float32) for name in sums}
        return RunState(agent=agent, extensions=carries, health=health), sums

    sums = {name: jnp.zeros((), jnp.float32) for name in algorithm.metric_names}
    run_state = RunState(agent=agent, extensions=run_state.extensions, health=health)
    run_state, sums = repeat_update((run_state, sums), n_updates, update)

    n_averaged = jnp.maximum(n_updates, 1).astype(jnp.float32)
    record = TickRecords(
        finished=episodes.finished,
        episode_return=episodes.episode_return,
        episode_length=episodes.episode_length,
        n_updates=n_updates,
        metrics={name: total / n_averaged for name, total in sums.items()},
    )
    return run_state, record


def _empty_records(algorithm: Algorithm, n_ticks: int) -> TickRecords:
    shape = (n_ticks, algorithm.n_envs)
    return TickRecords(
        finished=jnp.zeros(shape, bool),
        episode_return=jnp.zeros(shape, jnp.float32),
        episode_length=jnp.zeros(shape, jnp.int32),
        n_updates=jnp.zeros(n_ticks, jnp.int32),
        metrics={name: jnp.zeros(n_ticks, jnp.float32) for name in algorithm.metric_names},
    )


def _trained_leaves(algorithm: Algorithm, run_state: RunState) -> list[jax.Array]:
    leaves = jax.tree.leaves(algorithm.trained(run_state.agent))
    return [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.inexact)]


def _check_metric_names(algorithm: Algorithm, metrics: dict[str, jax.Array]) -> None:
    if set(metrics) != set(algorithm.metric_names):
        raise ValueError(
            f"{algorithm.name} declares the metrics {sorted(algorithm.metric_names)} but its "
            f"update reports {sorted(metrics)}: the two must be equal."
        )
