"""Going through the files of a store that others wrote, once: every row is checked and counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, final

import pyarrow as pa

from streamsft.engine import Engine
from streamsft.errors import StoreError
from streamsft.sources.arrowfiles import ArrowFile
from streamsft.sources.blockrows import Block
from streamsft.sources.checking import BlockCheck, PlacedBlock, blocks_of
from streamsft.sources.jsonrows import json_batches
from streamsft.sources.manifest import Manifest
from streamsft.sources.parquetfiles import ParquetFile
from streamsft.sources.paths import RawFile
from streamsft.sources.rowfacts import RowFacts
from streamsft.sources.storecolumns import StoreColumns
from streamsft.sources.storefiles import Kind, StoreFiles
from streamsft.sources.validation import Validator
from streamsft.types import Ints

__all__ = ["Scanned", "scan_files", "stored_batches"]

_MAPPED_BYTES = 64 << 20


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scanned:
    """What a scan has learned.

    Attributes:
        manifest: what the store holds.
        facts: what planning needs of each row.
        blocks: where the rows lie, if they can only be decoded in blocks.
        carried: the columns that travel with the rows.
    """

    manifest: Manifest
    facts: RowFacts
    blocks: tuple[Block, ...] = ()
    carried: tuple[str, ...] = ()


class StoredBatch(NamedTuple):
    """Rows of a file as they are stored."""

    batch: pa.RecordBatch
    block: Block | None
    """The block that they are part of; None in text files."""
    mapped: bool
    """Whether the file holds them as they are used, so that it can be mapped into memory."""
    byte: Ints | None
    """Where each of them begins in a text file, int64[rows]."""


def stored_batches(file: RawFile, number: int, kind: Kind, extras: Sequence[str] = ()) -> Iterator[StoredBatch]:
    """The rows of a file in bounded pieces, with the columns that are checked; of a text file with all columns.

    Args:
        file: the file.
        number: its number in the store.
        kind: what it is.
        extras: columns that were named to travel with the rows.

    Raises:
        StoreError: it cannot be read, or lacks a column.
    """
    match kind:
        case "arrow":
            return _arrow_batches(ArrowFile(file.path), number, extras)
        case "parquet":
            return _parquet_batches(ParquetFile(file.path), number, extras)
        case "json":
            return (StoredBatch(batch, None, False, byte) for batch, byte in json_batches(file, extras))


def _arrow_batches(file: ArrowFile, number: int, extras: Sequence[str]) -> Iterator[StoredBatch]:
    columns = StoreColumns.of(file.schema, file.path, extras).checked
    touched = 0
    for batch, at, byte in file.batches(columns):
        yield StoredBatch(batch, Block(number, at, byte, batch.num_rows), file.maps(batch), None)
        touched += batch.nbytes
        if touched > _MAPPED_BYTES:
            file.forget()
            touched = 0


def _parquet_batches(file: ParquetFile, number: int, extras: Sequence[str]) -> Iterator[StoredBatch]:
    columns = StoreColumns.of(file.schema, file.path, extras).checked
    for group in range(file.groups):
        block = Block(number, group, 0, file.metadata.row_group(group).num_rows)
        for batch in file.batches(group, columns):
            yield StoredBatch(batch, block, False, None)


def scan_files(
    files: StoreFiles,
    extras: Sequence[str] = (),
    advance: Callable[[int], None] | None = None,
    engine: Engine | None = None,
) -> Scanned:
    """Go through all rows of a store; memory is bounded whatever its size.

    Args:
        files: the store's files.
        extras: columns that travel with the rows.
        advance: called with the bytes of the files that lie behind.
        engine: has blocks of Arrow and Parquet files read and checked; text is checked here, for it has no blocks.

    Raises:
        StoreError: a file or a row breaks a rule; names the file, the row and what to do.
    """
    if engine is not None and files.kind != "json":
        return _scan_blocks(files, extras, advance, engine)
    validator = Validator(extras=extras)
    blocks: list[Block] = []
    mapped = files.kind == "arrow"
    behind = 0
    for number, file in enumerate(files.files):
        first_row = 0
        if file.compression is not None:
            raise StoreError(
                f"{file.path}: is compressed, so its rows cannot be read in any order; decompress it, or make a store "
                "of it with `streamsft convert`"
            )
        for batch, block, whole, byte in stored_batches(file, number, files.kind, extras):
            validator.add(batch, file.path, file=number, first_row=first_row, byte=byte)
            first_row += batch.num_rows
            mapped = mapped and whole
            if block is not None and (not blocks or blocks[-1] != block):
                blocks.append(block)
        behind += file.size
        if advance is not None:
            advance(behind)
    return Scanned(
        manifest=validator.manifest(files.names),
        facts=validator.facts,
        blocks=() if mapped else tuple(blocks),
        carried=validator.carried,
    )


def _scan_blocks(
    files: StoreFiles, extras: Sequence[str], advance: Callable[[int], None] | None, engine: Engine
) -> Scanned:
    """Go through all rows by blocks that an engine has checked; they are counted in order."""
    validator = Validator(extras=extras)
    paths = [file.path for file in files.files]
    before = list(accumulate((file.size for file in files.files), initial=0))
    found: list[PlacedBlock] = []
    check = BlockCheck(paths, files.kind, tuple(extras))
    for place, checked in engine.map(check, blocks_of(files, extras), what=str(files.place)):
        number = place.block.file
        checked.count(validator, paths[number], number)
        found.append(place)
        if advance is not None:
            advance(before[number])
    if advance is not None:
        advance(before[-1])
    mapped = files.kind == "arrow" and all(place.mapped for place in found)
    return Scanned(
        manifest=validator.manifest(files.names),
        facts=validator.facts,
        blocks=() if mapped else tuple(place.block for place in found),
        carried=validator.carried,
    )
