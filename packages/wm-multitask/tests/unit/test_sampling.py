"""Slices drawn from a dataset, against NumPy's indexing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wm_multitask import OfflineData, pool_tasks, sample
from wm_multitask.sampling import gather

from .toy_tasks import HOP, REACH, SWIM, make_episodes

HORIZON = 3


@pytest.fixture(scope="module")
def dataset():
    return pool_tasks(
        [
            make_episodes(REACH, n=2, seed=0),
            make_episodes(SWIM, n=5, seed=1),
            make_episodes(HOP, seed=2),
        ]
    )


def test_gathered_slices_are_the_rows_of_their_episode(dataset):
    episode = np.array([0, 3, 10, 6])
    offset = np.array([0, 1, 2, 2])
    batch, task = gather(
        OfflineData.of(dataset), jnp.asarray(episode), jnp.asarray(offset), horizon=HORIZON
    )
    for b, (e, s) in enumerate(zip(episode, offset, strict=True)):
        np.testing.assert_array_equal(batch.obs[:, b], dataset.obs[e, s : s + HORIZON + 1])
        np.testing.assert_array_equal(batch.action[:, b], dataset.action[e, s : s + HORIZON])
        np.testing.assert_array_equal(
            batch.reward[:, b], dataset.reward[e, s + 1 : s + 1 + HORIZON]
        )
        assert task[b] == dataset.task[e]


def test_episodes_and_offsets_are_drawn_uniformly_the_last_included(dataset):
    n = 40_000
    batch, task = jax.jit(sample, static_argnames=("batch_size", "horizon"))(
        OfflineData.of(dataset), jax.random.key(0), batch_size=n, horizon=HORIZON
    )
    # Observations are random numbers: the first names its episode and offset.
    firsts = {v: (e, s) for (e, s), v in np.ndenumerate(dataset.obs[:, :, 0])}
    drawn = np.array([firsts[v] for v in np.asarray(batch.obs[0, :, 0])])
    counts = np.zeros((dataset.n_episodes, dataset.n_rows))
    np.add.at(counts, tuple(drawn.T), 1)
    n_offsets = dataset.n_rows - HORIZON
    assert not counts[:, n_offsets:].any()
    expected = n / (dataset.n_episodes * n_offsets)
    assert np.abs(counts[:, :n_offsets] - expected).max() < 5 * np.sqrt(expected)
    np.testing.assert_array_equal(task, dataset.task[drawn[:, 0]])
    shares = np.bincount(np.asarray(task)) / n
    np.testing.assert_allclose(shares, dataset.episodes_per_task / dataset.n_episodes, atol=0.02)
