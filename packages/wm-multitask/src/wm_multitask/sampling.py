"""Batches of slices drawn from a pooled dataset, on the device.

Source: nicklashansen/tdmpc2@b67b21c, common/buffer.py, `Buffer.sample`. Deviations: T29.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from wm_multitask.dataset import MultiTaskDataset
from wm_tdmpc2 import Batch


class OfflineData(NamedTuple):
    """The arrays of a dataset on the device; N episodes of R rows."""

    obs: jax.Array  # [N, R, O]
    action: jax.Array  # [N, R, A]
    reward: jax.Array  # [N, R]
    task: jax.Array  # [N] int32

    @classmethod
    def of(cls, dataset: MultiTaskDataset) -> "OfflineData":
        """Put a dataset on the device, once for all seeds."""
        return cls(
            obs=jnp.asarray(dataset.obs),
            action=jnp.asarray(dataset.action),
            reward=jnp.asarray(dataset.reward),
            task=jnp.asarray(dataset.task),
        )


def sample(
    data: OfflineData, key: jax.Array, *, batch_size: int, horizon: int
) -> tuple[Batch, jax.Array]:
    """Draw slices: a pooled episode uniformly with replacement, then an offset uniformly.

    So a task is drawn in proportion to its episodes. Offsets go from 0 to R − 1 − H, the last one
    included.

    Args:
        data: the dataset.
        key: consumed.
        batch_size: B.
        horizon: H.

    Returns:
        The slices, time first, and the task of each, `[B]` int32.
    """
    n_episodes, n_rows = data.reward.shape
    episode_key, offset_key = jax.random.split(key)
    episode = jax.random.randint(episode_key, (batch_size,), 0, n_episodes, jnp.int32)
    offset = jax.random.randint(offset_key, (batch_size,), 0, n_rows - horizon, jnp.int32)
    return gather(data, episode, offset, horizon=horizon)


def gather(
    data: OfflineData, episode: jax.Array, offset: jax.Array, *, horizon: int
) -> tuple[Batch, jax.Array]:
    """Read the slices of H steps that begin at rows `offset` of `episode`, both `[B]` int32."""
    rows = offset[None, :] + jnp.arange(horizon + 1, dtype=jnp.int32)[:, None]
    episodes = jnp.broadcast_to(episode, rows.shape)

    def read(array: jax.Array, rows: jax.Array) -> jax.Array:
        places = (episodes[: len(rows)], rows)
        return array.at[places].get(mode="promise_in_bounds", wrap_negative_indices=False)

    batch = Batch(
        obs=read(data.obs, rows),
        action=read(data.action, rows[:-1]),
        reward=read(data.reward, rows[1:]),
    )
    return batch, data.task[episode]
