"""The hosted workflow runs the script in `.ci/`, for the workspace and for every package."""

import os
import re
from pathlib import Path

from . import workspace


def test_the_workflow_runs_every_package_alone(repository: Path):
    workflow = (repository / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    matrix = re.search(r"package: \[(.+)\]", workflow)
    assert matrix is not None
    assert sorted(matrix.group(1).split(", ")) == workspace.PACKAGES
    assert "- run: .ci/run\n" in workflow
    assert "- run: .ci/run ${{ matrix.package }}\n" in workflow


def test_the_script_can_be_executed_and_ends_with_the_test_command_of_the_readme(repository: Path):
    script = repository / ".ci/run"
    assert os.access(script, os.X_OK)
    text = script.read_text(encoding="utf-8")
    readme = (repository / "README.md").read_text(encoding="utf-8")
    set_up, tests = "python3 -m pip install --quiet --target .uv uv", "uv run pytest"
    assert f"{set_up} && .uv/bin/{tests}\n" in readme
    assert set_up in text
    assert text.endswith('exec "$uv" run pytest\n')
