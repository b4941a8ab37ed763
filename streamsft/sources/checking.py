"""Checking the rows of a store's files by blocks, wherever an engine has it done: what scans share with engines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import pyarrow as pa

from streamsft.sources.arrowfiles import ArrowFile
from streamsft.sources.blockrows import Block
from streamsft.sources.groupreader import GroupReader
from streamsft.sources.parquetfiles import ParquetFile
from streamsft.sources.storecolumns import StoreColumns
from streamsft.sources.storefiles import Kind, StoreFiles
from streamsft.sources.validation import Checked, Validator

__all__ = ["BlockCheck", "CheckedBlock", "GroupCheck", "PlacedBlock", "blocks_of", "placed"]


class PlacedBlock(NamedTuple):
    """A block of rows that is to be checked."""

    block: Block
    first_row: int
    """Number in the file of its first row."""
    mapped: bool = False
    """Whether the file holds it as it is used, so that it can be mapped into memory."""


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CheckedBlock:
    """The rows of a block, which keep the rules.

    Attributes:
        schema: of the columns that were checked.
        rows: the rows, in order.
        read: bytes that were read for them, where that is known.
    """

    schema: pa.Schema
    rows: tuple[Checked, ...]
    read: int = 0

    def count(self, validator: Validator, where: str, file: int) -> None:
        """Have `validator` take the rows, as the next ones of file number `file`."""
        validator.columns_of(self.schema, where)
        for checked in self.rows:
            validator.take(checked, where, file=file)


@final
@dataclass(frozen=True, slots=True)
class BlockCheck:
    """Reads and checks blocks of local files.

    Attributes:
        paths: the files, by number.
        kind: ``arrow`` or ``parquet``.
        extras: columns that travel with the rows.
    """

    paths: Sequence[str]
    kind: Kind
    extras: Sequence[str]

    def run(self, place: PlacedBlock, /) -> CheckedBlock:
        """The rows of a block.

        Raises:
            StoreError: its file cannot be read here, or a row breaks a rule.
        """
        path, block = self.paths[place.block.file], place.block
        file = ParquetFile(path) if self.kind == "parquet" else ArrowFile(path)
        columns = StoreColumns.of(file.schema, path, self.extras).checked
        if isinstance(file, ParquetFile):
            batch = file.group(block.number, columns)
        else:
            batch = file.batch(block.number, block.byte, columns)
        return _checked(batch, path, place, self.extras)


@final
@dataclass(frozen=True, slots=True)
class GroupCheck:
    """Reads and checks row groups of objects.

    Attributes:
        reader: reads them.
        names: the objects, by number, for messages.
        extras: columns that travel with the rows.
    """

    reader: GroupReader
    names: Sequence[str]
    extras: Sequence[str]

    def run(self, place: PlacedBlock, /) -> CheckedBlock:
        """The rows of a row group.

        Raises:
            StoreError: its object cannot be read or has changed, or a row breaks a rule.
        """
        number = place.block.file
        columns = StoreColumns.of(self.reader.schema(number), self.names[number], self.extras)
        batch, read = self.reader.read(place.block, columns.checked)
        return _checked(batch, self.names[number], place, self.extras, read)


def _checked(
    batch: pa.RecordBatch, where: str, place: PlacedBlock, extras: Sequence[str], read: int = 0
) -> CheckedBlock:
    rows = tuple(Validator(extras=extras).check(batch, where, first_row=place.first_row))
    return CheckedBlock(schema=batch.schema, rows=rows, read=read)


def blocks_of(files: StoreFiles, extras: Sequence[str]) -> Iterator[PlacedBlock]:
    """The blocks of Arrow or Parquet files, in order; rows are not read.

    Raises:
        StoreError: a file cannot be read, or lacks a column.
    """
    for number, file in enumerate(files.files):
        first_row = 0
        if files.kind == "parquet":
            metadata = ParquetFile(file.path).metadata
            counts = [int(metadata.row_group(group).num_rows) for group in range(metadata.num_row_groups)]
            yield from placed(Block(number, group, 0, rows) for group, rows in enumerate(counts) if rows)
            continue
        opened = ArrowFile(file.path)
        for batch, at, byte in opened.batches(StoreColumns.of(opened.schema, file.path, extras).checked):
            yield PlacedBlock(Block(number, at, byte, batch.num_rows), first_row, opened.maps(batch))
            first_row += batch.num_rows


def placed(blocks: Iterator[Block]) -> Iterator[PlacedBlock]:
    """Blocks in order, with the numbers of their rows."""
    last, first_row = -1, 0
    for block in blocks:
        first_row = 0 if block.file != last else first_row
        yield PlacedBlock(block, first_row)
        last, first_row = block.file, first_row + block.rows
