"""`contract.json`: what a policy's folder holds, what goes in and out, and where it comes from.

The contract carries a SHA-256 of every other file and a checksum of itself, so that a folder cut
short or changed by hand is refused.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONTRACT = "contract.json"
WEIGHTS = "weights.npz"
PROGRAM = "policy.stablehlo"
README = "README.md"

FORMAT = "wm-policy"
FORMAT_VERSION = 1
_CHECKSUM = "sha256"


def write_contract(folder: Path, contract: Mapping[str, Any]) -> None:
    """Write `contract.json` for the files that lie in a folder.

    Args:
        folder: holds every other file already.
        contract: plain values for JSON; format, digests of the files and checksum are added.
    """
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path.read_bytes())}
        for path in sorted(folder.iterdir())
    }
    whole = {"format": FORMAT, "format_version": FORMAT_VERSION, **contract, "files": files}
    whole[_CHECKSUM] = _checksum(whole)
    text = json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False)
    (folder / CONTRACT).write_text(text + "\n", encoding="utf-8")


def read_contract(folder: Path) -> dict[str, Any]:
    """Return the contract of a policy's folder, after comparing every file with it.

    Raises:
        FileNotFoundError: there is no such folder, or it is not a policy's.
        ValueError: the contract or a file is damaged, or of a newer format.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no policy folder {folder}.")
    path = folder / CONTRACT
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder} is not a policy folder: it has no {CONTRACT}; give the folder that the "
            "command export or export_policy wrote."
        )
    try:
        contract = json.loads(path.read_bytes())
        kind, version = contract["format"], contract["format_version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError(f"{path} is cut short or not a policy's contract.") from None
    if kind != FORMAT or not isinstance(version, int):
        raise ValueError(f"{path} is the contract of {kind!r}, not of a {FORMAT}.")
    if version > FORMAT_VERSION:
        raise ValueError(
            f"{folder} has the format version {version}, and this wm-collect reads up to "
            f"{FORMAT_VERSION}; install a newer wm-collect."
        )
    if contract.get(_CHECKSUM) != _checksum(contract):
        raise ValueError(f"{path} was changed after it was written; export the policy again.")
    for name, stored in contract["files"].items():
        _verify(folder / name, stored)
    return contract


def _verify(path: Path, stored: Mapping[str, Any]) -> None:
    if not path.is_file():
        raise ValueError(f"{path.parent} lacks its file {path.name}; copy the whole folder again.")
    if _sha256(path.read_bytes()) != stored["sha256"]:
        raise ValueError(
            f"{path} is damaged: its {path.stat().st_size:,} bytes are not the "
            f"{stored['bytes']:,} that were written; copy the folder again, or export again."
        )


def _checksum(contract: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in contract.items() if name != _CHECKSUM}
    return _sha256(json.dumps(rest, sort_keys=True).encode())


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
