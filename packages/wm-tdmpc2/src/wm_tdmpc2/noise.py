"""Every random draw of an update and of a decision, as explicit arrays.

The pure functions take these tuples as arguments, so recorded draws of the reference can be
replayed. Dropout masks enter as keys: a mask is one number per unit of a hidden layer, cheaper
to draw where it is used.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from wm_tdmpc2.config import TDMPC2Config


class UpdateNoise(NamedTuple):
    """The draws of one update, in the reference's order.

    Axes: H horizon, B batch, A action. Normal draws are standard normal.
    """

    td_eps: jax.Array  # [H, B, A] policy sample in the TD target
    td_dropout: jax.Array  # key, target Q in the TD target
    td_q_pair: jax.Array  # [2] int32, distinct members whose minimum is the target
    value_dropout: jax.Array  # key, online Q in the value loss
    pi_eps: jax.Array  # [H + 1, B, A] policy sample in the policy loss
    pi_dropout: jax.Array  # key, online Q in the policy loss
    pi_q_pair: jax.Array  # [2] int32, distinct members averaged in the policy loss


class PlanNoise(NamedTuple):
    """The draws of one decision, in the reference's order.

    Axes: H horizon, P policy trajectories, N candidates, I iterations, A action. Normal draws
    are standard normal.
    """

    traj_eps: jax.Array  # [H, P, A] policy samples along the policy trajectories
    mppi_eps: jax.Array  # [I, H, N - P, A] candidates around the sampling mean
    terminal_eps: jax.Array  # [I, N, A] policy sample at the last latent
    dropout: jax.Array  # [I] keys, Q at the last latent
    q_pair: jax.Array  # [I, 2] int32, distinct members averaged at the last latent
    elite_uniform: jax.Array  # [] in [0, 1), chooses the executed elite
    final_eps: jax.Array  # [A] exploration noise, unused in eval mode


def draw_update_noise(key: jax.Array, *, config: TDMPC2Config) -> UpdateNoise:
    """Draw the noise of one update; `key` is consumed."""
    h, b, a = config.horizon, config.batch_size, config.action_dim
    k_td_eps, k_td_drop, k_td_pair, k_value, k_pi_eps, k_pi_drop, k_pi_pair = jax.random.split(
        key, 7
    )
    return UpdateNoise(
        td_eps=jax.random.normal(k_td_eps, (h, b, a)),
        td_dropout=k_td_drop,
        td_q_pair=draw_q_pair(k_td_pair, config.num_q),
        value_dropout=k_value,
        pi_eps=jax.random.normal(k_pi_eps, (h + 1, b, a)),
        pi_dropout=k_pi_drop,
        pi_q_pair=draw_q_pair(k_pi_pair, config.num_q),
    )


def draw_plan_noise(key: jax.Array, *, config: TDMPC2Config) -> PlanNoise:
    """Draw the noise of one decision of one environment; `key` is consumed."""
    h, a, i = config.horizon, config.action_dim, config.iterations
    n, p = config.num_samples, config.num_pi_trajs
    k_traj, k_mppi, k_terminal, k_dropout, k_pair, k_elite, k_final = jax.random.split(key, 7)
    return PlanNoise(
        traj_eps=jax.random.normal(k_traj, (h, p, a)),
        mppi_eps=jax.random.normal(k_mppi, (i, h, n - p, a)),
        terminal_eps=jax.random.normal(k_terminal, (i, n, a)),
        dropout=jax.random.split(k_dropout, i),
        q_pair=jax.vmap(draw_q_pair, in_axes=(0, None))(jax.random.split(k_pair, i), config.num_q),
        elite_uniform=jax.random.uniform(k_elite, ()),
        final_eps=jax.random.normal(k_final, (a,)),
    )


def draw_q_pair(key: jax.Array, num_q: int) -> jax.Array:
    """Draw two distinct ensemble members uniformly, `[2]` int32; `key` is consumed."""
    k_first, k_second = jax.random.split(key)
    first = jax.random.randint(k_first, (), 0, num_q)
    second = jax.random.randint(k_second, (), 0, num_q - 1)
    # Skipping over the first member makes the second uniform over the others.
    return jnp.stack([first, second + (second >= first)])
