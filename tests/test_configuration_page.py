"""`docs/configuration.md` states every setting of each agent, and of a run, with its default."""

import dataclasses
import re
from pathlib import Path

import pytest

from wm_collect.cli_options import RunOptions
from wm_dreamer import config as dreamer
from wm_multitask.config import MultiTaskSettings
from wm_tdmpc2 import config as tdmpc2


def section(repository: Path, title: str) -> str:
    page = (repository / "docs/configuration.md").read_text(encoding="utf-8")
    (text,) = (part for part in page.split("\n## ") if part.startswith(f"{title}\n"))
    return text


@pytest.mark.parametrize(
    ("title", "settings"),
    [
        pytest.param("TD-MPC2", tdmpc2.TDMPC2Settings, id="TD-MPC2"),
        pytest.param("DreamerV3", dreamer.DreamerV3Settings, id="DreamerV3"),
        pytest.param("Run", RunOptions, id="run"),
    ],
)
def test_every_setting_is_listed_once_with_its_default(
    repository: Path, title: str, settings: type
):
    text = section(repository, title)
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \| [^|]+ \|$", text, flags=re.MULTILINE)
    listed = dict(rows)
    assert len(rows) == len(listed), "a setting is listed twice"

    defaults = {field.name: field.default for field in dataclasses.fields(settings)}
    if settings is RunOptions:
        defaults["root"] = "runs"
    assert listed == {name: repr(default) for name, default in defaults.items()}


def test_the_settings_of_the_multi_task_agent_are_those_of_the_single_and_two(repository: Path):
    rows = re.findall(
        r"^\| `(\w+)` \| `([^`]+)` \| [^|]+ \|$",
        section(repository, "Multi-task TD-MPC2"),
        flags=re.MULTILINE,
    )
    shared = {field.name: field.default for field in dataclasses.fields(tdmpc2.ModelSettings)}
    own = {field.name: field.default for field in dataclasses.fields(MultiTaskSettings)}
    differing = {name: repr(value) for name, value in own.items() if shared.get(name) != value}
    assert dict(rows) == differing and set(own) >= set(shared)


@pytest.mark.parametrize(
    ("title", "sizes"),
    [
        pytest.param("TD-MPC2", tdmpc2.MODEL_SIZES, id="TD-MPC2"),
        pytest.param("DreamerV3", dreamer.MODEL_SIZES, id="DreamerV3"),
    ],
)
def test_the_model_sizes_are_the_ones_of_the_code(repository: Path, title: str, sizes: dict):
    text = section(repository, title)
    rows = re.findall(r"^\| (\d+m?(?: \| \d+)+) \|$", text, flags=re.MULTILINE)

    expected = [[size, *widths.values()] for size, widths in sizes.items()]
    assert [row.split(" | ") for row in rows] == [[str(cell) for cell in row] for row in expected]
    header = " | ".join(f"`{name}`" for name in next(iter(sizes.values())))
    assert f"| `model_size` | {header} |" in text
