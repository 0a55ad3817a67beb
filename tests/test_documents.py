"""The documents are right: their code runs, their commands exist, their links lead somewhere.

Python blocks of one document run in order and share their names. Shell blocks run command by
command. A block after the comment `<!-- doc: slow -->` is too costly to run here: its Python must
compile, and its commands must name programs, options and files that exist.
"""

import contextlib
import doctest
import os
import re
from pathlib import Path

import pytest

from . import documents, workspace


def documents_with(*languages: str) -> list[str]:
    return [
        document
        for document in documents.DOCUMENTS
        if any(block.language in languages for block in documents.blocks(document))
    ]


# Warnings of other people's libraries are no errors for a reader.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("document", documents_with("python"))
def test_python_blocks_run_in_order(document: str, tmp_path: Path):
    blocks = [block for block in documents.blocks(document) if block.language == "python"]
    # A session shows its results, which doctest compares.
    sessions = [block for block in blocks if block.text.lstrip().startswith(">>>")]
    names: dict[str, object] = {"__name__": "__main__"}
    with contextlib.chdir(tmp_path):
        if sessions:
            tried = doctest.testfile(str(workspace.ROOT / document), module_relative=False)
            assert tried.attempted and not tried.failed
        for block in blocks:
            if block in sessions:
                continue
            program = compile(block.text, document, "exec")
            if not block.slow:
                exec(program, names)


@pytest.mark.parametrize("document", documents_with(*documents.SHELLS))
def test_commands_run_or_at_least_name_what_exists(document: str, tmp_path: Path):
    for block in documents.blocks(document):
        if block.language not in documents.SHELLS:
            continue
        for command in documents.commands(block):
            if block.slow:
                assert documents.wrong_words(command) == [], " ".join(command)
                continue
            name, *arguments = documents.without_uv_run(command)
            program = documents.find_program(name)
            assert program is not None, f"there is no program {name!r}"
            inside = any(word.startswith(("tools/", "packages/")) for word in arguments)
            documents.run_command(program, *arguments, cwd=workspace.ROOT if inside else tmp_path)


@pytest.mark.parametrize("document", documents.DOCUMENTS)
def test_links_lead_somewhere(document: str):
    path = workspace.ROOT / document
    text = path.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#\s]+)", text)
    local = [link for link in links if not re.match(r"[a-z]+:", link)]
    missing = [link for link in local if not (path.parent / link).exists()]
    assert missing == []


def test_every_cited_deviation_is_registered():
    register = (workspace.ROOT / "docs/deviations.md").read_text(encoding="utf-8")
    registered = re.findall(r"^\| ([DTE]\d+) \|", register, flags=re.MULTILINE)
    assert len(registered) == len(set(registered)), "a number is used twice"

    cited: dict[str, str] = {}
    for path in workspace.ROOT.glob("packages/*/**/*.py"):
        for number in re.findall(r"\b[DTE]\d{2}\b", path.read_text(encoding="utf-8")):
            cited.setdefault(number, os.fspath(path.relative_to(workspace.ROOT)))
    assert "T24" in cited, "the search finds what the two-hot code is known to cite"
    unknown = {number: path for number, path in cited.items() if number not in registered}
    assert unknown == {}
