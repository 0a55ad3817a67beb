"""Extensions: which phases are accepted, and how often and with what each one runs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_collect.extensions import (
    OTHER_PHASES,
    PHASES,
    check_extensions,
    evaluation_metrics,
    implemented_phases,
)
from wm_collect.loop import init_run, make_chunk

from .counting_agent import counting_agent, updates_before


class Everything:
    """Implements every supported phase and counts its calls."""

    def __init__(self, name="everything", gain=1.0):
        self.name = name
        self.gain = gain

    def init_state(self, agent, key):
        return {"noise": jax.random.normal(key), "pretrained": jnp.int32(0), "log": jnp.zeros(64)}

    def pretrain(self, agent, carry, key):
        agent = dataclasses.replace(agent, weight=self.gain * jnp.ones(3))
        return agent, carry | {"pretrained": carry["pretrained"] + 1}

    def post_update(self, agent, carry, key, step, metrics):
        del key
        return agent, carry | {"log": carry["log"].at[step].add(1 + metrics["Train/update"])}

    def eval_metrics(self, agent, carry, key):
        return {f"{self.name}": agent.weight.sum() + 0 * jax.random.normal(key)}


def with_phase(phase):
    return type("Sample", (), {phase: lambda self, *args: None})()


@pytest.mark.parametrize("phase", OTHER_PHASES)
def test_a_phase_without_meaning_here_is_rejected(phase):
    with pytest.raises(ValueError, match=rf"Sample implements {phase}, which the agent does not"):
        check_extensions([with_phase(phase)], agent_name="the agent")


@pytest.mark.parametrize("phase", PHASES)
def test_a_supported_phase_is_accepted_unless_the_agent_leaves_it_out(phase):
    extension = with_phase(phase)
    assert check_extensions([extension]) == (extension,)
    others = tuple(p for p in PHASES if p != phase)
    with pytest.raises(ValueError, match=f"implements {phase}, which this agent does not run"):
        check_extensions([extension], others)


def test_an_extension_that_would_never_run_is_rejected():
    with pytest.raises(ValueError, match="Sample implements no known phase"):
        check_extensions([with_phase("post_updates")])


def test_a_phase_is_a_method_not_a_value():
    assert implemented_phases(type("Sample", (), {"pretrain": None})()) == ()


def test_a_single_extension_is_not_a_sequence():
    with pytest.raises(TypeError, match=r"write extensions=\(my_extension,\)"):
        check_extensions(Everything())


def test_an_agent_cannot_declare_a_phase_that_the_loop_does_not_run():
    with pytest.raises(ValueError, match="declares the phases action, which the training loop"):
        check_extensions([], ("action",))


def test_the_loop_rejects_at_construction_what_the_agent_does_not_support():
    algorithm = counting_agent(supported_phases=("post_update",))
    with pytest.raises(ValueError, match="the counting agent does not run"):
        make_chunk(algorithm, (Everything(),), max_chunk_ticks=1, seeds_batched=False)
    with pytest.raises(ValueError, match="the counting agent does not run"):
        init_run(algorithm, (Everything(),), jax.random.key(0))


@pytest.fixture(scope="module")
def finished_run():
    """Two copies of the extension, with their state before the run and after ten ticks."""
    extensions, key = (Everything("first", 2.0), Everything("second", 3.0)), jax.random.key(1)
    start = jax.jit(lambda key: init_run(counting_agent(), extensions, key))(key)
    before = jax.device_get(start)
    chunk = make_chunk(counting_agent(), extensions, max_chunk_ticks=10, seeds_batched=False)
    run_state, _ = chunk(start, key, jnp.int32(0), jnp.int32(4), None)
    run_state, _ = chunk(run_state, key, jnp.int32(4), jnp.int32(10), None)
    return extensions, before, run_state


def test_pretrain_runs_once_in_order_before_the_first_tick(finished_run):
    _, before, after = finished_run
    np.testing.assert_array_equal(before.agent.weight, 3.0 * np.ones(3))
    for state in (before, after):
        assert [int(carry["pretrained"]) for carry in state.extensions] == [1, 1]


def test_post_update_runs_once_per_update_with_its_index_and_metrics(finished_run):
    _, _, after = finished_run
    n = int(updates_before(10))
    expected = np.where(np.arange(64) < n, 1 + np.arange(64), 0)
    for carry in after.extensions:
        np.testing.assert_array_equal(carry["log"], expected)


def test_each_extension_has_its_own_randomness(finished_run):
    _, before, _ = finished_run
    assert before.extensions[0]["noise"] != before.extensions[1]["noise"]


def test_evaluation_metrics_are_merged(finished_run):
    extensions, _, after = finished_run
    merged = evaluation_metrics(extensions, after.agent, after.extensions, jax.random.key(0))
    assert set(merged) == {"first", "second"}
    assert merged["first"] == after.agent.weight.sum()


def test_two_extensions_may_not_report_the_same_name(finished_run):
    _, _, after = finished_run
    twice = (Everything("same"), Everything("same"))
    with pytest.raises(ValueError, match="two extensions report the evaluation metric same"):
        evaluation_metrics(twice, after.agent, after.extensions, jax.random.key(0))


def test_an_extension_without_a_state_carries_nothing():
    run_state = init_run(counting_agent(), (with_phase("eval_metrics"),), jax.random.key(0))
    assert run_state.extensions == ((),)
