"""λ-returns along imagined and replayed trajectories.

Source: danijar/dreamerv3@2411f7d, dreamerv3/agent.py, `Agent.loss`.
"""

import jax
import jax.numpy as jnp


def lambda_return(
    reward: jax.Array, cont: jax.Array, value: jax.Array, bootstrap: jax.Array, lam: float
) -> jax.Array:
    """Return the λ-returns of imagined trajectories, time first.

    R_H = bootstrap; R_j = r_{j+1} + c_{j+1}·((1 − λ)·v_{j+1} + λ·R_{j+1}).

    Args:
        reward: predicted rewards of the states 1 to H, `[H, N]`.
        cont: predicted continuation of the same states, the discount included, `[H, N]`.
        value: values of the same states, `[H, N]`.
        bootstrap: value of the last state, `[N]`.
        lam: λ.

    Returns:
        R_0 to R_{H−1}, `[H, N]`, reward units.
    """

    def step(later: jax.Array, x: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        r, c, v = x
        now = r + c * ((1 - lam) * v + lam * later)
        return now, now

    _, returns = jax.lax.scan(step, bootstrap, (reward, cont, value), reverse=True)
    return returns


def replay_return(
    reward: jax.Array,
    is_last: jax.Array,
    is_terminal: jax.Array,
    bootstrap: jax.Array,
    *,
    gamma: float,
    lam: float,
) -> jax.Array:
    """Return the λ-returns of replayed rows, bootstrapped from imagined returns, time first.

    Q_{T−1} = b_{T−1}; Q_t = r_{t+1} + live_{t+1}·((1 − cont_{t+1})·b_{t+1} + cont_{t+1}·Q_{t+1})
    with live = γ·(1 − is_terminal) and cont = λ·(1 − is_last).

    Args:
        reward: reward received on entering each row, `[T, B]`.
        is_last: annotated flags, `[T, B]` bool.
        is_terminal: `[T, B]` bool.
        bootstrap: imagined return from each row, `[T, B]`.
        gamma: γ, the fixed discount.
        lam: λ.

    Returns:
        Q_0 to Q_{T−2}, `[T − 1, B]`, reward units.
    """
    live = gamma * (1 - is_terminal.astype(jnp.float32))
    cont = lam * (1 - is_last.astype(jnp.float32))

    def step(later: jax.Array, x: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        r, alive, mix, b = x
        now = r + alive * ((1 - mix) * b + mix * later)
        return now, now

    xs = (reward[1:], live[1:], cont[1:], bootstrap[1:])
    _, returns = jax.lax.scan(step, bootstrap[-1], xs, reverse=True)
    return returns
