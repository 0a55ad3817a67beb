"""`docs/configuration.md` states every setting of TD-MPC2, and of a run, with its true default."""

import dataclasses
import re
from pathlib import Path

from wm_collect.cli_options import RunOptions
from wm_tdmpc2.config import MODEL_SIZES, TDMPC2Settings


def page(repository: Path) -> str:
    return (repository / "docs/configuration.md").read_text(encoding="utf-8")


def test_every_setting_is_listed_once_with_its_default(repository: Path):
    rows = re.findall(
        r"^\| `(\w+)` \| `([^`]+)` \| [^|]+ \|$", page(repository), flags=re.MULTILINE
    )
    listed = dict(rows)
    assert len(rows) == len(listed), "a setting is listed twice"

    fields = dataclasses.fields(TDMPC2Settings) + dataclasses.fields(RunOptions)
    defaults = {field.name: field.default for field in fields} | {"root": "runs"}
    assert listed == {name: repr(default) for name, default in defaults.items()}


def test_the_model_sizes_are_the_ones_of_the_code(repository: Path):
    rows = re.findall(r"^\| (\d+(?: \| \d+){5}) \|$", page(repository), flags=re.MULTILINE)
    table = [[int(cell) for cell in row.split(" | ")] for row in rows]

    assert table == [[size, *widths.values()] for size, widths in MODEL_SIZES.items()]
    header = " | ".join(f"`{name}`" for name in MODEL_SIZES[5])
    assert header in page(repository)
