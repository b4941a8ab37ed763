"""Raw files as a `RowReader`: found by path, read in pieces, known by their content."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, final

from streamsft.errors import DataError
from streamsft.sources.damage import is_damage
from streamsft.sources.filehash import HashMemory, hash_file
from streamsft.sources.jsontext import holds_array, split_array, split_lines
from streamsft.sources.paths import Paths, RawFile, find_files
from streamsft.sources.rawbytes import open_bytes
from streamsft.sources.rawrows import ArrowChunk, Chunk, JsonLines, JsonTexts, ListedRows, RowReader
from streamsft.sources.tables import read_arrow, read_delimited, read_parquet

__all__ = ["DELIMITERS", "ListedFiles", "RawFiles", "check_unchanged", "cut", "reading", "told"]

DELIMITERS = {"csv": ",", "tsv": "\t"}


class ListedFiles(RowReader):
    """Raw files that are listed when this is made, wherever they lie.

    Attributes:
        raw_files: what they are, in order.

    Args:
        memory: where the hashes of files that did not change are kept; None to hash them each time.
    """

    raw_files: tuple[RawFile, ...]

    def __init__(self, memory: HashMemory | None) -> None:
        self._memory = memory

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(file.name for file in self.raw_files)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.raw_files)

    def content_key(self) -> list[Any]:
        """Format, compression and BLAKE2b hash of each file, in order; neither paths nor addresses."""
        return [[file.format, file.compression, self._known_hash(n)] for n, file in enumerate(self.raw_files)]

    def chunks(self) -> Iterator[Chunk]:
        before = 0
        for number, file in enumerate(self.raw_files):
            yield from self._cut(number, before)
            before += file.size

    def _known_hash(self, number: int) -> str:
        file = self.raw_files[number]
        known = self._memory.recall(file) if self._memory is not None else None
        if known is not None:
            return known
        digest = self._hash(number)
        if self._memory is not None:
            self._memory.remember(file, digest)
        return digest

    @abstractmethod
    def _cut(self, number: int, before: int) -> Iterator[Chunk]:
        """The chunks of a file, behind so many bytes of others."""

    @abstractmethod
    def _hash(self, number: int) -> str:
        """The hash of a file's bytes, which are those that were listed."""


@final
class RawFiles(ListedFiles):
    """The rows of one or more raw files: JSON Lines, JSON arrays, Parquet, Arrow, CSV, TSV; text also as .gz or .zst.

    Memory use while reading is bounded by the largest row (for Parquet and Arrow: by the pages of a row group and by a
    record batch), not by the files.

    Args:
        paths: a file, a glob, a folder (searched to any depth), or a list of these.
        memory: where the hashes of files that did not change are kept; None to hash them each time.

    Raises:
        DataError: nothing is there, or nothing that can be read.
        ConfigError: the list is empty, or names a file twice.
    """

    def __init__(self, paths: Paths, *, memory: HashMemory | None = None) -> None:
        super().__init__(memory)
        self.raw_files = find_files(paths)

    def _cut(self, number: int, before: int) -> Iterator[Chunk]:
        file = self.raw_files[number]
        with reading(file):
            yield from cut(file, number, before, file.path)

    def _known_hash(self, number: int) -> str:
        check_unchanged(self.raw_files[number])  # what is remembered is of the file that was listed
        return super()._known_hash(number)

    def _hash(self, number: int) -> str:
        file = self.raw_files[number]
        with reading(file):
            return hash_file(file.path)


@contextmanager
def reading(file: RawFile) -> Iterator[None]:
    """Say which file it was when reading it fails, and see that it is the one that was listed, before and after.

    Raises:
        DataError: it cannot be read, or has changed.
    """
    check_unchanged(file)
    with told(file):
        yield
    check_unchanged(file)


@contextmanager
def told(file: RawFile) -> Iterator[None]:
    """Say which file it was when reading it fails.

    Raises:
        DataError: it cannot be read.
    """
    try:
        yield
    except Exception as error:
        if not is_damage(error):
            raise
        raise _unreadable(file, error) from error


def cut(file: RawFile, index: int, before: int, source: str | BinaryIO) -> Iterator[Chunk]:
    """The chunks of a file.

    Args:
        file: what it is.
        index: its number among the files of its reader.
        before: bytes of the files before it.
        source: its path, or its bytes as a buffered stream that can seek.
    """
    if file.format in ("parquet", "arrow"):
        pieces = read_parquet(source) if file.format == "parquet" else read_arrow(source)
        first = 0
        for data, rows, share in pieces:
            yield ArrowChunk(file=index, first_row=first, read=before + int(share * file.size), data=data)
            first += rows
        return
    with open_bytes(source, file.compression) as (stream, raw):
        yield from _read_text(file, index, stream, lambda: before + raw.tell())


def _read_text(file: RawFile, index: int, stream: BinaryIO, position: Callable[[], int]) -> Iterator[Chunk]:
    if file.format in DELIMITERS:
        for rows, row_lines in read_delimited(stream, DELIMITERS[file.format], file.path):
            yield ListedRows(file=index, read=position(), values=tuple(rows), lines=tuple(row_lines))
    elif holds_array(stream, lines=file.format == "jsonl"):
        for texts, text_lines in split_array(stream, file.path):
            yield JsonTexts(file=index, read=position(), texts=tuple(texts), lines=tuple(text_lines))
    else:
        for data, line in split_lines(stream, file.path):
            yield JsonLines(file=index, read=position(), data=data, first_line=line)


def check_unchanged(file: RawFile) -> None:
    """See that a file is still the one that was listed.

    Raises:
        DataError: it is not, or is gone.
    """
    try:
        status = os.stat(file.path)
    except OSError as error:
        raise _unreadable(file, error) from error
    if (status.st_size, status.st_mtime_ns) != (file.size, file.mtime_ns):
        raise DataError(f"{file.path}: changed while it was in use; run again when nothing writes to it")


def _unreadable(file: RawFile, error: BaseException) -> DataError:
    return DataError(f"{file.path}: cannot be read: {str(error) or type(error).__name__}")
