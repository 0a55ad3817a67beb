"""The driver: where it logs, evaluates and saves, how it resumes, and why it stops."""

import errno
import io
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_collect.checkpoint import Checkpoints
from wm_collect.driver import train
from wm_collect.evaluate import Evaluation
from wm_collect.failures import TrainingDiverged
from wm_collect.loop import init_run
from wm_collect.metrics import ELAPSED
from wm_collect.progress import RunProgress
from wm_collect.sinks import JsonlSink, read_rows
from wm_collect.testing import check_same_state

from .counting_agent import BURST, CLOCK, SEED_TICKS, counting_agent, steps, updates_before

# Sixteen episodes of three agent steps and a held tick, in two environments.
STOP = 64
RUN = {"clock": CLOCK, "log_every": 12, "eval_every": 30, "save_every": 20}
# By hand: 3 ticks of 4 count 2 env steps each, so 12 env steps are completed with tick 8, and
# multiples of 30 and 20 fall on ticks that are not ends of an episode.
LOG_TICKS = [8, 16, 24, 32, 40, 48, 56, 64]
EVAL_TICKS = [20, 40, 60]
SAVE_TICKS = [13, 26, 40, 53]
SEEDS = [3, 4]


def evaluate(agent, key):
    noise = jax.random.normal(key, (5,))
    return Evaluation(
        episode_return=agent.weight.sum() + noise, episode_length=jnp.arange(1, 6, dtype=jnp.int32)
    )


class CountPretraining:
    def init_state(self, agent, key):
        return jnp.int32(0)

    def pretrain(self, agent, carry, key):
        return agent, carry + 1

    def eval_metrics(self, agent, carry, key):
        return {"pretrained": carry, "n_updates": agent.n_updates}


class Stub:
    """A sink that keeps rows in memory, and can call something at a row."""

    def __init__(self):
        self.rows, self.truncated, self.closed = [], [], 0

    def write(self, row):
        self.rows.append(row)

    def truncate_after(self, tick):
        self.truncated.append(tick)

    def close(self):
        self.closed += 1


def run(folder=None, *, seeds=SEEDS, algorithm=None, stop_tick=STOP, **arguments):
    """Train the counting agent, with everything that can be asked for."""
    settings = RUN | {
        "evaluate": evaluate,
        "extensions": (CountPretraining(),),
        "checkpoints": None if folder is None else Checkpoints(folder, keep_last=9),
    }
    return train(
        algorithm or counting_agent(), seeds=seeds, stop_tick=stop_tick, **settings | arguments
    )


def without_time(rows):
    return [{k: v for k, v in row.items() if k != ELAPSED} for row in rows]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One uninterrupted run: (state, series, rows in the log file, folder, text shown)."""
    folder, shown = tmp_path_factory.mktemp("whole"), io.StringIO()
    with RunProgress(CLOCK.timestep(STOP), stream=shown) as progress:
        state, series = run(
            folder / "checkpoints",
            sinks=[JsonlSink(folder / "log.jsonl")],
            progress=progress,
            metadata={"agent": "counting"},
        )
    return state, series, read_rows(folder / "log.jsonl"), folder, shown.getvalue()


def test_rows_are_written_at_multiples_of_both_periods_and_at_the_end(whole):
    _, series, rows, _, _ = whole
    ticks = sorted({*LOG_TICKS, *EVAL_TICKS})
    assert [row["tick"] for row in rows] == ticks
    assert series["timestep"].tolist() == [[steps(t) for t in ticks]] * 2
    assert series["env_frames"].tolist() == [[2 * steps(t) for t in ticks]] * 2
    assert series["Train/n_updates"].tolist() == [[int(updates_before(t)) for t in ticks]] * 2


def test_evaluations_are_in_the_rows_of_their_ticks_only(whole):
    _, series, rows, _, _ = whole
    evaluated = [row["tick"] for row in rows if "Eval/episodic mean reward" in row]
    assert evaluated == [*EVAL_TICKS, STOP]
    missing = np.isnan(series["Eval/episodic mean reward"])
    assert missing.tolist() == [[row["tick"] not in evaluated for row in rows]] * 2
    assert {row.get("Eval/episodic mean length", 3.0) for row in rows} == {3.0}


def test_evaluation_metrics_of_extensions_are_in_the_rows(whole):
    _, _, rows, _, _ = whole
    for row in rows:
        if row["tick"] in EVAL_TICKS:
            assert row["Eval/pretrained"] == 1
            assert row["Eval/n_updates"] == row["Train/n_updates"]


def test_train_returns_are_means_over_the_episodes_since_the_last_row(whole):
    _, series, rows, _, _ = whole
    expected, last = [], 0
    for row in rows:
        ended = [t for t in range(last, row["tick"]) if t % 4 == 3]
        expected.append(np.mean([[t, t + 1] for t in ended]) if ended else np.nan)
        last = row["tick"]
    np.testing.assert_allclose(series["Train/episodic mean reward"], [expected, expected])


def test_checkpoints_are_at_multiples_and_at_the_end_with_what_a_resume_needs(whole):
    _, _, _, folder, _ = whole
    checkpoints = Checkpoints(folder / "checkpoints")
    assert checkpoints.ticks() == [*SAVE_TICKS, STOP]
    metadata = checkpoints.metadata(26)
    assert metadata["agent"] == "counting"
    assert (metadata["tick"], metadata["timestep"]) == (26, steps(26))


def test_compilation_and_phases_are_announced(whole):
    _, _, _, _, shown = whole
    assert "compiling the training program, the evaluation program" in shown
    assert "evaluating" in shown and "saving a checkpoint" in shown
    assert f"step {steps(STOP)}/{steps(STOP)}" in shown


@pytest.mark.parametrize("tick", [13, 40])
def test_a_resumed_run_is_the_uninterrupted_run(whole, tmp_path, tick):
    state, series, rows, folder, _ = whole
    template = jax.eval_shape(lambda: state)
    restored, metadata = Checkpoints(folder / "checkpoints").restore(template, tick)
    log = tmp_path / "log.jsonl"
    # The killed run had logged to its end; only its checkpoint is older.
    log.write_text((folder / "log.jsonl").read_text())
    resumed, resumed_series = run(
        tmp_path / "checkpoints",
        initial=restored,
        start_tick=tick,
        log_state=metadata["log_state"],
        sinks=[JsonlSink(log)],
        max_chunk_ticks=5,
    )
    check_same_state(resumed, state)
    assert without_time(read_rows(log)) == without_time(rows)
    n = resumed_series["timestep"].shape[1]
    for name in series.keys() - {ELAPSED}:
        np.testing.assert_array_equal(resumed_series[name], series[name][:, -n:])
    assert np.all(resumed.agent.n_updates == updates_before(STOP))
    assert np.all(resumed.extensions[0] == 1), "pretrain ran again"
    assert np.all(resumed_series[ELAPSED] > metadata["log_state"]["elapsed"])


def test_a_run_continued_from_memory_is_the_uninterrupted_run(whole):
    state, _, _, _, _ = whole
    first, _ = run(stop_tick=SEED_TICKS + 2)
    second, _ = run(initial=first, start_tick=SEED_TICKS + 2)
    check_same_state(second, state)


def test_a_single_seed_has_no_seed_axis_and_is_that_seed_of_the_list(whole):
    state, series, _, _, _ = whole
    alone, alone_series = run(seeds=SEEDS[1])
    second = jax.tree.map(lambda x: x[1], state)
    for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(second), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    for name in series.keys() - {ELAPSED}:
        np.testing.assert_allclose(alone_series[name], series[name][1], rtol=1e-4, atol=1e-5)


def test_later_rows_and_checkpoints_of_a_longer_run_are_dropped_on_resume(whole, tmp_path):
    state = jax.jit(jax.vmap(lambda k: init_run(counting_agent(), (CountPretraining(),), k)))(
        jnp.stack([jax.random.key(seed) for seed in SEEDS])
    )
    checkpoints, sink = Checkpoints(tmp_path, keep_last=9), Stub()
    for tick in (10, 50):
        checkpoints.save(tick, state, {})
    run(tmp_path, initial=state, start_tick=10, stop_tick=12, checkpoints=checkpoints, sinks=[sink])
    assert checkpoints.ticks() == [10, 12]
    assert (sink.truncated, sink.closed) == ([10], 1)


def test_a_burst_is_announced():
    shown = io.StringIO()

    def many_before(tick):
        return jnp.where(tick > SEED_TICKS, 1000 + tick, 0)

    algorithm = counting_agent(updates_before=many_before)
    with RunProgress(10, stream=shown) as progress:
        run(
            seeds=0,
            algorithm=algorithm,
            stop_tick=8,
            progress=progress,
            evaluate=None,
            extensions=(),
        )
    assert "1,006 updates in one tick" in shown.getvalue()


@pytest.mark.parametrize("seeds", [3, SEEDS], ids=["one-seed", "seed-list"])
def test_a_metric_that_is_not_finite_stops_the_run_before_anything_is_saved(tmp_path, seeds):
    sink = Stub()
    with pytest.raises(TrainingDiverged) as caught:
        run(
            tmp_path,
            seeds=seeds,
            algorithm=counting_agent(bad_tick=33),
            sinks=[sink],
            evaluate=None,
            extensions=(),
        )
    message = str(caught.value)
    # Seven updates after the seed phase, then two a tick.
    assert message.startswith("Training diverged: Loss/drawn became nan in update 62, tick 33")
    assert (", seed " in message) == isinstance(seeds, list)
    assert "The checkpoint of tick 26 was saved before" in message
    assert caught.value.tick == 33
    assert Checkpoints(tmp_path).ticks() == [13, 26]
    assert sink.rows[-1]["tick"] == 32 and sink.closed == 1


def test_a_trained_value_that_is_not_finite_stops_the_run():
    def trained(state):
        return {"policy": {"kernel": jnp.where(state.n_updates > BURST, jnp.inf, state.weight)}}

    with pytest.raises(
        TrainingDiverged, match=r"policy/kernel is not finite after \d+ update\(s\), tick \d+, seed"
    ):
        run(algorithm=counting_agent(trained=trained), stop_tick=20, evaluate=None)


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ({"bad_tick": 33}, "Loss/drawn became nan in update 62, tick 33, seed {}"),
        ({"bad_row": 30}, "the observation is not finite after 55 update(s), tick 30, seed {}"),
    ],
    ids=["metric", "observation"],
)
def test_a_seed_that_meets_a_number_that_is_not_finite_stops_alone(tmp_path, bad, told):
    marks = {s: float(run(seeds=s, stop_tick=1)[0].agent.mark) for s in SEEDS}
    sick = min(marks, key=marks.get)
    index = SEEDS.index(sick)
    healthy = [i for i in range(len(SEEDS)) if i != index]
    sick_agent = counting_agent(**bad, bad_below=sorted(marks.values())[1])
    sink, shown = Stub(), io.StringIO()
    with RunProgress(10, stream=shown) as progress:
        state, series = run(tmp_path, algorithm=sick_agent, sinks=[sink], progress=progress)
    well, well_series = run()

    said = " ".join(shown.getvalue().split())
    assert said.count("A seed stopped learning: ") == 1
    assert told.format(sick) in said
    # The others: every array of the state and every logged number, to the bit.
    for a, b in zip(jax.tree.leaves(state.agent), jax.tree.leaves(well.agent), strict=True):
        np.testing.assert_array_equal(a[np.array(healthy)], b[np.array(healthy)])
    for name in set(well_series) - {ELAPSED}:
        np.testing.assert_array_equal(series[name][healthy], well_series[name][healthy])
    # The sick seed: its weight is that of the stop, its numbers end, and the rows say so.
    assert np.isfinite(state.agent.weight[index]).all()
    assert not np.array_equal(state.agent.weight[index], well.agent.weight[index])
    assert np.isnan(series["Loss/drawn"][index, -1])
    assert np.isnan(series["Train/episodic mean reward"][index, -1])
    assert np.isnan(series["Eval/episodic mean reward"][index, -1])
    last = sink.rows[-1]
    assert last["Health/stopped seeds"] == 1
    assert last[f"Health/stopped at update (seed {sick})"] >= 56
    assert f"Loss/drawn (seed {sick})" not in last
    assert "Health/stopped seeds" not in sink.rows[0]

    # Resumed from a checkpoint of after the stop, the run is the same.
    checkpoints = Checkpoints(tmp_path)
    template = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, state))
    tick = checkpoints.ticks()[-2]
    assert tick > 33
    restored, saved = checkpoints.restore(template, tick)
    again, _ = run(
        algorithm=sick_agent, initial=restored, start_tick=tick, log_state=saved["log_state"]
    )
    jax.tree.map(np.testing.assert_array_equal, again, state)


def test_what_the_agent_says_of_its_counters_stops_the_run():
    def check(counters):
        n = counters["n_updates"]
        return f"{n} updates are too many." if n > 20 else None

    algorithm = counting_agent(counters=lambda state: {"n_updates": state.n_updates}, check=check)
    with pytest.raises(ValueError, match=r"^Seed 3: \d+ updates are too many\.$"):
        run(algorithm=algorithm, evaluate=None, extensions=())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stop_tick": 0}, "a run goes from start_tick, at least 0, to a later stop_tick"),
        ({"start_tick": 9, "stop_tick": 20}, "starts at tick 9 needs its state"),
        ({"log_every": 0}, "log_every must be at least 1 timestep, got 0"),
        ({"eval_every": -3}, "eval_every must be at least 1 timestep, got -3"),
        ({"seeds": []}, "the list of seeds is empty"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_before_any_work(arguments, message):
    with pytest.raises(ValueError, match=message):
        run(**arguments)


def test_a_fresh_run_does_not_mix_with_the_checkpoints_of_another(whole):
    with pytest.raises(ValueError, match="already holds checkpoints of a run: resume it, or give"):
        run(whole[3] / "checkpoints")


@pytest.mark.parametrize("change", ["seeds", "replay", "extensions"])
def test_a_state_of_another_run_is_refused_before_any_work(whole, change):
    arguments = {
        "seeds": {"seeds": [1, 2, 3]},
        "replay": {"algorithm": counting_agent(ring_rows=9)},
        "extensions": {"extensions": ()},
    }[change]
    with pytest.raises(ValueError, match=r"does not fit this run: \..* is .* but the run needs"):
        run(initial=whole[0], start_tick=STOP, stop_tick=STOP + 1, **arguments)


def test_an_evaluation_metric_must_be_a_scalar():
    class Vector:
        def eval_metrics(self, agent, carry, key):
            return {"weight": agent.weight}

    with pytest.raises(ValueError, match=r"weight of an extension must be a scalar, got shape"):
        run(extensions=(Vector(),))


def test_an_old_checkpoint_is_renewed_whatever_the_frequencies(tmp_path):
    run(tmp_path, save_every=None, save_minutes=1e-9, chunk_seconds=1e-9, stop_tick=20)
    saved = Checkpoints(tmp_path).ticks()
    assert len(saved) > 5 and saved[-1] == 20
    with pytest.raises(ValueError, match="save_minutes must be above 0, got 0"):
        run(tmp_path / "other", save_minutes=0)


def test_a_log_that_cannot_be_written_ends_the_run_and_keeps_the_checkpoint(tmp_path):
    class Full(Stub):
        def write(self, row):
            if row["tick"] > 30:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "metrics.csv")

    sink = Full()
    told = (
        r"^The log row of tick 32 could not be written: No space left on device\. "
        r"The checkpoint of tick 26 is unharmed: make room and resume\.$"
    )
    with pytest.raises(OSError, match=told):
        run(tmp_path, sinks=[sink])
    assert sink.closed == 1
    _, saved = Checkpoints(tmp_path).restore(run(stop_tick=1)[0])
    assert saved["tick"] == 26
