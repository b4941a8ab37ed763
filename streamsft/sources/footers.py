"""Footers of Parquet objects: read in parallel, once, and then remembered on the local disk."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from streamsft.errors import StoreError
from streamsft.sources.damage import decoding
from streamsft.sources.objectclients import OpenObject
from streamsft.sources.objects import Objects
from streamsft.sources.publish import clean_up_after_the_dead, remove, temporary_name
from streamsft.sources.retrying import retried

__all__ = [
    "RemoteFile",
    "check_unchanged",
    "keep_footers",
    "kept_footers",
    "metadata_of",
    "read_exactly",
    "read_footers",
    "versions",
]

_TAIL = 64 << 10  # most footers are in the last bytes, so that one request will do
_MARK = b"PAR1"
_THREADS = 32


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RemoteFile:
    """A Parquet object as it was when its footer was read.

    Attributes:
        path: its path on the file system.
        size: its bytes.
        version: tag of its bytes, see `OpenObject`.
        footer: its footer, between the marks that `metadata_of` needs; empty where it is not needed.
    """

    path: str
    size: int
    version: str
    footer: bytes | memoryview = b""


def versions(objects: Objects, deadline: float) -> list[RemoteFile]:
    """The objects there are now, without footers.

    Raises:
        StoreError: there is none, or they cannot be reached.
    """
    paths = retried(objects.listed, objects.shown, deadline)

    def version(path: str) -> RemoteFile:
        opened = retried(lambda: objects.open(path), objects.named(path), deadline)
        return RemoteFile(path=path, size=opened.size, version=opened.version)

    with ThreadPoolExecutor(min(_THREADS, len(paths)), "streamsft-footers") as pool:
        return list(pool.map(version, paths))


def read_footers(objects: Objects, files: Sequence[RemoteFile], deadline: float) -> list[RemoteFile]:
    """The files with their footers, read in parallel.

    Raises:
        StoreError: one is no Parquet file, has changed meanwhile, or cannot be read.
    """

    def footed(file: RemoteFile) -> RemoteFile:
        where = objects.named(file.path)
        footer = retried(lambda: _footer(objects.open(file.path), file, where), where, deadline)
        return RemoteFile(path=file.path, size=file.size, version=file.version, footer=footer)

    with ThreadPoolExecutor(min(_THREADS, len(files)), "streamsft-footers") as pool:
        return list(pool.map(footed, files))


def check_unchanged(opened: OpenObject, file: RemoteFile, where: str) -> None:
    """Refuse an object that is not the one whose footer is known; `where` it is, for messages.

    Raises:
        StoreError: with both versions.
    """
    if (opened.size, opened.version) != (file.size, file.version):
        raise StoreError(
            f"{where}: has changed since the store was opened: {file.size:,} bytes, version {file.version}, "
            f"are now {opened.size:,} bytes, version {opened.version}; restore it, or begin again with what is there"
        )


def read_exactly(opened: OpenObject, offset: int, length: int) -> bytes:
    """Just these bytes.

    Raises:
        EOFError: fewer came, which happens when a transfer is cut off.
    """
    data = opened.read_at(offset, length)
    if len(data) != length:
        raise EOFError(f"{len(data):,} of {length:,} bytes came")
    return data


def _footer(opened: OpenObject, file: RemoteFile, where: str) -> bytes:
    check_unchanged(opened, file, where)
    if file.size < 12:
        raise StoreError(f"{where}: is no Parquet file, it has {file.size} bytes; write or copy it again")
    tail = read_exactly(opened, max(0, file.size - _TAIL), min(_TAIL, file.size))
    if tail[-4:] != _MARK:
        raise StoreError(
            f"{where}: is no Parquet file, or an encrypted or half written one; write or copy it again, or make "
            "Parquet of a store of another kind with `streamsft convert`"
        )
    length = int.from_bytes(tail[-8:-4], "little") + 8
    if length + 4 > file.size:
        raise StoreError(f"{where}: is damaged (a footer of {length:,} bytes); write or copy it again")
    if length > len(tail):
        tail = read_exactly(opened, file.size - length, length)
    return _MARK + tail[-length:]


def metadata_of(file: RemoteFile, where: str) -> Any:
    """The `pyarrow.parquet.FileMetaData` of a file; `where` it is, for messages.

    Raises:
        StoreError: the footer is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with decoding(where, "its footer is damaged"):
        return pq.read_metadata(pa.BufferReader(pa.py_buffer(file.footer)))


def keep_footers(place: Path, key: list[Any], files: Sequence[RemoteFile]) -> bool:
    """Write the files' footers to `place` in one atomic step; False where that is not possible."""
    lengths = [len(file.footer) for file in files]
    facts = json.dumps({"key": key, "paths": [file.path for file in files], "lengths": lengths}).encode()
    temporary = temporary_name(place)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        clean_up_after_the_dead(place)
        with open(temporary, "xb") as file:
            for one in files:
                file.write(one.footer)
            file.write(facts + len(facts).to_bytes(8, "little") + _MARK)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, place)
    except OSError:
        remove(temporary)  # read-only or full
        return False
    return True


def kept_footers(place: Path, key: list[Any], files: Sequence[RemoteFile]) -> list[RemoteFile] | None:
    """The files with the footers that were kept at `place` for the same `key`; None if there are none."""
    try:
        with place.open("rb") as stream:
            data = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
        end = len(data) - 12 - int.from_bytes(data[-12:-4], "little")
        facts = json.loads(bytes(data[end:-12])) if bytes(data[-4:]) == _MARK and end >= 0 else {}
    except (OSError, ValueError):
        return None  # none there, or of an interrupted copy: they are read anew
    if facts.get("key") != key or facts["paths"] != [file.path for file in files] or sum(facts["lengths"]) != end:
        return None
    found, at = [], 0
    for file, length in zip(files, facts["lengths"], strict=True):
        footer = data[at : at + length]
        found.append(RemoteFile(path=file.path, size=file.size, version=file.version, footer=footer))
        at += length
    return found
