"""File systems, of pyarrow or fsspec, behind one face: what is asked of them to read objects, and to write some."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Protocol, final
from urllib.parse import urlsplit

from streamsft.sources.addresses import MAGIC, is_address
from streamsft.sources.forkgate import GATE

__all__ = ["Client", "OpenObject", "client_of", "writable"]

_ARROW_SCHEMES: Final = frozenset({"s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss"})


class OpenObject(Protocol):
    """An object as it was when it was opened."""

    size: int
    """Bytes."""
    version: str
    """The storage's tag of these bytes; without one, the time of the last change."""

    def read_at(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset` on; fewer only where the transfer was cut off."""


class Client(Protocol):
    """What is asked of a file system."""

    def path_of(self, place: str) -> str: ...

    def is_file(self, path: str) -> bool: ...

    def files(self, folder: str) -> list[str]: ...

    def open(self, path: str) -> OpenObject: ...


def client_of(first: str, filesystem: Any) -> Client:
    """The client of a file system that is given, else of the one that the address or path `first` names."""
    import pyarrow.fs as pafs

    if isinstance(filesystem, pafs.FileSystem):
        return _Arrow(filesystem)
    if filesystem is not None:
        return _Fsspec(filesystem)
    if not is_address(first):
        return _Arrow(pafs.LocalFileSystem())
    if urlsplit(first).scheme in _ARROW_SCHEMES:
        place = urlsplit(first)
        if MAGIC.search(place.path):  # which pyarrow takes for no address
            place = place._replace(path="")
        return _Arrow(pafs.FileSystem.from_uri(place.geturl())[0])
    import fsspec

    return _Fsspec(fsspec.core.url_to_fs(first)[0])


def writable(address: str) -> tuple[Any, str]:
    """The `pyarrow.fs.FileSystem` that `address` lies on, and its path there.

    Raises:
        OSError, pyarrow.ArrowException: as the file system does.
    """
    import pyarrow.fs as pafs

    if urlsplit(address).scheme in _ARROW_SCHEMES:
        filesystem, path = pafs.FileSystem.from_uri(address)
        return filesystem, path
    import fsspec

    filesystem, path = fsspec.core.url_to_fs(address)
    return pafs.PyFileSystem(pafs.FSSpecHandler(filesystem)), path


_Passing = Callable[[], AbstractContextManager[None]]
"""What an operation is made in."""


@final
class _Arrow:
    def __init__(self, filesystem: Any) -> None:
        self._filesystem = filesystem
        self._passing: _Passing = nullcontext if filesystem.type_name == "local" else GATE.passing

    def path_of(self, place: str) -> str:
        if not is_address(place):
            return os.path.abspath(os.path.expanduser(place)) if self._filesystem.type_name == "local" else place
        parts = urlsplit(place)
        return parts.path if self._filesystem.type_name == "local" else (parts.netloc + parts.path).rstrip("/")

    def is_file(self, path: str) -> bool:
        with self._passing():
            return bool(self._filesystem.get_file_info(path).is_file)

    def files(self, folder: str) -> list[str]:
        import pyarrow.fs as pafs

        with self._passing():
            found = self._filesystem.get_file_info(pafs.FileSelector(folder, recursive=True))
        return [info.path for info in found if info.is_file]

    def open(self, path: str) -> OpenObject:
        with self._passing():
            file = self._filesystem.open_input_file(path)
            tag = (file.metadata() or {}).get("ETag")
            if tag is None:
                return _ArrowObject(file, f"mtime {self._filesystem.get_file_info(path).mtime_ns}", self._passing)
        return _ArrowObject(file, tag.decode() if isinstance(tag, bytes) else str(tag), self._passing)


@final
class _ArrowObject:
    def __init__(self, file: Any, version: str, passing: _Passing) -> None:
        self._file = file
        self._passing = passing
        self.size = int(file.size())
        self.version = version

    def read_at(self, offset: int, length: int) -> bytes:
        with self._passing():
            data: bytes = self._file.read_at(length, offset)
        return data


_TAGS = ("ETag", "etag", "md5Hash", "content_md5", "sha256", "checksum", "mtime", "LastModified", "last_modified",
         "updated", "modified", "created")  # fmt: skip


@final
class _Fsspec:
    def __init__(self, filesystem: Any) -> None:
        self._filesystem = filesystem

    def path_of(self, place: str) -> str:
        path: str = self._filesystem._strip_protocol(place)
        return path

    def is_file(self, path: str) -> bool:
        try:  # fsspec's own `isfile` takes any error for a no
            return bool(self._filesystem.info(path)["type"] == "file")
        except FileNotFoundError:
            return False

    def files(self, folder: str) -> list[str]:
        found: list[str] = []
        folders = [folder]
        while folders:  # fsspec's own `find` leaves out what cannot be listed
            place = folders.pop()
            try:
                listed = self._filesystem.ls(place, detail=True)
            except FileNotFoundError:
                if place == folder:
                    return []
                raise
            inside = [info for info in listed if info["name"].rstrip("/") != place.rstrip("/")]
            folders += [str(info["name"]) for info in inside if info["type"] == "directory"]
            found += [str(info["name"]) for info in inside if info["type"] != "directory"]
        return sorted(found)

    def open(self, path: str) -> OpenObject:
        self._filesystem.invalidate_cache()  # a listing that was kept would hide a change
        info = self._filesystem.info(path)
        version = next((f"{tag} {info[tag]}" for tag in _TAGS if info.get(tag)), "")
        return _FsspecObject(self._filesystem, path, int(info["size"]), version)


@final
class _FsspecObject:
    def __init__(self, filesystem: Any, path: str, size: int, version: str) -> None:
        self._filesystem = filesystem
        self._path = path
        self.size = size
        self.version = version

    def read_at(self, offset: int, length: int) -> bytes:
        data: bytes = self._filesystem.cat_file(self._path, start=offset, end=offset + length)
        return data
