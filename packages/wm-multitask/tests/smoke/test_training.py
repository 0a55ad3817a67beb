"""A tiny run, looked at from all sides: series, programs, seeds, resume, extensions, evaluation."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_collect import randomness
from wm_collect.loop import init_run, make_chunk
from wm_collect.testing import check_same_state
from wm_multitask import OfflineData, TDMPC2MultiTask

from .fixed_tasks import LENGTHS, TINY, make_dataset

N_UPDATES = 40
NAMES = tuple(LENGTHS)


@pytest.fixture(scope="module")
def agent():
    return TDMPC2MultiTask(make_dataset(), **TINY)


@pytest.fixture(scope="module")
def run(agent):
    return agent.train(
        seed=[0, 5],
        n_timesteps=N_UPDATES,
        num_episode_test=2,
        log_frequency=10,
        eval_frequency=20,
        progress=False,
    )


def test_a_timestep_is_an_update(run):
    state, series = run
    np.testing.assert_array_equal(series["timestep"], [[10, 20, 30, 40]] * 2)
    np.testing.assert_array_equal(series["Train/n_updates"], series["timestep"])
    np.testing.assert_array_equal(state.agent.n_updates, [N_UPDATES] * 2)


def test_the_losses_are_logged_and_fall(run):
    _, series = run
    for name in ("consistency_loss", "reward_loss", "value_loss", "pi_loss", "grad_norm"):
        assert np.isfinite(series[f"Loss/{name}"]).all(), name
    assert np.all(series["Loss/reward_loss"][:, -1] < series["Loss/reward_loss"][:, 0])


def test_every_task_is_evaluated_and_summarised(run):
    _, series = run
    measured = np.isfinite(series["Eval/episodic mean reward"])
    np.testing.assert_array_equal(measured, [[False, True, False, True]] * 2)
    returns = np.stack([series[f"Eval/episodic mean reward/{name}"][measured] for name in NAMES])
    np.testing.assert_allclose(series["Eval/episodic mean reward"][measured], returns.mean(0))
    np.testing.assert_allclose(series["Eval/normalised score"][measured], returns.mean(0) / 10)
    for name, length in LENGTHS.items():
        lengths = series[f"Eval/episodic mean length/{name}"][measured]
        np.testing.assert_array_equal(lengths, length)
        # The counting environment pays 1000 k + e mod 1000 for its k-th step.
        assert np.all(series[f"Eval/episodic mean reward/{name}"][measured] >= 500 * length)


def test_the_embeddings_are_learned_and_stay_in_the_unit_ball(agent, run):
    table = np.asarray(run[0].agent.learner.wm_params["task_emb"])
    assert table.shape == (2, 2, TINY["task_dim"])
    start = jax.vmap(lambda key: init_run(agent.algorithm(1), (), key))
    fresh = jax.jit(start)(randomness.seed_keys([0, 5])).agent.learner.wm_params["task_emb"]
    assert np.all(np.abs(table - fresh).max(axis=-1) > 1e-3)
    assert np.linalg.norm(table, axis=-1).max() < 1


def test_a_seed_of_a_list_is_that_seed_alone(agent, run):
    alone, _ = agent.train(seed=5, n_timesteps=N_UPDATES, num_episode_test=0, progress=False)
    for a, b in zip(
        jax.tree.leaves(alone.agent.learner.pi_params),
        jax.tree.leaves(run[0].agent.learner.pi_params),
        strict=True,
    ):
        np.testing.assert_allclose(a, b[1], rtol=0, atol=2e-4)


@pytest.mark.parametrize("chunks", [dict(max_chunk_ticks=3), dict(max_chunk_ticks=1000)])
def test_a_run_in_two_calls_is_the_run_in_one_whatever_its_chunks(agent, chunks):
    options = dict(num_episode_test=0, progress=False)
    whole, _ = agent.train(seed=1, n_timesteps=21, **options)
    first, _ = agent.train(seed=1, n_timesteps=8, **options, **chunks)
    both, series = agent.train(n_timesteps=13, seed=1, initial_state=first, **options, **chunks)
    assert series["timestep"][-1] == 21
    check_same_state(whole, both)


class CountsUpdates:
    """Counts how often it runs, and reports it with the evaluations."""

    def init_state(self, agent, key):
        return jnp.zeros((), jnp.int32)

    def post_update(self, agent, carry, key, step, metrics):
        return agent, carry + 1

    def eval_metrics(self, agent, carry, key):
        return {"counted": carry.astype(jnp.float32)}


def test_extensions_run_after_every_update_and_beside_the_tasks():
    agent = TDMPC2MultiTask(make_dataset(), **TINY, extensions=(CountsUpdates(),))
    _, series = agent.train(
        n_timesteps=6, num_episode_test=1, eval_frequency=3, log_frequency=3, progress=False
    )
    np.testing.assert_array_equal(series["Eval/counted"], [3, 6])
    assert f"Eval/episodic mean reward/{NAMES[0]}" in series


def test_one_state_is_measured_on_chosen_tasks(agent, run):
    state = jax.tree.map(lambda leaf: leaf[0], run[0])
    measured = agent.evaluate(state, n_episodes=3, tasks=["wide"])
    assert set(measured) == {"wide"} and measured["wide"].episode_return.shape == (3,)
    with pytest.raises(ValueError, match="wide"):
        agent.evaluate(state, tasks=["wyde"])


def test_an_environment_that_is_not_the_datas_is_refused_before_training():
    dataset = make_dataset()
    narrow, wide = dataset.tasks.tasks
    tasks = dataclasses.replace(
        dataset.tasks, tasks=(narrow, dataclasses.replace(wide, env_id="narrow", env_params=None))
    )
    agent = TDMPC2MultiTask(dataclasses.replace(dataset, tasks=tasks), **TINY)
    with pytest.raises(ValueError, match=r"'wide' has obs_dim=5, but its environment"):
        agent.train(n_timesteps=4, num_episode_test=1, progress=False)


# A dataset far larger than everything else a program could hold.
BIG = OfflineData(
    obs=jax.ShapeDtypeStruct((50_000, 13, 5), jnp.float32),
    action=jax.ShapeDtypeStruct((50_000, 13, 2), jnp.float32),
    reward=jax.ShapeDtypeStruct((50_000, 13), jnp.float32),
    task=jax.ShapeDtypeStruct((50_000,), jnp.int32),
)
BIG_BYTES = sum(leaf.size * 4 for leaf in BIG)


@pytest.fixture(scope="module")
def program(agent):
    """The training program of three seeds on the large dataset, lowered."""
    algorithm = agent.algorithm(1)
    keys = jnp.stack([jax.random.key(seed) for seed in range(3)])
    state = jax.eval_shape(jax.vmap(lambda key: init_run(algorithm, (), key)), keys)
    chunk = make_chunk(algorithm, (), max_chunk_ticks=5, seeds_batched=True)
    tick = jax.ShapeDtypeStruct((), jnp.int32)
    return chunk.lower(state, keys, tick, tick, BIG)


def test_the_dataset_is_an_argument_without_a_seed_axis(program):
    text = program.as_text()
    signature = text[text.index("func.func public @main") :].split("{\n")[0]
    assert signature.count("tensor<50000x13x5xf32>") == 1
    assert "tensor<3x50000x13x5xf32>" not in text
    # A constant of its size would be spelled out.
    assert len(text) < BIG_BYTES / 4


def test_the_dataset_is_not_copied_when_the_program_runs(program):
    memory = program.compile().memory_analysis()
    assert memory.temp_size_in_bytes < BIG_BYTES / 2
    assert memory.generated_code_size_in_bytes < BIG_BYTES / 2
