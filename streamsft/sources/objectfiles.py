"""Raw files on object storage as a `RowReader`: the rows, the key and the names that the same files have on a disk."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, Final, cast, final

from streamsft.errors import ConfigError, DataError
from streamsft.sources.addresses import is_address, shown
from streamsft.sources.filehash import HashMemory, hash_stream
from streamsft.sources.files import ListedFiles, cut, told
from streamsft.sources.footers import read_exactly
from streamsft.sources.objectclients import OpenObject
from streamsft.sources.objects import Objects
from streamsft.sources.paths import Paths, RawFile, file_kind, known_files
from streamsft.sources.rawbytes import RandomAccess
from streamsft.sources.rawrows import Chunk
from streamsft.sources.retrying import retried

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

__all__ = ["ObjectFiles"]

_READ: Final = 8 << 20  # bytes of a request
_THREADS: Final = 32
_DEADLINE: Final = 120.0


@final
class ObjectFiles(ListedFiles):
    """The rows of raw files at addresses: those formats that `RawFiles` reads, text also as .gz or .zst.

    The objects are listed when this is made. Each is read twice, for its hash and for its rows, and neither is kept on
    the disk; a hash is remembered for as long as the storage's tag of the object stays the same. Reads that fail are
    tried again for `deadline` seconds.

    Args:
        addresses: an address of an object or a folder, or a pattern (``*``, ``**``, ``[…]``), or a list of these, all
            on one file system.
        memory: where the hashes of objects that did not change are kept; None to hash them each time.
        deadline: seconds that a read is tried for.

    Raises:
        DataError: nothing is there, nothing that can be read, or the storage does not answer.
        ConfigError: the list names an object twice, or paths beside addresses.
    """

    def __init__(self, addresses: Paths, *, memory: HashMemory | None = None, deadline: float = _DEADLINE) -> None:
        super().__init__(memory)
        given = [addresses] if isinstance(addresses, str | os.PathLike) else list(addresses)
        if not all(map(is_address, given)):
            raise ConfigError("path: addresses and paths of this machine in one list; make two sources of them")
        self._objects = Objects(given)
        self._deadline = deadline
        self._paths = [path for place in given for path in self._listed(str(place))]
        if len(set(self._paths)) < len(self._paths):
            twice = next(path for path in self._paths if self._paths.count(path) > 1)
            raise ConfigError(f"{twice}: listed twice; to draw from it more often, raise the source's weight")
        folder = os.path.commonpath([os.path.dirname(path) for path in self._paths])
        with ThreadPoolExecutor(min(_THREADS, len(self._paths)), "streamsft-objects") as pool:
            self.raw_files = tuple(pool.map(lambda path: self._looked_at(path, folder), self._paths))

    def _listed(self, place: str) -> list[str]:
        found = retried(lambda: self._objects.below(place), shown(place), self._deadline)
        if not found:
            raise DataError(f"{shown(place)}: nothing is there; check the address")
        return found if len(found) == 1 else known_files(found, f"{shown(place)}: the folder or pattern")

    def _looked_at(self, path: str, folder: str) -> RawFile:
        where = shown(self._objects.address(path))
        kind, compression = file_kind(where)
        opened = self._open(path)
        return RawFile(
            path=where,
            name=os.path.relpath(path, folder or "."),
            format=kind,
            compression=compression,
            size=opened.size,
            mtime_ns=0,
            version=opened.version,
        )

    def _open(self, path: str) -> OpenObject:
        return retried(lambda: self._objects.open(path), shown(self._objects.address(path)), self._deadline)

    @contextmanager
    def _opened(self, number: int, *, buffered: bool = True) -> Iterator[BinaryIO]:
        """The bytes of a file, which are seen to be those that were listed, before and after.

        Buffered where it is read from front to back; a reader of columns, which jumps, has buffers of its own.

        Raises:
            DataError: they have changed, or cannot be read.
        """
        file, path = self.raw_files[number], self._paths[number]
        _check_unchanged(self._open(path), file)
        stream = _Stream(lambda: self._objects.open(path), file, self._deadline)
        with told(file):
            yield cast(BinaryIO, io.BufferedReader(stream, _READ) if buffered else stream)
        _check_unchanged(self._open(path), file)

    def _cut(self, number: int, before: int) -> Iterator[Chunk]:
        file = self.raw_files[number]
        with self._opened(number, buffered=file.format != "parquet") as stream:
            yield from cut(file, number, before, stream)

    def _hash(self, number: int) -> str:
        with self._opened(number) as stream:
            return hash_stream(stream)


@final
class _Stream(RandomAccess):
    """An object as a file; each read is one request."""

    def __init__(self, open_object: Callable[[], OpenObject], file: RawFile, deadline: float) -> None:
        super().__init__(file.size)
        self._open, self._file, self._deadline = open_object, file, deadline
        self._opened: OpenObject | None = None

    def readinto(self, buffer: WriteableBuffer) -> int:
        target = memoryview(buffer).cast("B")
        length = max(0, min(len(target), self._size - self._at))
        if length:
            target[:length] = retried(lambda: self._bytes(self._at, length), self._file.path, self._deadline)
            self._at += length
        return length

    def _bytes(self, offset: int, length: int) -> bytes:
        opened, self._opened = self._opened or self._open(), None  # opened anew where this fails
        data = read_exactly(opened, offset, length)
        self._opened = opened
        return data


def _check_unchanged(opened: OpenObject, file: RawFile) -> None:
    if (opened.size, opened.version) != (file.size, file.version):
        raise DataError(f"{file.path}: changed while it was in use; run again when nothing writes to it")
