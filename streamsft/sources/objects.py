"""Objects of a file system, local or remote: listed, opened, and read in ranges, with what tells one version of
them from another."""

from __future__ import annotations

import os
import pickle
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import takewhile
from typing import Any, Final, Protocol, final
from urllib.parse import urlsplit

from streamsft.errors import StoreError
from streamsft.sources.forkgate import GATE

__all__ = ["Location", "Objects", "OpenObject", "is_address", "shown"]

Location = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""An address such as ``s3://bucket/folder``, a path, or a list of either."""

_MAGIC: Final = re.compile(r"\*|\[[^]]+]")
_ARROW_SCHEMES = frozenset({"s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss"})


def is_address(location: object) -> bool:
    """Whether `location` names something by a scheme, ``scheme://…``, rather than by a path."""
    return isinstance(location, str) and "://" in location


class OpenObject(Protocol):
    """An object as it was when it was opened."""

    size: int
    """Bytes."""
    version: str
    """The storage's tag of these bytes; without one, the time of the last change."""

    def read_at(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset` on; fewer only where the transfer was cut off."""


@final
class Objects:
    """The Parquet files at a location.

    The client of the file system is made where it is first used, and again in a forked or spawned process. Which
    credentials it uses is its own affair: the environment, its configuration files, the machine's role. An address
    that holds some is refused.

    Args:
        location: what to open.
        filesystem: a `pyarrow.fs.FileSystem` or an fsspec file system to use; by default the address says it.

    Raises:
        StoreError: an address holds credentials.
    """

    def __init__(self, location: Location, filesystem: Any = None) -> None:
        given = [location] if isinstance(location, str | os.PathLike) else list(location)
        self._given = [os.fspath(one) for one in given]
        if not self._given:
            raise StoreError("store: the list of files is empty; name at least one")
        for place in self._given:
            if is_address(place) and "@" in urlsplit(place).netloc:
                raise StoreError(
                    f"{shown(place)}: an address with credentials in it; leave them out, and give them to the client "
                    "as usual: environment variables, its configuration file, or the role of the machine"
                )
        self._filesystem = filesystem
        self._pickled = None if filesystem is None else pickle.dumps(filesystem)
        self._process = os.getpid()
        self._client: _Client | None = None

    @property
    def shown(self) -> str:
        """The location, for messages."""
        return ", ".join(map(shown, self._given))

    def listed(self) -> list[str]:
        """The addresses of all Parquet files there, in the order given; those in folders sorted. No retries.

        Raises:
            StoreError: there is none.
            OSError: as the file system does.
        """
        found = [path for place in self._given for path in self._below(place)]
        if not found:
            raise StoreError(f"{self.shown}: holds no .parquet file; a store that is read by row groups needs them")
        if len(set(found)) < len(found):
            twice = next(path for path in found if found.count(path) > 1)
            raise StoreError(f"{shown(twice)}: listed twice; to draw from it more often, raise the source's weight")
        return found

    def _below(self, place: str) -> list[str]:
        client = self._of()
        path = client.path_of(place)
        if client.is_file(path):
            return [path]
        return sorted(p for p in client.files(path) if p.lower().endswith(".parquet") and not _hidden(p, path))

    def below(self, place: str) -> list[str]:
        """The paths of what `place` stands for: an object, all objects in a folder, or those that a pattern matches.

        In a pattern ``*`` and ``[…]`` stand for parts of a name, ``**`` for any number of folders. Names that begin with
        a dot are left out. Sorted. No retries.

        Raises:
            OSError: as the file system does.
        """
        client = self._of()
        path = client.path_of(place)
        if client.is_file(path):
            return [path]
        parts = path.split("/")
        fixed = "/".join(takewhile(lambda part: not _MAGIC.search(part), parts))
        found = (p for p in client.files(fixed) if not _hidden(p, fixed, marks="."))
        return sorted(found if fixed == path else filter(_pattern(parts).fullmatch, found))

    def address(self, path: str) -> str:
        """The address of a path that `below` or `listed` gave."""
        if is_address(path) or not is_address(self._given[0]):
            return path
        scheme = urlsplit(self._given[0]).scheme
        return f"{scheme}://{path}" if scheme == "file" else f"{scheme}://{path.lstrip('/')}"

    def open(self, path: str) -> OpenObject:
        """Open the object at a `path` of `listed`. No retries.

        Raises:
            OSError: as the file system does.
        """
        return self._of().open(path)

    def _of(self) -> _Client:
        forked = self._process != os.getpid()
        if self._client is None or forked:
            self._process = os.getpid()
            if forked and "fsspec.asyn" in sys.modules:
                sys.modules["fsspec.asyn"].reset_lock()  # not valid in a process that was forked off
            local = self._pickled is None and not is_address(self._given[0])
            with nullcontext() if local else GATE.passing():
                filesystem = None if self._pickled is None else pickle.loads(self._pickled)
                self._client = _client(self._given[0], filesystem)
        return self._client

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None, "_filesystem": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _process=os.getpid())


def shown(path: str) -> str:
    """An address or a path for messages: without a query or credentials."""
    if not is_address(path):
        return path
    parts = urlsplit(path)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _hidden(path: str, folder: str, marks: str = "._") -> bool:
    return any(part.startswith(tuple(marks)) for part in path[len(folder) :].split("/") if part)


def _pattern(parts: Sequence[str]) -> re.Pattern[str]:
    """What the names of a pattern, between its slashes, match."""
    names = ["(?:[^/]+/)*" if part == "**" else _translated(part) + "/" for part in parts]
    return re.compile("".join(names).removesuffix("/"))


def _translated(name: str) -> str:
    pieces = re.split(r"(\*|\[[^]]+])", name)
    return "".join("[^/]*" if p == "*" else p.replace("[!", "[^") if p.startswith("[") else re.escape(p) for p in pieces)


class _Client(Protocol):
    """What is asked of a file system."""

    def path_of(self, place: str) -> str: ...

    def is_file(self, path: str) -> bool: ...

    def files(self, folder: str) -> list[str]: ...

    def open(self, path: str) -> OpenObject: ...


def _client(first: str, filesystem: Any) -> _Client:
    import pyarrow.fs as pafs

    if isinstance(filesystem, pafs.FileSystem):
        return _Arrow(filesystem)
    if filesystem is not None:
        return _Fsspec(filesystem)
    if not is_address(first):
        return _Arrow(pafs.LocalFileSystem())
    if urlsplit(first).scheme in _ARROW_SCHEMES:
        place = urlsplit(first)
        if _MAGIC.search(place.path):  # which pyarrow takes for no address
            place = place._replace(path="")
        return _Arrow(pafs.FileSystem.from_uri(place.geturl())[0])
    import fsspec

    return _Fsspec(fsspec.core.url_to_fs(first)[0])


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
        return bool(self._filesystem.isfile(path))

    def files(self, folder: str) -> list[str]:
        return [str(path) for path in self._filesystem.find(folder)]

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
