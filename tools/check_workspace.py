"""Check that what the packages say about themselves, and about each other, agrees.

uv does not check the version ranges between members of a workspace, import-linter does not know
which folders exist, and nothing at all compares a changelog with a version. This script does,
prints one line per disagreement, and exits with 1 if there is any.

Run it with `uv run python tools/check_workspace.py`.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REQUIRED_FILES = ("README.md", "CHANGELOG.md", "LICENSE", "tests")


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def import_name(distribution: str) -> str:
    """Return the name a distribution is imported under: `wm-numerics` gives `wm_numerics`."""
    return distribution.replace("-", "_")


def package_folders(root: Path) -> list[Path]:
    """Return the folders under `packages/` that hold a package, sorted by name."""
    return sorted(path.parent for path in (root / "packages").glob("*/pyproject.toml"))


def released_version(changelog: str) -> str | None:
    """Return the newest released version in a changelog; None if there is no such heading.

    Headings are `## Unreleased`, `## 0.2.0` or `## [0.2.0] - 2026-01-31`.
    """
    match = re.search(r"^## \[?(\d+\.\d+\.\d+[^\s\]]*)", changelog, flags=re.MULTILINE)
    return match.group(1) if match else None


def check_package(folder: Path, root: Path) -> list[str]:
    """Return what is wrong inside one package's folder."""
    project = read_toml(folder / "pyproject.toml")["project"]
    name = project["name"]
    problems = []
    if name != folder.name:
        problems.append(f"{folder.name}: the project is named {name!r}, the folder is not")
    if "version" not in project:
        problems.append(f"{name}: no static version in pyproject.toml")
        return problems

    typed = f"src/{import_name(name)}/py.typed"
    missing = [file for file in (*REQUIRED_FILES, typed) if not (folder / file).exists()]
    problems += [f"{name}: {file} is missing" for file in missing]
    if missing:
        return problems

    license_text = (folder / "LICENSE").read_text(encoding="utf-8")
    if license_text != (root / "LICENSE").read_text(encoding="utf-8"):
        problems.append(f"{name}: LICENSE differs from the workspace's")
    readme = (folder / "README.md").read_text(encoding="utf-8")
    if readme.splitlines()[:1] != [f"# {name}"]:
        problems.append(f"{name}: README.md does not begin with '# {name}'")
    if len(readme.split()) < 30:
        problems.append(f"{name}: README.md says too little to be a README")

    changelog = (folder / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.+)$", changelog, flags=re.MULTILINE)
    if headings[:1] != ["Unreleased"]:
        problems.append(f"{name}: CHANGELOG.md does not begin with an 'Unreleased' section")
    if released_version(changelog) != project["version"]:
        problems.append(
            f"{name}: version {project['version']} in pyproject.toml, "
            f"{released_version(changelog)} is the newest in CHANGELOG.md"
        )
    return problems


def check_ranges(projects: dict[str, dict[str, Any]]) -> list[str]:
    """Return the dependencies between members whose range does not admit the member's version.

    Also returned: exact pins, and ranges without an upper bound, which a breaking release of the
    lower package would break silently.

    Args:
        projects: the `[project]` tables, by distribution name.
    """
    problems = []
    for name, project in projects.items():
        extras = project.get("optional-dependencies", {})
        # An extra may pass on a member's extra; the range is then the one of the plain dependency.
        passed_on = [Requirement(line) for lines in extras.values() for line in lines]
        direct = [Requirement(line) for line in project.get("dependencies", [])]
        for requirement in direct + [r for r in passed_on if r.specifier]:
            member = canonicalize_name(requirement.name)
            if member not in projects:
                continue
            version = projects[member]["version"]
            operators = {specifier.operator for specifier in requirement.specifier}
            if not requirement.specifier.contains(version, prereleases=True):
                problems.append(f"{name}: '{requirement}' does not admit {member} {version}")
            if operators != {">=", "<"}:
                problems.append(f"{name}: '{requirement}' should have the form >=0.N,<0.N+1")
    return problems


def check_shared_dependencies(projects: dict[str, dict[str, Any]]) -> list[str]:
    """Return the packages from elsewhere to which the members give different ranges.

    Members are installed together, so a range that one of them corrects holds for all.

    Args:
        projects: the `[project]` tables, by distribution name.
    """
    ranges: dict[str, dict[str, list[str]]] = {}
    for name, project in projects.items():
        extras = project.get("optional-dependencies", {})
        lines = project.get("dependencies", []) + [line for e in extras.values() for line in e]
        for requirement in map(Requirement, lines):
            other = canonicalize_name(requirement.name)
            if other not in projects and requirement.specifier:
                members = ranges.setdefault(other, {}).setdefault(str(requirement.specifier), [])
                members.append(name)
    return [
        f"{other} has several ranges: "
        + "; ".join(f"{wanted} in {', '.join(names)}" for wanted, names in found.items())
        for other, found in ranges.items()
        if len(found) > 1
    ]


def check_layers(projects: dict[str, dict[str, Any]], layers: list[str]) -> list[str]:
    """Return the declared dependencies that do not point to a lower layer.

    Args:
        projects: the `[project]` tables, by distribution name.
        layers: import-linter's layers from the top down, `|` between packages of one layer.
    """
    height = {
        module.strip(): len(layers) - position
        for position, layer in enumerate(layers)
        for module in layer.split("|")
    }
    problems = []
    for name, project in projects.items():
        for line in project.get("dependencies", []):
            member = canonicalize_name(Requirement(line).name)
            if member not in projects:
                continue
            if height[import_name(member)] >= height[import_name(name)]:
                problems.append(f"{name}: depends on {member}, which is not in a lower layer")
    return problems


def check_workspace(root: Path) -> list[str]:
    """Return every disagreement found in the workspace, one sentence each.

    Args:
        root: the folder with the workspace's `pyproject.toml`.
    """
    workspace = read_toml(root / "pyproject.toml")
    linter = workspace["tool"]["importlinter"]
    contracts = {contract["id"]: contract for contract in linter["contracts"]}
    layers = contracts["package-layers"]["layers"]
    folders = package_folders(root)
    names = {folder.name for folder in folders}
    modules = {import_name(name) for name in names}

    problems = [problem for folder in folders for problem in check_package(folder, root)]
    listed = {
        "importlinter's root_packages": set(linter["root_packages"]),
        "importlinter's layers": {m.strip() for layer in layers for m in layer.split("|")},
        "importlinter's no-cycles ancestors": set(contracts["no-cycles"]["ancestors"]),
        "the workspace's uv sources": {import_name(n) for n in workspace["tool"]["uv"]["sources"]},
        "the workspace's dependencies": {
            import_name(Requirement(line).name) for line in workspace["project"]["dependencies"]
        },
    }
    for where, found in listed.items():
        if found != modules:
            difference = ", ".join(sorted(found ^ modules))
            problems.append(f"{where} and the folders under packages/ differ in: {difference}")

    projects = {folder.name: read_toml(folder / "pyproject.toml")["project"] for folder in folders}
    if len({project["requires-python"] for project in projects.values()}) > 1:
        problems.append("the packages do not all require the same Python")
    problems += check_shared_dependencies(projects)
    if not problems:  # the next two look names up in the lists that were just compared
        problems = check_ranges(projects) + check_layers(projects, layers)
    return problems


def main() -> int:
    """Check the workspace this file lies in, or the one given; return the exit status."""
    parser = argparse.ArgumentParser(description="Check that the packages of a workspace agree.")
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parents[1])
    root = parser.parse_args().root
    problems = check_workspace(root)
    for problem in problems:
        print(problem)
    if not problems:
        print(f"{len(package_folders(root))} packages agree.")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
