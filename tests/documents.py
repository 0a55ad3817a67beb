"""The code blocks of the documents, and what can be checked about a command without running it."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import re
import shlex
import shutil
import sys
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from unittest import mock

import pytest

from . import workspace

PATTERNS = ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "packages/*/README.md", "tools/*.md")
DOCUMENTS = sorted(
    path.relative_to(workspace.ROOT).as_posix()
    for pattern in PATTERNS
    for path in workspace.ROOT.glob(pattern)
)

BLOCK = re.compile(
    r"^(?P<mark><!-- doc: slow -->\n+)?```(?P<language>\w+)\n(?P<text>.*?)^```$",
    flags=re.MULTILINE | re.DOTALL,
)
SHELLS = {"bash", "sh", "console"}


@dataclasses.dataclass(frozen=True)
class Block:
    """One fenced block; `slow` if the comment `<!-- doc: slow -->` stands before it."""

    language: str
    text: str
    slow: bool


def blocks(document: str) -> list[Block]:
    text = (workspace.ROOT / document).read_text(encoding="utf-8")
    return [
        Block(match["language"], match["text"], slow=match["mark"] is not None)
        for match in BLOCK.finditer(text)
    ]


def commands(block: Block) -> list[list[str]]:
    """Split a shell block into commands, each a list of words; `&&` separates two of them."""
    joined = block.text.replace("\\\n", " ")
    lines = [line.removeprefix("$ ") for line in joined.splitlines()]
    words = [shlex.split(part, comments=True) for line in lines for part in line.split("&&")]
    return [command for command in words if command]


def without_uv_run(command: list[str]) -> list[str]:
    """Return the program behind `uv run [options]`, which the tests start directly."""
    if Path(command[0]).name != "uv" or command[1:2] != ["run"]:
        return command
    with_value = {"--package", "--extra", "--group", "--with"}
    rest = command[2:]
    while rest[0].startswith("-"):
        rest = rest[2:] if rest[0] in with_value else rest[1:]
    return rest


def find_program(name: str) -> str | None:
    """Return where a program is: beside this Python, in the workspace, or on the path."""
    if name in {"python", "python3"}:
        return sys.executable
    if Path(name).name == "uv":
        return workspace.uv()
    beside = Path(sys.executable).parent / name
    inside = workspace.ROOT / name
    for path in (beside, inside):
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    return shutil.which(name)


def run_command(program: str, *words: str, cwd: Path) -> str:
    """Run a command and return what it printed; the workspace's own programs in this process.

    Starting Python and JAX anew takes longer than most commands.
    """
    own = entry_points(group="console_scripts", name=Path(program).name)
    if not any(entry.dist is not None and entry.dist.name in workspace.PACKAGES for entry in own):
        return workspace.run(program, *words, cwd=cwd)
    (entry,) = own
    printed = io.StringIO()
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
        mock.patch.object(sys, "argv", [program, *words]),
        pytest.raises(SystemExit) as stop,
    ):
        entry.load()()
    assert not stop.value.code, f"{' '.join([program, *words])} failed:\n{printed.getvalue()}"
    return printed.getvalue()


@cache
def help_text(*words: str) -> str:
    """Return what `program [subcommand] --help` prints."""
    return run_command(*words, "--help", cwd=workspace.ROOT)


def wrong_words(command: list[str]) -> list[str]:
    """Return what is wrong with a command that is too costly to run, judging by its `--help`.

    Its program has to exist, and so have the options it is given and the files of the workspace
    that it names.
    """
    program = find_program(command[0])
    if program is None:
        return [f"there is no program {command[0]!r}"]
    if without_uv_run(command) != command:
        inner = without_uv_run(command)
        outer = command[: len(command) - len(inner)]
        return unknown_options(program, outer[1:]) + wrong_words(inner)
    problems = []
    if program != sys.executable:  # of `python …` only the files can be checked
        problems += unknown_options(program, command[1:])
    for word in command[1:]:
        in_workspace = word.startswith(("packages/", "tools/", "tests/", "docs/"))
        if in_workspace and not list(workspace.ROOT.glob(word)):
            problems.append(f"there is no {word!r} in the workspace")
    return problems


def unknown_options(program: str, words: list[str]) -> list[str]:
    """Return the long options among `words` that the help of the (sub)command does not name."""
    options = [word.split("=")[0] for word in words if word.startswith("--")]
    subcommand = [word for word in words[:1] if re.fullmatch(r"[a-z][a-z-]*", word)]
    text = help_text(program, *subcommand)
    return [
        f"{' '.join([Path(program).name, *subcommand])} has no option {option}"
        for option in options
        if not re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text)
    ]
