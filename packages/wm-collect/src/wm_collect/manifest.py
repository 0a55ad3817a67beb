"""Sizes and checksums of a folder's files, to tell a damaged folder from a whole one."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"


class ManifestError(ValueError):
    """A folder is not what its manifest says; the message is a clause without the folder's name."""


def write_manifest(folder: Path) -> None:
    """Write `manifest.json` for all files below a folder, and make every file durable (fsync)."""
    files: dict[str, dict[str, Any]] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        files[path.relative_to(folder).as_posix()] = {
            "bytes": path.stat().st_size,
            "sha256": _sha256(path),
        }
        _sync_file(path)
    manifest = {"files": files, "sha256": _checksum(files)}
    path = folder / MANIFEST
    path.write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    _sync_file(path)


def verify_manifest(folder: Path) -> None:
    """Compare every file that the manifest lists with its size and checksum.

    Raises:
        ManifestError: the manifest or a file is missing, cut short or changed.
    """
    for name in _read(folder):
        verify_file(folder, name)


def verify_file(folder: Path, name: str) -> None:
    """Compare one file with the manifest.

    Raises:
        ManifestError: the manifest or the file is missing, cut short or changed.
    """
    entry = _read(folder).get(name)
    if entry is None:
        raise ManifestError(
            f"its {MANIFEST} does not list {name}, so it was not written by this library"
        )
    try:
        size = (folder / name).stat().st_size
        if size != entry["bytes"]:
            raise ManifestError(f"its file {name} has {size} bytes instead of {entry['bytes']}")
        if _sha256(folder / name) != entry["sha256"]:
            raise ManifestError(f"its file {name} was changed after it was written")
    except FileNotFoundError:
        raise ManifestError(f"its file {name} is missing") from None
    except OSError as error:
        raise ManifestError(f"its file {name} cannot be read ({error.strerror})") from error


def _read(folder: Path) -> dict[str, dict[str, Any]]:
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        files = manifest["files"]
        if manifest["sha256"] != _checksum(files):
            raise ManifestError(f"its {MANIFEST} was changed after it was written")
        return files
    except FileNotFoundError:
        raise ManifestError(
            f"it has no {MANIFEST}, so it is incomplete or was not written by this library"
        ) from None
    except OSError as error:
        raise ManifestError(f"its {MANIFEST} cannot be read ({error.strerror})") from error
    except ManifestError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ManifestError(f"its {MANIFEST} is cut short or not a manifest") from None


def _checksum(files: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
