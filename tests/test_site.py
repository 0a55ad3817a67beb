"""The documentation site lists every page once, and its reference misses no public name."""

import ast
from pathlib import Path
from typing import Any

import pytest
import yaml

from . import workspace


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml without importing the Python objects that it names."""


_Loader.add_multi_constructor(
    "tag:yaml.org,2002:python/name:", lambda loader, name, node: f"python object {name}"
)


def pages_of(nav: Any) -> list[str]:
    """Return the pages of a navigation, in order."""
    if isinstance(nav, str):
        return [nav]
    parts = nav if isinstance(nav, list) else nav.values()
    return [page for part in parts for page in pages_of(part)]


def test_the_navigation_lists_every_page_once(repository: Path):
    text = (repository / "mkdocs.yml").read_text(encoding="utf-8")
    site = yaml.load(text, Loader=_Loader)
    docs = repository / site["docs_dir"]
    pages = sorted(path.relative_to(docs).as_posix() for path in docs.rglob("*.md"))
    assert sorted(pages_of(site["nav"])) == pages


@pytest.mark.parametrize("package", workspace.PACKAGES)
def test_the_reference_names_what_a_module_of_the_same_name_hides(repository: Path, package: str):
    """To the tool that reads the sources, `wm_dreamer.update` is the module, not the function."""
    module = package.replace("-", "_")
    folder = repository / "packages" / package / "src" / module
    tree = ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))
    public = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    hidden = [name for name in public if (folder / f"{name}.py").exists()]
    page = (repository / f"docs/reference/{module}.md").read_text(encoding="utf-8")
    assert f"::: {module}\n" in page
    assert [name for name in hidden if f"::: {module}.{name}.{name}\n" not in page] == []
