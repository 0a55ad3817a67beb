"""`docs/metrics.md` explains every name that a run of either agent logs."""

import re
from pathlib import Path

from wm_collect import metrics
from wm_dreamer.update import METRIC_NAMES as DREAMER_METRICS
from wm_dreamer.update import MODULES
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
    # The norms of one network's gradient, or of one module's, share a line.
    norms = {name for name in of_one_agent if name.startswith("Train/grad_norm/")}
    assert len(norms) == len(MODULES)
    assert set(explained) == of_every_agent | of_one_agent - norms | {
        "Train/grad_norm/<network>",
        "Train/grad_norm/<module>",
        "tick",
        "Loss/…",
        NORMALISED_SCORE,
        "Eval/…/<task>",
    }
    assert len(explained) == len(set(explained))
