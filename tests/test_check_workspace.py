"""`tools/check_workspace.py` accepts this workspace, and reports each way to break a small one."""

from collections.abc import Callable
from pathlib import Path

import pytest

from . import workspace

check_workspace = workspace.load_file("tools/check_workspace.py").check_workspace

ROOT_PYPROJECT = """
[project]
name = "toy-workspace"
version = "0.0.0"
dependencies = ["toy-low[more]", "toy-left", "toy-right"]

[tool.uv.sources]
toy-low = { workspace = true }
toy-left = { workspace = true }
toy-right = { workspace = true }

[tool.importlinter]
root_packages = ["toy_low", "toy_left", "toy_right"]

[[tool.importlinter.contracts]]
id = "package-layers"
layers = ["toy_left | toy_right", "toy_low"]

[[tool.importlinter.contracts]]
id = "no-cycles"
ancestors = ["toy_low", "toy_left", "toy_right"]
"""

PACKAGE_PYPROJECT = """
[project]
name = "{name}"
version = "0.3.1"
requires-python = ">=3.11"
dependencies = [{dependencies}]

[project.optional-dependencies]
more = ["numpy>=2"]
"""

DEPENDENCIES = {"toy-low": "", "toy-left": '"toy-low[more]>=0.3,<0.4"', "toy-right": '"numpy"'}


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A workspace of three packages in two layers, in which everything agrees."""
    (tmp_path / "pyproject.toml").write_text(ROOT_PYPROJECT)
    (tmp_path / "LICENSE").write_text("Do as you like.")
    for name, dependencies in DEPENDENCIES.items():
        folder = tmp_path / "packages" / name
        source = folder / "src" / name.replace("-", "_")
        for path in (folder / "tests", source):
            path.mkdir(parents=True)
        (source / "py.typed").touch()
        (folder / "LICENSE").write_text("Do as you like.")
        (folder / "README.md").write_text(f"# {name}\n\n" + "Some words about the toy. " * 10)
        (folder / "CHANGELOG.md").write_text("# Changes\n\n## Unreleased\n\n## 0.3.1\n\n## 0.3.0\n")
        (folder / "pyproject.toml").write_text(
            PACKAGE_PYPROJECT.format(name=name, dependencies=dependencies)
        )
    return tmp_path


def replace(file: str, old: str, new: str) -> Callable[[Path], None]:
    """Return the edit that replaces one string in one file, which must be there."""

    def edit(root: Path) -> None:
        text = (root / file).read_text(encoding="utf-8")
        assert old in text
        (root / file).write_text(text.replace(old, new), encoding="utf-8")

    return edit


def remove(file: str) -> Callable[[Path], None]:
    return lambda root: (root / file).unlink()


def test_the_workspace_agrees_with_itself(repository: Path):
    assert check_workspace(repository) == []


def test_a_toy_workspace_agrees_with_itself(toy: Path):
    assert check_workspace(toy) == []


@pytest.mark.parametrize(
    ("break_it", "report"),
    [
        pytest.param(
            replace("packages/toy-left/pyproject.toml", "0.3.1", "0.3.2"),
            "toy-left: version 0.3.2 in pyproject.toml, 0.3.1 is the newest in CHANGELOG.md",
            id="version raised without a changelog entry",
        ),
        pytest.param(
            replace("packages/toy-low/CHANGELOG.md", "## Unreleased", ""),
            "toy-low: CHANGELOG.md does not begin with an 'Unreleased' section",
            id="no unreleased section",
        ),
        pytest.param(
            remove("packages/toy-low/src/toy_low/py.typed"),
            "toy-low: src/toy_low/py.typed is missing",
            id="not typed",
        ),
        pytest.param(
            remove("packages/toy-right/LICENSE"),
            "toy-right: LICENSE is missing",
            id="no license",
        ),
        pytest.param(
            replace("packages/toy-low/LICENSE", "like", "are told"),
            "toy-low: LICENSE differs from the workspace's",
            id="another license",
        ),
        pytest.param(
            replace("packages/toy-low/README.md", "# toy-low", "# Lowlands"),
            "toy-low: README.md does not begin with '# toy-low'",
            id="readme with another title",
        ),
        pytest.param(
            replace("packages/toy-low/README.md", "Some words about the toy. ", ""),
            "toy-low: README.md says too little to be a README",
            id="readme without words",
        ),
        pytest.param(
            replace("pyproject.toml", 'root_packages = ["toy_low", ', "root_packages = ["),
            "importlinter's root_packages and the folders under packages/ differ in: toy_low",
            id="package outside the import contracts",
        ),
        pytest.param(
            replace("pyproject.toml", "toy-right = { workspace = true }", ""),
            "the workspace's uv sources and the folders under packages/ differ in: toy_right",
            id="package that would come from the index",
        ),
        pytest.param(
            replace("packages/toy-right/pyproject.toml", ">=3.11", ">=3.12"),
            "the packages do not all require the same Python",
            id="another Python",
        ),
        pytest.param(
            replace("packages/toy-right/pyproject.toml", "numpy>=2", "numpy>=2.1"),
            "numpy has several ranges: >=2 in toy-left, toy-low; >=2.1 in toy-right",
            id="two ranges of one dependency",
        ),
        pytest.param(
            replace("packages/toy-left/pyproject.toml", ">=0.3,<0.4", ">=0.2,<0.3"),
            "toy-left: 'toy-low[more]<0.3,>=0.2' does not admit toy-low 0.3.1",
            id="range that excludes the member",
        ),
        pytest.param(
            replace("packages/toy-left/pyproject.toml", ">=0.3,<0.4", "==0.3.1"),
            "toy-left: 'toy-low[more]==0.3.1' should have the form >=0.N,<0.N+1",
            id="exact pin",
        ),
        pytest.param(
            replace("packages/toy-right/pyproject.toml", '"numpy"', '"toy-left>=0.3,<0.4"'),
            "toy-right: depends on toy-left, which is not in a lower layer",
            id="dependency on a neighbour",
        ),
    ],
)
def test_a_disagreement_is_reported(toy: Path, break_it: Callable[[Path], None], report: str):
    break_it(toy)

    assert check_workspace(toy) == [report]
