"""Where every random number of a run comes from: the run's seed, the absolute tick, and a purpose.

Nothing in a run advances a key and stores it. Each draw derives its key from the seed key with
`jax.random.fold_in`, first by stream, then by tick, then by purpose, so that a run cut into
chunks, killed and resumed draws exactly what the uninterrupted run would have drawn.

    seed key ─┬─ INIT_STREAM                          initial state of the agent
              ├─ EXTENSION_STREAM ── extension        initial carry of an extension
              ├─ PRETRAIN_STREAM ── extension         its pretrain phase
              ├─ TICK_STREAM ── tick ─┬─ COLLECT      acting and environment of that tick
              │                       ├─ UPDATE ── j  update j of that tick
              │                       └─ POST_UPDATE ── j ── extension
              └─ EVALUATION_STREAM ── tick ─┬─ EVALUATE
                                            └─ EVAL_METRICS ── extension
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

INIT_STREAM = 0
EXTENSION_STREAM = 1
PRETRAIN_STREAM = 2
TICK_STREAM = 3
EVALUATION_STREAM = 4

COLLECT = 0
UPDATE = 1
POST_UPDATE = 2

EVALUATE = 0
EVAL_METRICS = 1

MAX_SEED = 2**32 - 1


def seed_keys(seeds: int | Sequence[int]) -> jax.Array:
    """Return the key of a seed, `[]`, or the keys of a list of seeds, `[S]`.

    Raises:
        TypeError: a seed is not an integer.
        ValueError: the list is empty or repeats a seed, or a seed is outside 0…2³²−1.
    """
    if not isinstance(seeds, Sequence):
        return jax.random.key(_checked_seed(seeds))
    checked = [_checked_seed(seed) for seed in seeds]
    if not checked:
        raise ValueError("the list of seeds is empty: give at least one seed, or a single integer.")
    if len(set(checked)) < len(checked):
        raise ValueError(f"every seed of a list must differ, got {checked}: runs would repeat.")
    return jnp.stack([jax.random.key(seed) for seed in checked])


def tick_key(seed_key: jax.Array, tick: jax.Array | int) -> jax.Array:
    """Return the key from which everything that happens at the absolute `tick` is drawn."""
    return jax.random.fold_in(jax.random.fold_in(seed_key, TICK_STREAM), tick)


def evaluation_key(seed_key: jax.Array, tick: jax.Array | int) -> jax.Array:
    """Return the key of the evaluation made after `tick` ticks; training never draws from it."""
    return jax.random.fold_in(jax.random.fold_in(seed_key, EVALUATION_STREAM), tick)


def _checked_seed(seed: object) -> int:
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise TypeError(f"a seed must be an integer or a list of integers, got {seed!r}.")
    value = seed.__index__()
    if not 0 <= value <= MAX_SEED:
        raise ValueError(f"a seed must lie between 0 and {MAX_SEED}, got {value}.")
    return value
