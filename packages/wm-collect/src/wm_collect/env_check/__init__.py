"""Does an environment keep the rules? `check_env` runs it and reports what to change."""

from wm_collect.env_check.check import check_env
from wm_collect.env_check.report import EnvReport, Finding

__all__ = ["EnvReport", "Finding", "check_env"]
