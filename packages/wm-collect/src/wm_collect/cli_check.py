"""The subcommand `check`: a report on an environment, and some of its rows."""

from typing import Any

from wm_collect.cli_options import CheckEnv
from wm_collect.env_check import check_env
from wm_collect.environment import make_env
from wm_collect.row_inspector import inspect_rows, print_rows


def check_environment(parsed: CheckEnv) -> int:
    """Print the report on an environment, then some of its rows; return 1 if there are errors."""
    if parsed.rows < 0:
        raise ValueError(f"rows must be at least 0, got {parsed.rows}.")
    options: dict[str, Any] = {
        "episode_length": parsed.episode_length,
        "env_params": parsed.env.env_params,
        "terminates": parsed.env.terminates,
    }
    report = check_env(parsed.env_id, n_steps=parsed.n_steps, seed=parsed.seed, **options)
    report.print()
    if not report.ok:
        return 1
    if parsed.rows:
        env = make_env(parsed.env_id, **options)
        print_rows(inspect_rows(env, n_rows=parsed.rows, seed=parsed.seed))
    return 0
