"""Datasets and episodes as files: one `.npz` each, without pickles, with a content hash.

The members are stored uncompressed and aligned, so that a large file need not be read to be used:
each array can be mapped from its place in the file. `numpy.load` reads the files too. The member
`meta_json` holds the format, its version, the tasks and the content hash as JSON text in bytes.

A file is written beside its final place and moved there when it is complete, so that a name never
leads to a part of a file. It may replace the very file whose mapped arrays are being saved.
"""

import contextlib
import json
import math
import os
import struct
import uuid
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from wm_multitask.dataset import MultiTaskDataset, TaskEpisodes
from wm_multitask.tasks import Task, TaskSet

Made = TypeVar("Made")

FORMAT_VERSION = 1
# Larger files are mapped into memory unless asked otherwise.
MMAP_ABOVE_BYTES = 256 * 2**20

_META = "meta_json"
_DATASET, _EPISODES = "wm-multitask dataset", "wm-multitask episodes"
_LOADERS = {_DATASET: "load_dataset", _EPISODES: "load_episodes"}
_FIELDS = {
    _DATASET: ("obs", "action", "reward", "task"),
    _EPISODES: ("obs", "action", "reward"),
}
_ALIGNMENT = 64
# Local file header of a zip member: signature, 22 bytes not needed here, lengths of name and extra.
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_LOCAL_SIGNATURE = b"PK\x03\x04"
# Of the extra field that `zipfile` adds for sizes beyond 4 GB, and of the one used for padding.
_ZIP64_BYTES = 20
_EXTRA = struct.Struct("<HH")
_PADDING_ID = 0xD935


def save_dataset(dataset: MultiTaskDataset, path: str | os.PathLike[str]) -> Path:
    """Check a dataset and write it into one file.

    Args:
        dataset: what to save; it may be memory-mapped.
        path: the file, replaced if it exists; its folder is made.

    Returns:
        The path written.

    Raises:
        ValueError: the dataset is not valid, see `MultiTaskDataset.check`.
        OSError: the file cannot be written; an earlier one is untouched.
    """
    dataset.check()
    meta = {**dataset.tasks.to_json(), "content_hash": dataset.content_hash}
    return _write(Path(path), _DATASET, meta, dataset.arrays())


def load_dataset(
    path: str | os.PathLike[str],
    *,
    verify: bool = True,
    expected_hash: str | None = None,
    mmap: bool | None = None,
) -> MultiTaskDataset:
    """Read a dataset written by `save_dataset`.

    Args:
        path: the file.
        verify: read all of it once, compare it with its content hash and check it. Without, only
            dtypes and shapes are checked, and a damaged number is not noticed.
        expected_hash: the content hash that the dataset must have; None accepts any.
        mmap: whether to map the arrays from the file, read-only, instead of reading them into
            memory; None maps files larger than 256 MB.

    Returns:
        The dataset. Mapped, its arrays are `numpy.memmap` and need the file to stay.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is foreign, damaged, of an unknown version, or not the expected one;
            one sentence says which.
    """
    path = Path(path)
    meta, arrays = _read(path, _DATASET, mmap)
    dataset = MultiTaskDataset(tasks=_described(path, TaskSet.from_json, meta), **arrays)
    _verify(path, dataset, meta, verify=verify, expected_hash=expected_hash)
    return dataset


def save_episodes(episodes: TaskEpisodes, path: str | os.PathLike[str]) -> Path:
    """Check the episodes of one task and write them into one file.

    Arguments, result and errors are those of `save_dataset`.
    """
    episodes.check()
    meta = {"task": episodes.task.to_json(), "content_hash": episodes.content_hash}
    return _write(Path(path), _EPISODES, meta, episodes.arrays())


def load_episodes(
    path: str | os.PathLike[str],
    *,
    verify: bool = True,
    expected_hash: str | None = None,
    mmap: bool | None = None,
) -> TaskEpisodes:
    """Read the episodes of one task written by `save_episodes`.

    Arguments, result and errors are those of `load_dataset`.
    """
    path = Path(path)
    meta, arrays = _read(path, _EPISODES, mmap)
    task = _described(path, lambda values: Task.from_json(values["task"]), meta)
    episodes = TaskEpisodes(task=task, **arrays)
    _verify(path, episodes, meta, verify=verify, expected_hash=expected_hash)
    return episodes


# Writing.


def _write(
    path: Path, format_name: str, meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> Path:
    text = json.dumps({"format": format_name, "version": FORMAT_VERSION, **meta})
    members = {_META: np.frombuffer(text.encode(), np.uint8), **arrays}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                for name, array in members.items():
                    _write_member(archive, file.tell(), f"{name}.npy", array)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    return path


def _write_member(archive: zipfile.ZipFile, offset: int, name: str, array: np.ndarray) -> None:
    """Write an array as a member that begins at `offset`, its numbers aligned in the file."""
    info = zipfile.ZipInfo(name)
    info.external_attr = 0o644 << 16
    start = offset + 30 + len(name) + _ZIP64_BYTES + _EXTRA.size
    padding = -start % _ALIGNMENT
    info.extra = _EXTRA.pack(_PADDING_ID, padding) + bytes(padding)
    with archive.open(info, "w", force_zip64=True) as member:
        np.lib.format.write_array(member, array, allow_pickle=False)


# Reading.


def _read(
    path: Path, format_name: str, mmap: bool | None
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the description in a file and its arrays, mapped or read."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give the .npz file in it.")
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    mapped = path.stat().st_size > MMAP_ABOVE_BYTES if mmap is None else mmap
    try:
        archive = zipfile.ZipFile(path)
    except Exception as error:
        raise ValueError(_not_an_archive(path)) from error
    with archive:
        members = {info.filename: info for info in archive.infolist()}
        if f"{_META}.npy" not in members:
            raise ValueError(
                f"{path} was not written by save_dataset or save_episodes: it has no {_META}."
            )
        meta = _read_meta(path, archive, format_name)
        wanted = [f"{name}.npy" for name in _FIELDS[format_name]]
        missing = [name.removesuffix(".npy") for name in wanted if name not in members]
        if missing:
            raise ValueError(f"{path} is incomplete: it lacks {', '.join(missing)}.")
        arrays = {name: _map(path, members[f"{name}.npy"]) for name in _FIELDS[format_name]}
    if not mapped:
        arrays = {name: np.array(array) for name, array in arrays.items()}
    return meta, arrays


def _not_an_archive(path: Path) -> str:
    with path.open("rb") as file:
        begins_as_one = file.read(4) == _LOCAL_SIGNATURE
    if begins_as_one:
        return (
            f"{path} is cut short or damaged: its table of contents, at its end, cannot be read. "
            "Copy or export it again."
        )
    return f"{path} is not an .npz file; give a file written by save_dataset or save_episodes."


def _read_meta(path: Path, archive: zipfile.ZipFile, format_name: str) -> dict[str, Any]:
    """Read the description; its checksum is verified by `zipfile`."""
    try:
        with archive.open(f"{_META}.npy") as member:
            stored = np.lib.format.read_array(member, allow_pickle=False)
        meta = json.loads(stored.tobytes())
        found, version = meta["format"], meta["version"]
        meta["content_hash"]
    except Exception as error:
        raise ValueError(_damaged(path, f"its {_META} cannot be read")) from error
    if found != format_name:
        loader = _LOADERS.get(found)
        remedy = f"use {loader}" if loader else f"{_LOADERS[format_name]} cannot read it"
        raise ValueError(f"{path} holds {found!r}, not {format_name!r}: {remedy}.")
    if version != FORMAT_VERSION:
        raise ValueError(
            f"{path} has version {version!r} of its format, and this version of wm-multitask "
            f"reads version {FORMAT_VERSION}; use the wm-multitask that wrote it."
        )
    return meta


def _map(path: Path, info: zipfile.ZipInfo) -> np.ndarray:
    """Return a read-only map of an array that lies uncompressed in a zip file."""
    name = info.filename.removesuffix(".npy")
    if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(
            f"{path} is compressed (its {name}), and such a file cannot be mapped; load it with "
            "numpy and write it with save_dataset."
        )
    try:
        with path.open("rb") as file, warnings.catch_warnings():
            warnings.simplefilter("error")
            file.seek(info.header_offset)
            header = file.read(_LOCAL_HEADER.size)
            signature, name_length, extra_length = _LOCAL_HEADER.unpack(header)
            start = info.header_offset + _LOCAL_HEADER.size + name_length + extra_length
            file.seek(start)
            shape, fortran_order, dtype = _read_array_header(file)
            offset = file.tell()
    except Exception as error:
        raise ValueError(_damaged(path, f"the header of its {name} cannot be read")) from error
    if dtype.hasobject:
        raise ValueError(
            f"{path} holds pickled objects (its {name}), which could run code when read and are "
            "never loaded; write it with save_dataset."
        )
    n_bytes = math.prod(shape) * dtype.itemsize
    whole = signature == _LOCAL_SIGNATURE and offset + n_bytes == start + info.file_size
    if not whole or min(shape, default=0) < 0 or offset + n_bytes > path.stat().st_size:
        raise ValueError(_damaged(path, f"its {name} does not have the size that its header says"))
    if not n_bytes:
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, "r", offset, shape, "F" if fortran_order else "C")


def _read_array_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Read the header of an array in NumPy's format, up to where its numbers begin."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(file)
    raise ValueError(f"unknown version {version} of NumPy's array format")


def _described(path: Path, make: Callable[[Any], Made], meta: Mapping[str, Any]) -> Made:
    """Return what a description makes, with the file named in its errors."""
    try:
        return make(meta)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} does not describe its tasks: {error}") from error


def _verify(
    path: Path,
    content: MultiTaskDataset | TaskEpisodes,
    meta: Mapping[str, Any],
    *,
    verify: bool,
    expected_hash: str | None,
) -> None:
    """Compare the content with its hash, and the hash with the expected one; check the content."""
    stored = meta["content_hash"]
    if expected_hash is not None and stored != expected_hash:
        raise ValueError(
            f"{path} is not the expected file: its content hash is {stored}, expected was "
            f"{expected_hash}."
        )
    try:
        content.check_shapes()
    except ValueError as error:
        raise ValueError(f"{path} has content that is not valid. {error}") from error
    if not verify:
        return
    if content.content_hash != stored:
        raise ValueError(
            _damaged(
                path, f"its content hash is {content.content_hash}, when written it was {stored}"
            )
        )
    try:
        content.check()
    except ValueError as error:
        raise ValueError(f"{path} has content that is not valid. {error}") from error


def _damaged(path: Path, how: str) -> str:
    return f"{path} is damaged: {how}. Copy or export it again."
