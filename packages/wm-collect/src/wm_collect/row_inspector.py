"""Rows as the collector makes them, collected in a few lines and printed side by side.

To see what an agent will learn from: that the observation after an action stands in the next row,
with the reward of that step, and how episodes end and begin.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from wm_collect.collector import (
    Policy,
    collect_dynamic,
    collect_static,
    init_collector,
    random_policy,
)
from wm_collect.compile_cache import enable_compile_cache
from wm_collect.environment import Environment, make_env
from wm_collect.quiet import quiet_xla
from wm_collect.row import Row

# A longer observation is cut: what is looked for shows in its first entries.
_MOST_ENTRIES = 6


def collect_rows(
    env: Environment, *, n_envs: int, n_ticks: int, key: jax.Array, policy: Policy | None = None
) -> Row:
    """Collect rows from tick 0 on, in static mode where the spec promises a fixed length.

    Args:
        env: a single environment.
        n_envs: N.
        n_ticks: rows of each environment.
        key: the run's key; tick i uses it folded with i.
        policy: one without a carry; by default uniform random actions.

    Returns:
        The rows stacked over ticks, `[n_ticks, N, ...]`, as NumPy arrays.
    """
    act = random_policy(env.spec) if policy is None else policy
    collect = collect_static if env.spec.fixed_length else collect_dynamic

    @jax.jit
    def run(key: jax.Array) -> Row:
        init_key, run_key = jax.random.split(key)

        def one_tick(state: Any, tick: jax.Array) -> tuple[Any, Row]:
            tick_key = jax.random.fold_in(run_key, tick)
            state, row, _, _ = collect(env, state, tick, tick_key, act)
            return state, row

        state = init_collector(env, n_envs, init_key, None)
        return jax.lax.scan(one_tick, state, jnp.arange(n_ticks, dtype=jnp.int32))[1]

    return jax.tree.map(np.asarray, run(key))


def inspect_rows(
    env: str | Any,
    *,
    n_rows: int = 20,
    n_envs: int = 1,
    policy: Policy | None = None,
    seed: int = 0,
) -> Row:
    """Collect a few rows from the beginning of a run, to be looked at.

    Args:
        env: whatever `make_env` takes.
        n_rows: rows of each environment, at least 1.
        n_envs: N, at least 1.
        policy: one without a carry; None draws actions uniformly.
        seed: draws resets, steps and actions.

    Returns:
        The rows stacked over ticks, `[n_rows, N, ...]`, as NumPy arrays; `print_rows` shows them.

    Raises:
        ValueError: a number is below 1, or what `make_env` raises.
    """
    if n_rows < 1:
        raise ValueError(f"n_rows must be at least 1, got {n_rows}.")
    enable_compile_cache()
    made = make_env(env)
    with quiet_xla():
        return collect_rows(
            made, n_envs=n_envs, n_ticks=n_rows, key=jax.random.key(seed), policy=policy
        )


def print_rows(rows: Row, console: Console | None = None) -> None:
    """Print rows aligned, one line per tick and environment.

    The last column is the sum of the episode's rewards so far: on a last row, its return.

    Args:
        rows: rows stacked over ticks from the beginning of a run, `[ticks, N, ...]`.
        console: where to; None is standard output.
    """
    n_ticks, n_envs = np.shape(rows.reward)
    table = Table(box=box.SIMPLE, pad_edge=False)
    for name in ("tick", "env", "obs", "action", "reward"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("is_first", "is_last", "is_terminal"):
        table.add_column(name, no_wrap=True)
    table.add_column("episode return", justify="right", no_wrap=True)
    sums = _running_returns(np.asarray(rows.reward), np.asarray(rows.is_first))
    for env in range(n_envs):
        for tick in range(n_ticks):
            row = jax.tree.map(lambda leaf, at=(tick, env): leaf[at], rows)
            flags = (row.is_first, row.is_last, row.is_terminal)
            table.add_row(
                str(tick),
                str(env),
                _entries(row.obs),
                # Nothing is chosen on a last row; its zeros are a filling.
                "–" if row.is_last else _entries(row.action),
                "–" if row.is_first else f"{row.reward:.4g}",
                *("yes" if flag else "" for flag in flags),
                f"{sums[tick, env]:.4g}",
                end_section=bool(row.is_last) or tick == n_ticks - 1,
            )
    # Lines must stay whole to be compared, however narrow the terminal.
    (console or Console(highlight=False, width=_width(table))).print(table)


def _running_returns(reward: np.ndarray, is_first: np.ndarray) -> np.ndarray:
    """Return each row's sum of its episode's rewards so far, `[ticks, N]`."""
    sums = np.zeros_like(reward)
    total = np.zeros_like(reward[0])
    for tick in range(len(reward)):
        total = np.where(is_first[tick], 0.0, total) + reward[tick]
        sums[tick] = total
    return sums


def _entries(values: Any) -> str:
    """Return numbers as text of equal width, cut after the first few."""
    if np.ndim(values) == 0:
        return str(values)
    shown = " ".join(f"{value: .3f}" for value in values[:_MOST_ENTRIES])
    return shown + (" …" if len(values) > _MOST_ENTRIES else "")


def _width(table: Table) -> int:
    wide = Console(width=10_000)
    return max(table.__rich_measure__(wide, wide.options).maximum, wide.options.min_width)
