"""The rows of one unit of a file, from any position: where reading is made to seek.

Positions behind a row, as JSON:

========================= ======================================== =======================================
files                     position                                 how reading goes on there
========================= ======================================== =======================================
JSON Lines, JSON arrays   [byte, row, line]; lines that are rows   seeks to the byte; compressed files are
                          without the line, which is row + 1       decompressed up to it, and not decoded
Parquet                   [row group, row in it]                   opens the row group
Arrow                     [record batch, row in it, its first row, opens the record batch
                          the byte where it starts]
CSV, TSV                  [row]                                    parses the rows before it again
========================= ======================================== =======================================
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, final

from streamsft.errors import StateError
from streamsft.sources.damage import check_but_text
from streamsft.sources.files import DELIMITERS, reading
from streamsft.sources.jsontext import array_elements, holds_array, without_bom
from streamsft.sources.paths import RawFile
from streamsft.sources.rawbytes import open_bytes
from streamsft.sources.rawrows import BadRow, null_pruner
from streamsft.sources.shardvalues import ArrowValue, JsonValue, Piece, PlainValue, Prune
from streamsft.sources.streaming import RawRow
from streamsft.sources.tables import read_delimited, record_batches, rows_per_piece

__all__ = ["FILE_SHIFT", "Unit", "read_unit"]

FILE_SHIFT = 32
"""A row's number is its number in its file, plus the number of its file shifted left by this."""

_OBJECT_BYTES = 200  # what the objects around a row take, roughly
_BUFFER = 1 << 20  # of a row group's columns that is held while they are decoded


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What is read on its own: a file, a row group of it, or every `step`-th row of either from `start` on.

    Attributes:
        file: number of the file.
        group: number of the row group; None is the whole file.
        start: first row, counted within the file or row group.
        step: how far it is to the next.
    """

    file: int
    group: int | None = None
    start: int = 0
    step: int = 1


def read_unit(file: RawFile, unit: Unit, position: Any) -> Iterator[RawRow]:
    """The rows of `unit`, which is in `file`, from `position` on; None is its start.

    One file is open from the first row to the end of the iteration.

    Raises:
        DataError: the file cannot be read, or is not the one that was listed.
        StateError: the position is not one of this format.
    """
    with reading(file):
        if file.format == "parquet":
            yield from _parquet(file, unit, _checked(file, position, 2))
        elif file.format == "arrow":
            yield from _arrow(file, unit, _checked(file, position, 4))
        else:
            with open_bytes(file.path, file.compression) as (stream, _):
                if file.format in DELIMITERS:
                    yield from _delimited(file, unit, stream, _checked(file, position, 1))
                elif holds_array(stream, lines=file.format == "jsonl"):
                    yield from _array(file, unit, stream, _checked(file, position, 3))
                else:
                    yield from _lines(file, unit, stream, _checked(file, position, 2, 3))


def _checked(file: RawFile, position: Any, *lengths: int) -> list[int] | None:
    if position is None:
        return None
    if not (
        isinstance(position, list | tuple)
        and len(position) in lengths
        and all(type(number) is int and number >= 0 for number in position)
    ):
        raise StateError(
            f"{file.path}: {position!r} is no position in a {file.format} file; the state is of other data"
        )
    return list(position)


def _lines(file: RawFile, unit: Unit, stream: BinaryIO, position: list[int] | None) -> Iterator[RawRow]:
    byte, row, *other = position or (0, 0)
    line = other[0] if other else row + 1
    _skip(file, stream, byte)
    base, step, start, name = unit.file << FILE_SHIFT, unit.step, unit.start, file.name
    for text in stream:
        byte += len(text)
        line += 1
        if line == 2:
            text = without_bom(text, file.path)
        if not text.strip():
            continue
        row += 1
        if (row - 1) % step == start:
            value = JsonValue(text.rstrip(b"\n"), name, line - 1)
            after = (byte, row) if line == row + 1 else (byte, row, line)
            yield RawRow(base + row - 1, value, len(text) + _OBJECT_BYTES, after)


def _array(file: RawFile, unit: Unit, stream: BinaryIO, position: list[int] | None) -> Iterator[RawRow]:
    row = 0
    begin: tuple[int, int] | None = None
    if position is not None:
        byte, row, line = position
        begin = (byte, line)
        _skip(file, stream, byte)
    base = unit.file << FILE_SHIFT
    for text, line, (byte, end) in array_elements(stream, file.path, begin):
        row += 1
        if (row - 1) % unit.step == unit.start:
            value = JsonValue(text, file.name, line)
            yield RawRow(base + row - 1, value, len(text) + _OBJECT_BYTES, [byte, row, end])


def _skip(file: RawFile, stream: BinaryIO, byte: int) -> None:
    """Go to a byte of the decompressed text."""
    if file.compression is None:
        stream.seek(byte)
        return
    while byte > 0:
        data = stream.read(min(byte, _BUFFER))
        if not data:
            raise EOFError("the file is shorter than when the state was saved")
        byte -= len(data)


def _delimited(file: RawFile, unit: Unit, stream: BinaryIO, position: list[int] | None) -> Iterator[RawRow]:
    (behind,) = position or (0,)
    base = unit.file << FILE_SHIFT
    row = 0
    for values, lines in read_delimited(stream, DELIMITERS[file.format], file.path):
        for value, line in zip(values, lines, strict=True):
            row += 1
            if row > behind and (row - 1) % unit.step == unit.start:
                size = 0 if isinstance(value, BadRow) else sum(map(len, value.values()))
                yield RawRow(base + row - 1, PlainValue(value, file.name, line), size + _OBJECT_BYTES, [row])


def _parquet(file: RawFile, unit: Unit, position: list[int] | None) -> Iterator[RawRow]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(file.path, pre_buffer=False, buffer_size=_BUFFER) as source:
        shapes = [source.metadata.row_group(group) for group in range(source.num_row_groups)]
        groups = range(len(shapes)) if unit.group is None else range(unit.group, unit.group + 1)
        group, behind = position or (groups.start, 0)
        prune = null_pruner(source.schema_arrow)
        for at in range(max(group, groups.start), groups.stop):
            first = sum(shape.num_rows for shape in shapes[:at])
            done, behind = 0, behind if at == group else 0
            size = rows_per_piece(shapes[at].num_rows, shapes[at].total_byte_size)
            for batch in source.iter_batches(batch_size=size, row_groups=[at], use_threads=False):
                check_but_text(batch)
                taken = _Taken(file, unit, prune, first, (at,), 0, ())
                yield from taken.rows(batch, done, behind)
                done += batch.num_rows


def _arrow(file: RawFile, unit: Unit, position: list[int] | None) -> Iterator[RawRow]:
    import pyarrow as pa

    if os.path.getsize(file.path) == 0:
        return
    number, behind, first, byte = position or (0, 0, 0, 0)
    with pa.memory_map(file.path) as mapped:
        prune: Prune | None = None
        for at, (batch, _, start) in enumerate(record_batches(mapped, number, byte), number):
            prune = prune or null_pruner(batch.schema)
            behind = behind if at == number else 0
            size = rows_per_piece(batch.num_rows, batch.nbytes)
            taken = _Taken(file, unit, prune, 0, (at,), first, (first, start))
            for done in range(behind // size * size, batch.num_rows, size):
                piece = batch.slice(done, size)
                check_but_text(piece)
                yield from taken.rows(piece, first + done, first + behind)
            first += batch.num_rows


@final
@dataclass(frozen=True, slots=True)
class _Taken:
    """Takes a unit's rows out of pieces of its file.

    Attributes:
        first: number in the file of the row that the unit's rows are counted from.
        before: what positions begin with; behind it stands a number of rows.
        counted: the row from which positions count, itself counted from `first`.
        tail: what positions end with.
    """

    file: RawFile
    unit: Unit
    prune: Prune
    first: int
    before: tuple[int, ...]
    counted: int
    tail: tuple[int, ...]

    def rows(self, batch: Any, done: int, behind: int) -> Iterator[RawRow]:
        """The rows of a piece that has `done` rows before it and of which those below `behind` were read before."""
        step = self.unit.step
        begin = max(behind - done, 0)
        begin += (self.unit.start - done - begin) % step
        if begin >= batch.num_rows:
            return
        size = batch.nbytes // batch.num_rows + _OBJECT_BYTES
        if step > 1:  # a copy, so that the block that is shuffled does not keep the other units' rows in memory
            batch = batch.take(list(range(begin, batch.num_rows, step)))
            done, begin = done + begin, 0
        piece = Piece(batch, self.prune, self.file.name, self.first + done, step)
        base = (self.unit.file << FILE_SHIFT) + self.first
        for index in range(begin, batch.num_rows):
            row = done + index * step
            after = (*self.before, row + 1 - self.counted, *self.tail)  # a tuple: the garbage collector leaves it alone
            yield RawRow(base + row, ArrowValue(piece, index), size, after)
