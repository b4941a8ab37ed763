"""Finding the raw files of a source: a file, a glob, a directory, or a list of these."""

from __future__ import annotations

import difflib
import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TypeAlias, final

from streamsft.errors import ConfigError, DataError
from streamsft.sources.addresses import is_address, shown

__all__ = ["FORMATS", "Paths", "RawFile", "file_kind", "find_files", "known_files", "listed", "nearest"]

Paths: TypeAlias = "str | PathLike[str] | Sequence[str | PathLike[str]]"

#: File name endings that can be read, and the reader of each.
FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".csv": "csv",
    ".tsv": "tsv",
}
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
_SAVED_DATASET = frozenset({"state.json", "dataset_info.json"})  # beside the .arrow files of Dataset.save_to_disk
_STORE_FILE = "streamsft.json"
_COMPRESSIBLE = frozenset({"jsonl", "json", "csv", "tsv"})


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RawFile:
    """One file of a source.

    Attributes:
        path: as it was given.
        name: the path below the folder that all files of the source share; the same wherever that folder lies.
        format: a value of `FORMATS`.
        compression: ``gzip``, ``zstd`` or None.
        size: bytes on disk.
        mtime_ns: time of the last change; 0 for an object.
        version: of an object at an address, the storage's tag of its bytes.
    """

    path: str
    name: str
    format: str
    compression: str | None
    size: int
    mtime_ns: int
    version: str = ""


def find_files(paths: Paths) -> tuple[RawFile, ...]:
    """List the files that `paths` stands for, in the order given; globs and folders in sorted order.

    Folders are searched to any depth. In folders and globs, hidden files and files of other kinds are
    passed over, and so is what describes a dataset that was saved with `save_to_disk`.

    Raises:
        DataError: nothing is there, or nothing that can be read.
        ConfigError: the list is empty, or names a file twice.
    """
    found = [file for path in listed(paths) for file in _expand(os.path.expanduser(path))]
    seen: set[str] = set()
    for path in found:
        if (real := os.path.realpath(path)) in seen:
            raise ConfigError(f"{path}: listed twice; to draw from it more often, raise the source's weight")
        seen.add(real)
    folder = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in found])
    return tuple(_raw_file(path, os.path.relpath(os.path.abspath(path), folder)) for path in found)


def listed(paths: Paths) -> list[str]:
    """The paths that are given, one by one.

    Raises:
        ConfigError: there is none, or one is empty or no path.
    """
    given = [paths] if isinstance(paths, str | PathLike) else paths
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise ConfigError(f"path: {given!r} is no path and no list of paths")
    found = []
    for path in given:
        if not isinstance(path, str | PathLike) or not isinstance(os.fspath(path), str):
            raise ConfigError(f"path: {path!r} is no path; give a text or a pathlib.Path")
        if not os.fspath(path):
            raise ConfigError("path: is empty; name a file or a directory (the one you are in is .)")
        found.append(os.fspath(path))
    if not found:
        raise ConfigError("path: the list is empty; name at least one file")
    return found


def _expand(path: str) -> list[str]:
    if is_address(path):
        raise DataError(
            f"{shown(path)}: is an address, and only files of this machine can be read so. Raw files at addresses are "
            "tokenized before they are drawn: leave streaming out, or copy them here"
        )
    if os.path.isdir(path):
        files = sorted(_walk(path))
        return known_files(files, f"{path}: the folder")
    if os.path.exists(path):
        return [path]
    if glob.has_magic(path):
        matches = sorted(match for match in glob.glob(path, recursive=True) if os.path.isfile(match))
        if matches:
            return known_files(matches, f"{path}: the pattern")
    if os.path.islink(path):
        raise DataError(_broken(path))
    raise DataError(f"{path}: no such file; {nearest(path)}")


def _broken(link: str) -> str:
    """What is wrong with a link that leads nowhere."""
    return f"{link}: is a link to {os.readlink(link)}, which is not there; mend or remove it"


def _walk(folder: str) -> Iterator[str]:
    visited: set[str] = set()
    for parent, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(parent)
        if real in visited:  # a link back up
            folders.clear()
            continue
        visited.add(real)
        if _STORE_FILE in files:
            raise DataError(f"{parent}: is a token store; give it as `store`, not as `path`")
        folders[:] = [name for name in folders if not name.startswith(".")]
        ignored = _SAVED_DATASET if set(files) >= _SAVED_DATASET else frozenset()
        yield from (os.path.join(parent, name) for name in files if name not in ignored and not name.startswith("."))


def known_files(files: list[str], what: str) -> list[str]:
    """Those of `files` that can be read.

    Raises:
        DataError: there is none; `what` holds them.
    """
    known = [path for path in files if _kind(path) is not None]
    if not known:
        seen = ", ".join(os.path.basename(path) for path in files[:5]) or "nothing"
        raise DataError(f"{what} holds no file that can be read ({_readable()}); it holds {seen}")
    return known


def _raw_file(path: str, name: str) -> RawFile:
    kind = file_kind(path)
    try:
        status = os.stat(path)
    except OSError as error:
        raise DataError(_broken(path) if os.path.islink(path) else f"{path}: cannot be read: {error}") from error
    return RawFile(
        path=path,
        name=name.replace(os.sep, "/"),
        format=kind[0],
        compression=kind[1],
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
    )


def file_kind(path: str) -> tuple[str, str | None]:
    """The format and compression of a file, by its name.

    Raises:
        DataError: it is of no kind that can be read.
    """
    kind = _kind(path)
    if kind is None:
        raise DataError(f"{path}: unknown kind of file; these can be read: {_readable()}")
    return kind


def _kind(path: str) -> tuple[str, str | None] | None:
    stem, ending = os.path.splitext(path.lower())
    compression = _COMPRESSIONS.get(ending)
    if compression is not None:
        ending = os.path.splitext(stem)[1]
    kind = FORMATS.get(ending)
    if kind is None or (compression is not None and kind not in _COMPRESSIBLE):
        return None
    return kind, compression


def _readable() -> str:
    return ", ".join(FORMATS) + "; text also with .gz or .zst"


def nearest(path: str) -> str:
    """What there is instead of `path`, as part of a sentence."""
    existing = os.path.abspath(path)
    missing = existing
    while not os.path.exists(existing):
        missing, existing = existing, os.path.dirname(existing)
    message = f"the nearest path that exists is {existing}"
    if os.path.isdir(existing) and os.access(existing, os.R_OK | os.X_OK):
        close = difflib.get_close_matches(os.path.basename(missing), os.listdir(existing), n=3)
        if close:
            message += f", which holds {', '.join(close)}"
    return message
