"""The compiled chunk: chunking, seeds, counts, and what its lowered program looks like."""

import itertools

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wm_collect.loop import init_run, make_chunk, repeat_update, trained_names
from wm_collect.testing import check_same_state

from .counting_agent import BURST, N_ENVS, PER_TICK, SEED_TICKS, counting_agent, updates_before

N_TICKS = 21
SEEDS = (3, 11)


class RecordSteps:
    """Keeps the sum of the steps and of the metrics it was shown, and their number."""

    def init_state(self, agent, key):
        return {"n": jnp.int32(0), "steps": jnp.int32(0), "metric": jnp.float32(0)}

    def post_update(self, agent, carry, key, step, metrics):
        return agent, {
            "n": carry["n"] + 1,
            "steps": carry["steps"] + step,
            "metric": carry["metric"] + metrics["Train/update"],
        }


class Program:
    """The counting agent's chunk, compiled once, with or without a seed axis."""

    def __init__(self, seeds_batched):
        algorithm, extensions = counting_agent(), (RecordSteps(),)
        keys = [jax.random.key(seed) for seed in SEEDS]
        self.keys = jnp.stack(keys) if seeds_batched else keys[0]

        def start(key):
            return init_run(algorithm, extensions, key)

        self.init = jax.jit(jax.vmap(start) if seeds_batched else start)
        self.chunk = make_chunk(
            algorithm, extensions, max_chunk_ticks=N_TICKS, seeds_batched=seeds_batched
        )
        self.whole = self.run([0, N_TICKS])

    def run(self, cuts):
        """Run from cut to cut; return the last state and the records of all ticks in one piece."""
        state, pieces = self.init(self.keys), []
        for start, stop in itertools.pairwise(cuts):
            state, report = self.chunk(state, self.keys, jnp.int32(start), jnp.int32(stop), None)
            axis = self.keys.ndim
            pieces.append(
                jax.tree.map(
                    lambda x, n=stop - start, axis=axis: np.take(x, range(n), axis), report.ticks
                )
            )
        axis = self.keys.ndim
        records = jax.tree.map(lambda *xs: np.concatenate(xs, axis), *pieces)
        return jax.device_get(state), records


@pytest.fixture(scope="module", params=[False, True], ids=["one-seed", "seed-list"])
def program(request):
    return Program(request.param)


def test_chunks_of_one_tick_give_the_bits_of_one_long_chunk(program):
    check_same_state(program.run(range(N_TICKS + 1)), program.whole)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(cuts=st.sets(st.integers(1, N_TICKS - 1)))
def test_any_cuts_give_the_bits_of_one_long_chunk(program, cuts):
    check_same_state(program.run([0, *sorted(cuts), N_TICKS]), program.whole)


def test_all_chunk_lengths_share_one_compiled_program(program):
    program.run(range(N_TICKS + 1))
    program.run([0, 2, 9, N_TICKS])
    assert program.chunk._cache_size() == 1


def test_every_tick_makes_the_updates_of_the_closed_form(program):
    state, records = program.whole
    counts = [0] * SEED_TICKS + [BURST] + [PER_TICK] * (N_TICKS - SEED_TICKS - 1)
    assert np.diff([updates_before(t) for t in range(N_TICKS + 1)]).tolist() == counts
    np.testing.assert_array_equal(
        records.n_updates, np.broadcast_to(counts, records.n_updates.shape)
    )
    assert np.all(state.agent.n_updates == sum(counts))
    assert np.all(state.agent.n_collected == N_TICKS)


def test_metrics_are_means_over_the_updates_of_their_tick(program):
    _, records = program.whole
    index = np.arange(sum(np.atleast_2d(records.n_updates)[0]))
    expected = [0.0] * SEED_TICKS + [
        index[int(updates_before(t)) : int(updates_before(t + 1))].mean()
        for t in range(SEED_TICKS, N_TICKS)
    ]
    for row in np.atleast_2d(records.metrics["Train/update"]):
        np.testing.assert_allclose(row, expected, rtol=1e-6)


def test_post_update_sees_every_absolute_update_index_once(program):
    state, _ = program.whole
    n = int(updates_before(N_TICKS))
    carry = state.extensions[0]
    assert np.all(carry["n"] == n)
    assert np.all(carry["steps"] == n * (n - 1) // 2)
    assert np.all(carry["metric"] == n * (n - 1) // 2)


def test_episodes_are_recorded_at_their_tick(program):
    _, records = program.whole
    finished = records.finished.reshape(-1, N_TICKS, N_ENVS)
    returns = records.episode_return.reshape(-1, N_TICKS, N_ENVS)
    for seed in range(len(finished)):
        assert np.flatnonzero(finished[seed, :, 0]).tolist() == [3, 7, 11, 15, 19]
        assert returns[seed, 7].tolist() == [7.0, 8.0]


def test_a_seed_of_a_list_is_the_same_seed_alone():
    alone, together = Program(False).whole, Program(True).whole
    first = jax.tree.map(lambda x: x[0], together)
    for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(first), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_two_seeds_of_a_list_differ():
    state, _ = Program(True).whole
    assert not np.any(state.agent.weight[0] == state.agent.weight[1])


def equations(jaxpr):
    """Yield every equation of a jaxpr, those of its inner jaxprs included."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from equations(inner)


def batched_whiles(jaxpr):
    """Return the while loops whose condition differs from seed to seed.

    JAX runs such a loop while any seed goes on, and selects each seed's new or old values.
    """
    whiles = [e for e in equations(jaxpr) if e.primitive.name == "while"]
    assert whiles, "there is no loop to look at"
    return [e for e in whiles if e.params["cond_jaxpr"].out_avals[0].shape != ()]


def loop_under_vmap(count_is_batched):
    def run(state, n):
        return repeat_update(state, n, lambda carry, j: carry * 0.5 + j)

    mapped = jax.vmap(run, in_axes=(0, 0 if count_is_batched else None))
    n = jnp.zeros(4, jnp.int32) if count_is_batched else jnp.int32(0)
    return jax.make_jaxpr(mapped)(jnp.zeros((4, 5)), n).jaxpr


def test_repeat_update_keeps_a_scalar_condition_under_the_seed_vmap():
    assert not batched_whiles(loop_under_vmap(count_is_batched=False))


def test_the_check_above_would_notice_a_count_per_seed():
    assert len(batched_whiles(loop_under_vmap(count_is_batched=True))) == 1


RING_ROWS, ROW_SIZE = 1250, 10_000
RING_BYTES = RING_ROWS * N_ENVS * ROW_SIZE * 4  # 100 MB


def big_chunk(seeds_batched):
    algorithm = counting_agent(ring_rows=RING_ROWS, row_size=ROW_SIZE)
    keys = jax.random.key(0)
    start = lambda key: init_run(algorithm, (), key)  # noqa: E731
    if seeds_batched:
        keys, start = jnp.stack([keys, jax.random.key(1)]), jax.vmap(start)
    chunk = make_chunk(algorithm, (), max_chunk_ticks=8, seeds_batched=seeds_batched)
    return chunk.trace(jax.eval_shape(start, keys), keys, jnp.int32(0), jnp.int32(0), None)


@pytest.mark.parametrize("seeds_batched", [False, True], ids=["one-seed", "seed-list"])
def test_a_large_replay_is_updated_in_place(seeds_batched):
    memory = big_chunk(seeds_batched).lower().compile().memory_analysis()
    n_rings = 2 if seeds_batched else 1
    assert memory.alias_size_in_bytes >= n_rings * RING_BYTES
    assert memory.temp_size_in_bytes < RING_BYTES / 20


def test_no_value_of_a_chunk_is_selected_between_seeds():
    assert not batched_whiles(big_chunk(True).jaxpr.jaxpr)
    for equation in equations(big_chunk(True).jaxpr.jaxpr):
        if equation.primitive.name in ("select_n", "cond"):
            assert all(v.aval.size < RING_ROWS * N_ENVS * ROW_SIZE for v in equation.outvars)


def test_an_update_must_report_the_declared_metrics():
    chunk = make_chunk(
        counting_agent(metric_names=("drawn",)), max_chunk_ticks=1, seeds_batched=False
    )
    state = jax.eval_shape(lambda k: init_run(counting_agent(), (), k), jax.random.key(0))
    with pytest.raises(ValueError, match=r"declares the metrics \['drawn'\].*reports"):
        chunk.lower(state, jax.random.key(0), jnp.int32(0), jnp.int32(0), None)


def test_a_chunk_of_no_ticks_is_refused():
    with pytest.raises(ValueError, match="max_chunk_ticks must be at least 1, got 0"):
        make_chunk(counting_agent(), max_chunk_ticks=0, seeds_batched=False)


def test_a_legacy_key_starts_the_same_run():
    start = jax.jit(lambda key: init_run(counting_agent(), (), key))
    check_same_state(start(jax.random.PRNGKey(5)), start(jax.random.key(5)))


def test_trained_values_are_named_by_their_place():
    algorithm = counting_agent(
        trained=lambda s: {"net": {"w": s.weight}, "n": s.n_updates, "b": s.weight}
    )
    agent = jax.eval_shape(algorithm.init, jax.random.key(0))
    assert trained_names(algorithm, agent) == ("b", "net/w")
