"""Where runs come from: the machine, the day and the revision of each sitting.

A sitting is one start of the runner on one run. The versions of packages and where a run was
resumed are in the run folder's own `config.json`.
"""

import datetime
import json
import subprocess
from pathlib import Path
from typing import Any

from machine import description

_FILE = "sittings.jsonl"
_ROOT = Path(__file__).parents[2]


def record_sitting(folder: Path) -> None:
    """Note that a run is started or gone on with now, in a file beside its folder."""
    sitting = {
        "run": folder.name,
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "revision": git_revision(_ROOT),
        **description(),
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / _FILE).open("a", encoding="utf-8") as out:
        out.write(json.dumps(sitting) + "\n")


def sittings(folder: Path) -> list[dict[str, Any]]:
    """Return the sittings of a run, oldest first; empty if none was recorded."""
    path = folder.parent / _FILE
    if not path.exists():
        return []
    # A process killed while it wrote leaves a line without its end.
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    found = [json.loads(line) for line in lines if line.endswith("}\n")]
    return [sitting for sitting in found if sitting["run"] == folder.name]


def git_revision(repository: Path) -> str | None:
    """Return the commit that is checked out, marked if files differ from it; None without git."""
    try:
        commit = _git(repository, "rev-parse", "--short=12", "HEAD")
        changed = _git(repository, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{commit} (with changes)" if changed else commit


def _git(repository: Path, *words: str) -> str:
    command = ["git", "-C", str(repository), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
