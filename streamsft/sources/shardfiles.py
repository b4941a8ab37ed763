"""`ShardFiles`: raw files as shards of a streaming source, read in order from any position."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from itertools import islice
from typing import Any, final

from streamsft.sources.files import reading
from streamsft.sources.paths import Paths, RawFile, find_files
from streamsft.sources.shardrows import FILE_SHIFT, Unit, read_unit
from streamsft.sources.shardunits import Part, cut, explain
from streamsft.sources.streaming import RawRow

__all__ = ["ShardFiles"]

logger = logging.getLogger("streamsft")

_SAMPLED = 64 << 10  # bytes of each end of a file that its fingerprint covers


@final
class ShardFiles:
    """The rows of raw files as a `ShardReader`: JSON Lines, JSON arrays, Parquet, Arrow, CSV, TSV; text also .gz, .zst.

    The files are listed when this is made, and opened only while they are read or counted, one at a time in each
    reader. It can be pickled, before and after reading.

    A unit is a file. Where there are fewer files than lanes it is a row group of a Parquet file, and where these
    are too few as well, every n-th row of a file or row group: enough units for each lane, as long as there are as
    many rows. Rows are counted only as far as this needs. Files without rows make no units.

    Args:
        paths: a file, a glob, a folder (searched to any depth), or a list of these.
        name: the source's name, for messages.

    Raises:
        DataError: nothing is there, or nothing that can be read.
        ConfigError: the list is empty, or names a file twice.
    """

    def __init__(self, paths: Paths, *, name: str = "") -> None:
        self._files = find_files(paths)
        self._name = name
        self._units: dict[int, tuple[Unit, ...]] = {}
        self._fingerprint = ""

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files, for messages."""
        return tuple(file.name for file in self._files)

    @property
    def fingerprint(self) -> str:
        """Digest of format, size, and the first and last 64 KiB of each file, in order; no paths.

        Streamed files are too large to be read whole before training begins, so a change in the middle of a file
        that keeps its size goes unseen.

        Raises:
            DataError: a file cannot be read, or is not the one that was listed.
        """
        if not self._fingerprint:
            described = [[file.format, file.compression, file.size, *_ends(file)] for file in self._files]
            text = json.dumps(described).encode()
            self._fingerprint = hashlib.blake2b(text, digest_size=16).hexdigest()
        return self._fingerprint

    def units(self, lanes: int) -> int:
        """Number of units for `lanes` readers; 0 if there are no rows.

        Raises:
            DataError: a file cannot be read.
        """
        return len(self._cut(lanes))

    def read(self, unit: int, lanes: int, position: Any) -> Iterator[RawRow]:
        """The rows of unit number `unit` of ``units(lanes)`` from `position` on; see `streamsft.sources.shardrows`.

        A row's number is its number in its file, bad rows counted and blank lines not, plus 2**32 times the
        number of its file.

        Raises:
            DataError: the file cannot be read, or is not the one that was listed.
            StateError: the position is none in this format.
        """
        part = self._cut(lanes)[unit]
        return read_unit(self._files[part.file], part, position)

    def where(self, number: int) -> str:
        """Row `number` as ``file:row``, rows of a file numbered from 0."""
        file, row = divmod(number, 1 << FILE_SHIFT)
        return f"{self._files[file].name}:{row}"

    def _cut(self, lanes: int) -> tuple[Unit, ...]:
        if lanes not in self._units:
            parts = [Part(file=at, size=file.size) for at, file in enumerate(self._files) if self._count(at, 1)]
            units = cut(parts, 1, self._count_part)
            if len(parts) < lanes:
                groups = [group for part in parts for group in self._groups(part)]
                units = cut(groups, lanes, self._count_part)
                files = "1 file" if len(parts) == 1 else f"{len(parts)} files"
                if units:
                    logger.warning("%s", explain(self._name, files, units, lanes))
            self._units[lanes] = units
        return self._units[lanes]

    def _groups(self, part: Part) -> list[Part]:
        """The row groups of a Parquet file that have rows; another file as it is."""
        file = self._files[part.file]
        if file.format != "parquet":
            return [part]
        return [
            Part(file=part.file, group=group, size=max(1, size))
            for group, (rows, size) in enumerate(_row_groups(file))
            if rows
        ]

    def _count_part(self, part: Part, limit: int) -> int:
        return self._count(part.file, limit, part.group)

    def _count(self, file: int, limit: int, group: int | None = None) -> int:
        """Rows of a file or row group, counted up to `limit`."""
        if self._files[file].format == "parquet":
            shapes = _row_groups(self._files[file])
            return min(limit, sum(rows for at, (rows, _) in enumerate(shapes) if group in (None, at)))
        rows = read_unit(self._files[file], Unit(file=file, group=group), None)
        return sum(1 for _ in islice(rows, limit))


def _row_groups(file: RawFile) -> list[tuple[int, int]]:
    """Rows and bytes of each row group of a Parquet file."""
    import pyarrow.parquet as pq

    with reading(file):
        metadata = pq.read_metadata(file.path)
    shapes = map(metadata.row_group, range(metadata.num_row_groups))
    return [(shape.num_rows, shape.total_byte_size) for shape in shapes]


def _ends(file: RawFile) -> Iterator[str]:
    """Hashes of the first and the last bytes of a file."""
    with reading(file), open(file.path, "rb") as raw:
        yield _hash(raw.read(_SAMPLED))
        raw.seek(max(0, file.size - _SAMPLED), os.SEEK_SET)
        yield _hash(raw.read(_SAMPLED))


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
