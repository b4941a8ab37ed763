"""Objects of a file system, local or remote: listed, opened, and read in ranges, with what tells one version of
them from another."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import takewhile
from typing import Any, Final, final
from urllib.parse import urlsplit

from streamsft.errors import StoreError
from streamsft.sources.addresses import MAGIC, is_address, pattern_of, shown
from streamsft.sources.forkgate import GATE, ForkLock
from streamsft.sources.objectclients import Client, OpenObject, client_of
from streamsft.sources.paths import listed

__all__ = ["UNFINISHED", "Location", "Objects"]

Location = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""An address such as ``s3://bucket/folder``, a path, or a list of either."""

UNFINISHED: Final = "_unfinished"
"""The object that a folder holds while a store is written there."""

_making: Final = ForkLock()


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
        self._given = listed(location)
        for place in self._given:
            if is_address(place) and "@" in urlsplit(place).netloc:
                raise StoreError(
                    f"{shown(place)}: an address with credentials in it; leave them out, and give them to the client "
                    "as usual: environment variables, its configuration file, or the role of the machine"
                )
        self._filesystem = filesystem
        self._pickled = None if filesystem is None else pickle.dumps(filesystem)
        self._process = os.getpid()
        self._client: Client | None = None

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
        found = client.files(path)
        if any(p.rpartition("/")[2] == UNFINISHED for p in found):
            raise StoreError(
                f"{shown(place)}: is being written, or was left unfinished by a call that was stopped; wait, or remove "
                "all that is there and convert again"
            )
        return sorted(p for p in found if p.lower().endswith(".parquet") and not _hidden(p, path))

    def below(self, place: str) -> list[str]:
        """The paths of what `place` stands for: an object, all objects in a folder, or those that a pattern matches.

        In a pattern ``*`` and ``[…]`` stand for parts of a name, ``**`` for any number of folders. Names that begin
        with a dot are left out. Sorted. No retries.

        Raises:
            OSError: as the file system does.
        """
        client = self._of()
        path = client.path_of(place)
        if client.is_file(path):
            return [path]
        parts = path.split("/")
        fixed = "/".join(takewhile(lambda part: not MAGIC.search(part), parts))
        found = (p for p in client.files(fixed) if not _hidden(p, fixed, marks="."))
        return sorted(found if fixed == path else filter(pattern_of(parts).fullmatch, found))

    def address(self, path: str) -> str:
        """The address of a path that `below` or `listed` gave."""
        if is_address(path) or not is_address(self._given[0]):
            return path
        scheme = urlsplit(self._given[0]).scheme
        return f"{scheme}://{path}" if scheme == "file" else f"{scheme}://{path.lstrip('/')}"

    def named(self, path: str) -> str:
        """A path that `listed` gave, for messages."""
        return shown(self.address(path))

    def open(self, path: str) -> OpenObject:
        """Open the object at a `path` of `listed`. No retries.

        Raises:
            OSError: as the file system does.
        """
        return self._of().open(path)

    def _of(self) -> Client:
        if self._client is None or self._process != os.getpid():
            with _making:
                self._make()
        assert self._client is not None
        return self._client

    def _make(self) -> None:
        """Have a client of this process."""
        forked = self._process != os.getpid()
        if self._client is not None and not forked:
            return  # another thread has made it meanwhile
        if forked and "fsspec.asyn" in sys.modules:
            sys.modules["fsspec.asyn"].reset_lock()  # not valid in a process that was forked off
        local = self._pickled is None and not is_address(self._given[0])
        with nullcontext() if local else GATE.passing():
            filesystem = None if self._pickled is None else pickle.loads(self._pickled)
            self._client = client_of(self._given[0], filesystem)
        self._process = os.getpid()  # last, for other threads must not use the parent's

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None, "_filesystem": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _process=os.getpid())


def _hidden(path: str, folder: str, marks: str = "._") -> bool:
    return any(part.startswith(tuple(marks)) for part in path[len(folder) :].split("/") if part)
