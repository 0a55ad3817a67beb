"""What an update or a decision needs to know about the tasks it serves, when there are several.

Every function that takes a `TaskContext` takes None for the agent of a single task, and is then the
program of a single task, without a trace of this. `wm_multitask` makes the contexts.

A task is told apart by its embedding, a row of the table `wm_params["task_emb"]`, which is
appended to the input of every network. Rows are kept inside the unit ball: whoever looks a row up
first shrinks it if it is longer. That happens outside the gradient and stays in the table.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from wm_tdmpc2.config import TDMPC2Config
from wm_tdmpc2.networks import Params, first_linear, with_first_linear

MAX_NORM = 1.0
# What the renormalisation adds to a row's norm before it divides by it.
RENORM_EPS = 1e-7


class TaskContext(NamedTuple):
    """The tasks of B slices, with leading axis `[B]`, or the task of one decision, without."""

    task: jax.Array  # [B] or [], int32: row of the embedding table
    action_mask: jax.Array  # [B, A] or [A]: 1 for the dimensions the task has, 0 for padding
    discount: jax.Array  # [B] or []


def renormalised(table: jax.Array, task: jax.Array) -> jax.Array:
    """Return the embedding table with the rows of the given tasks shrunk into the unit ball.

    A row of norm n > 1 becomes row · 1 / (n + 1e-7); the others, and the rows of absent tasks,
    stay as they are.

    Args:
        table: `[n_tasks, D]`.
        task: int32 of any shape; a task may be named several times.

    Source: nicklashansen/tdmpc2@b67b21c, common/world_model.py, `WorldModel.task_emb`; the rule is
    that of `torch.nn.Embedding(max_norm=1)`.
    """
    norm = jnp.linalg.norm(table, axis=-1, keepdims=True)
    shrunk = table * (MAX_NORM / (norm + RENORM_EPS))
    present = jnp.zeros((table.shape[0], 1), bool).at[task.reshape(-1)].set(True)
    return jnp.where(present & (norm > MAX_NORM), shrunk, table)


def bind_task(
    wm_params: Params, pi_params: Params, embedding: jax.Array, *, obs_dim: int, latent_dim: int
) -> tuple[Params, Params]:
    """Return the networks as they are for one task: its embedding folded into first biases.

    An input that never changes adds the same vector to a first layer's output every time. A
    decision evaluates the networks on thousands of candidates of one task, so it is added once.

    Args:
        wm_params: world-model parameters with a table of embeddings.
        pi_params: policy-prior parameters.
        embedding: the task's row, `[D]`.
        obs_dim: O, width of the encoder's input before the embedding.
        latent_dim: Z, the same of the other networks.

    Returns:
        Parameters of networks that take no embedding; the table is left out.
    """

    def bound(params: Params, start: int) -> Params:
        kernel, bias = first_linear(params)
        end = start + embedding.shape[-1]
        constant = embedding @ kernel[..., start:end, :]
        kernel = jnp.concatenate([kernel[..., :start, :], kernel[..., end:, :]], axis=-2)
        return with_first_linear(params, kernel, bias + constant)

    networks = {
        name: bound(params, obs_dim if name == "encoder" else latent_dim)
        for name, params in wm_params.items()
        if name != "task_emb"
    }
    return networks, bound(pi_params, latent_dim)


def networks_of(
    wm_params: Params, pi_params: Params, task: TaskContext | None, *, config: TDMPC2Config
) -> tuple[Params, Params, jax.Array | None]:
    """Return the networks that decide for one task, and its action mask `[A]`, or None.

    The task's embedding is read renormalised and bound, see `bind_task`; the table stays as it is.
    Without a task the networks are returned as they are.

    Args:
        wm_params: world-model parameters.
        pi_params: policy-prior parameters.
        task: the one task; None for the agent of a single task.
        config: the sizes.
    """
    if task is None:
        return wm_params, pi_params, None
    embedding = renormalised(wm_params["task_emb"], task.task)[task.task]
    networks, pi_params = bind_task(
        wm_params, pi_params, embedding, obs_dim=config.obs_dim, latent_dim=config.latent_dim
    )
    return networks, pi_params, task.action_mask
