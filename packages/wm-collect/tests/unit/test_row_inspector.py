import io

import numpy as np
import pytest
from rich.console import Console

from wm_collect import inspect_rows, print_rows
from wm_collect.testing import CounterEnv, check_rows


def printed(rows):
    console = Console(file=io.StringIO(), width=200)
    print_rows(rows, console)
    lines = console.file.getvalue().splitlines()
    header = next(i for i, line in enumerate(lines) if "episode return" in line)
    return [line for line in lines[header + 2 :] if line.strip(" ─")]


def test_rows_are_those_of_the_collector():
    env = CounterEnv([3])
    rows = inspect_rows(env, n_rows=9, n_envs=2)
    check_rows(rows, env.spec)
    assert rows.obs.shape == (9, 2, 3)
    # An observation names the action that led to it.
    moved = ~rows.is_first[1:]
    np.testing.assert_array_equal(rows.obs[1:, :, 2][moved], rows.action[:-1, :, 0][moved])


def test_printed_rows_show_ends_returns_and_what_follows_an_action():
    rows = inspect_rows(CounterEnv([2, 3], terminates=[True]), n_rows=6)
    lines = printed(rows)
    assert len(lines) == 6
    for tick, line in enumerate(lines):
        assert line.split()[:2] == [str(tick), "0"]
        assert f"{rows.obs[tick, 0, 1]:.3f}" in line
        # Both flags of a last row that is terminal, the one of a first row, or none.
        flags = rows.is_first[tick, 0], rows.is_last[tick, 0], rows.is_terminal[tick, 0]
        assert line.count("yes") == sum(flags)
    last = int(rows.is_last[:, 0].argmax())
    total = rows.reward[: last + 1, 0].sum()
    assert lines[last].split()[-1] == f"{total:.4g}"
    assert lines[last + 1].split()[-1] == "0"
    action = f"{rows.action[0, 0, 0]:.3f}"
    assert action in lines[0] and action in lines[1]


def test_discrete_actions_and_long_observations_fit():
    rows = inspect_rows(CounterEnv([3], obs_dim=20, discrete=True, action_dim=3), n_rows=2)
    first = printed(rows)[0]
    assert "…" in first and f" {rows.action[0, 0]} " in first


def test_no_rows_are_refused():
    with pytest.raises(ValueError, match="n_rows must be at least 1"):
        inspect_rows(CounterEnv([3]), n_rows=0)
