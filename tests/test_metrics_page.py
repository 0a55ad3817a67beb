"""`docs/metrics.md` explains every name that a TD-MPC2 run logs."""

import re
from pathlib import Path

from wm_collect import metrics
from wm_tdmpc2.update import METRIC_NAMES


def test_every_logged_name_is_explained(repository: Path):
    page = (repository / "docs/metrics.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"^\| `([^`]+)` \|", page, flags=re.MULTILINE))

    of_every_agent = {
        value for name, value in vars(metrics).items() if name.isupper() and name[0] != "_"
    }
    of_tdmpc2 = {metrics.metric_key(name) for name in METRIC_NAMES}
    assert explained == of_every_agent | of_tdmpc2 | {"tick", "Loss/…"}
