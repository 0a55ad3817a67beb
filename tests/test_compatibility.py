"""`tools/compatibility.py`: what it installs, and what it says of an outcome.

The check itself installs environments and trains; it is run by hand and by its own workflow.
"""

import re
import zipfile
from pathlib import Path

import pytest

from . import workspace

compatibility = workspace.load_file("tools/compatibility.py")

DECLARED = {
    "toy-low": ["jax>=1,!=2", 'flax>=3; extra == "nn"', 'torch>=4; extra == "torch"'],
    "toy-middle": ["toy-low[nn]<0.2,>=0.1", "rich>=5"],
    "toy-top": ["toy-middle<0.2,>=0.1", "jax>=1,!=2", 'toy-middle[video]; extra == "video"'],
}


@pytest.fixture
def wheels(tmp_path: Path) -> dict[str, Path]:
    """Three wheels of metadata alone."""
    paths = {}
    for name, lines in DECLARED.items():
        paths[name] = tmp_path / f"{name.replace('-', '_')}-0.1.0-py3-none-any.whl"
        text = "\n".join(["Metadata-Version: 2.4", f"Name: {name}", "Version: 0.1.0"])
        text += "".join(f"\nRequires-Dist: {line}" for line in lines)
        with zipfile.ZipFile(paths[name], "w") as archive:
            archive.writestr(f"{name.replace('-', '_')}-0.1.0.dist-info/METADATA", f"{text}\n\n")
    return paths


def test_all_that_the_wheels_declare_is_given_to_the_resolver(wheels: dict[str, Path]):
    ours = [f"{name} @ {path.as_uri()}" for name, path in wheels.items()]

    lines = compatibility.requirements("toy-top", wheels)

    # flax by the extra that the middle one asks for; neither torch nor the video extra.
    assert lines == sorted([*ours, "flax>=3", "jax!=2,>=1", "rich>=5"])


def test_a_package_brings_nothing_from_above_it(wheels: dict[str, Path]):
    lines = compatibility.requirements("toy-low", wheels)

    assert lines == ["jax!=2,>=1", f"toy-low @ {wheels['toy-low'].as_uri()}"]


def test_the_table_has_the_versions_of_what_is_declared(wheels: dict[str, Path]):
    versions = {"Python": "3.11.7", "toy-low": "0.1.0", "jax": "1.0", "absl-py": "9.9"}
    outcomes = [
        compatibility.Outcome("toy-low", "lowest", "", versions, 1.0),
        compatibility.Outcome("toy-low", "highest", "pip failed", {}, 1.0),
    ]

    assert compatibility.table(outcomes, wheels).splitlines() == [
        "| package | versions | result | Python | jax |",
        "| --- | --- | --- | --- | --- |",
        "| toy-low | lowest | works | 3.11.7 | 1.0 |",
        "| toy-low | highest | fails | – | – |",
    ]


def test_every_package_is_checked_at_both_ends_by_the_workflow(repository: Path):
    assert sorted(compatibility.PACKAGES) == workspace.PACKAGES
    workflow = (repository / ".github/workflows/compatibility.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"resolution: (\w+),", workflow)) == set(compatibility.RESOLUTIONS)
    assert "tools/compatibility.py" in workflow and "--package" not in workflow
