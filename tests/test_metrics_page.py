"""`docs/metrics.md` explains every name that a run of either agent logs."""

import re
from pathlib import Path

from wm_collect import metrics
from wm_dreamer.update import METRIC_NAMES as DREAMER_METRICS
from wm_multitask.agent import NORMALISED_SCORE
from wm_tdmpc2.update import EPISODIC_METRIC_NAMES
from wm_tdmpc2.update import METRIC_NAMES as TDMPC2_METRICS


def test_every_logged_name_is_explained_once(repository: Path):
    page = (repository / "docs/metrics.md").read_text(encoding="utf-8")
    explained = re.findall(r"^\| `([^`]+)` \|", page, flags=re.MULTILINE)

    of_every_agent = {
        value for name, value in vars(metrics).items() if name.isupper() and name[0] != "_"
    }
    of_one_agent = {
        metrics.metric_key(name)
        for name in (*TDMPC2_METRICS, *EPISODIC_METRIC_NAMES, *DREAMER_METRICS)
    }
    assert set(explained) == of_every_agent | of_one_agent | {
        "tick",
        "Loss/…",
        NORMALISED_SCORE,
        "Eval/…/<task>",
    }
    assert len(explained) == len(set(explained))
