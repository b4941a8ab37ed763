"""Token stores on disk, opened where they lie: those of streamsft and those that others wrote."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamsft.engine import Engine
from streamsft.errors import StoreError
from streamsft.sources.arrowfiles import ArrowFile
from streamsft.sources.blockrows import BlockRows
from streamsft.sources.cachefolder import default_cache_dir
from streamsft.sources.columns import TokenColumns
from streamsft.sources.index import INDEX_FILE, RowIndex, load_index
from streamsft.sources.jsonrows import JsonRows
from streamsft.sources.loading import BlockLoader
from streamsft.sources.manifest import MANIFEST_FILE, Manifest, check_files, load_manifest
from streamsft.sources.mappedrows import MappedRows
from streamsft.sources.paths import Paths
from streamsft.sources.rowids import RowIds
from streamsft.sources.scan import scan_files
from streamsft.sources.sidecar import Sidecar, content_key, keep, kept, places
from streamsft.sources.storecolumns import Chunk, StoreColumns, decode
from streamsft.sources.storefiles import StoreFiles, find_store_files
from streamsft.sources.validation import Validator
from streamsft.types import Bools, Int32s, Ints

__all__ = ["Layout", "Opened", "StoreRows", "open_store", "open_table"]


class StoreRows(Protocol):
    """Random access to the rows of a store."""

    def read(self, index: Ints) -> tuple[list[Int32s], list[Bools]]:
        """Ids int32[n] and masks bool[n] of the rows `index` (int64[k], each in [0, rows)).

        Raises:
            IndexError: a row that is not there.
        """

    def read_ids(self, index: Ints) -> RowIds:
        """The ids alone."""

    def carried(self, index: Ints) -> dict[str, list[Any]]:
        """What travels with the rows `index`, by column; asked for only where something does."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the rows of a store lie on disk.

    Attributes:
        kind: ``arrow``, ``parquet`` or ``json``; ``memory`` where they do not.
        files: name and size in bytes of each file, in the order of the rows.
        blocks: row groups or record batches; 0 in text files.
    """

    kind: str
    files: tuple[tuple[str, int], ...] = ()
    blocks: int = 0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A store that is ready to be read.

    Attributes:
        manifest: what it holds.
        index: its per-row columns.
        rows: its tokens.
        layout: how they lie on disk.
        carried: the columns that travel with its rows.
        table: its columns as an Arrow table, where they are in memory only.
        known: what opening it again would have to find out by a scan; None where that is kept on disk.
    """

    manifest: Manifest
    index: RowIndex
    rows: StoreRows
    layout: Layout
    carried: tuple[str, ...] = ()
    table: pa.Table | None = None
    known: Sidecar | None = None


def open_store(
    paths: Paths,
    *,
    extras: Sequence[str] = (),
    verify: bool = False,
    known: Sidecar | None = None,
    advance: Callable[[int], None] | None = None,
    engine: Engine | None = None,
) -> Opened:
    """Open the store that `paths` stands for.

    Args:
        paths: a directory of `StoreWriter` or of ``Dataset.save_to_disk``, or files as `find_store_files` takes them.
        extras: further columns that travel with the rows.
        verify: go through all bytes and compare them with what was written, or with what an earlier scan has found.
        known: what a scan has found that is not kept on disk.
        advance: called with the bytes that a scan has behind it.
        engine: has what is read whole read and checked; by default this process does.

    Raises:
        StoreError: there is no store, or it is incomplete, damaged, lacks a column or has a row that breaks a rule.
    """
    if isinstance(paths, str | os.PathLike) and (Path(paths) / MANIFEST_FILE).exists():
        return _open_ours(Path(paths), extras, verify=verify, engine=engine)
    files = find_store_files(paths)
    sidecar = _sidecar(files, extras, verify, advance, engine) if known is None else known
    rows = _rows(files, sidecar, extras)
    return Opened(
        manifest=sidecar.manifest,
        index=sidecar.index,
        rows=rows,
        layout=_layout(files, rows),
        carried=sidecar.carried,
        known=None if sidecar.kept else sidecar,
    )


def open_table(table: pa.Table, where: str, *, extras: Sequence[str] = (), known: Sidecar | None = None) -> Opened:
    """A store over an Arrow table in memory; checked unless it is `known`.

    Raises:
        StoreError: a column is missing, or a row breaks a rule.
    """
    columns = StoreColumns.of(table.schema, where, extras)
    if known is None:
        validator, row = Validator(extras=extras), 0
        for batch in table.select(columns.checked).to_batches():
            validator.add(batch, where, first_row=row)
            row += batch.num_rows
        manifest = validator.manifest()
        known = Sidecar(index=validator.facts.index(), manifest=manifest, carried=columns.carried)
    table = table.select(columns.read)
    chunks = [decode(batch, columns, where) for batch in table.to_batches()]
    carried = table.select(columns.carried).to_batches() if columns.carried else []
    rows = MappedRows(TokenColumns(chunks, known.index.bounds), carried)
    return Opened(
        manifest=known.manifest,
        index=known.index,
        rows=rows,
        layout=Layout(kind="memory", blocks=len(chunks)),
        carried=known.carried,
        table=table,
        known=known,
    )


def _open_ours(path: Path, extras: Sequence[str], *, verify: bool, engine: Engine | None) -> Opened:
    if extras:
        raise StoreError(
            f"{path}: extras: a store that streamsft wrote holds nothing beside its tokens; leave them out"
        )
    manifest = load_manifest(path)
    check_files(path, manifest, verify=verify, engine=engine)
    files = find_store_files(path)
    index, _ = load_index(path / INDEX_FILE)
    rows = _mapped(files, index, manifest, ())
    return Opened(manifest=manifest, index=index, rows=rows, layout=_layout(files, rows))


def _layout(files: StoreFiles, rows: StoreRows) -> Layout:
    blocks = rows.blocks if isinstance(rows, MappedRows | BlockRows) else 0
    return Layout(kind=files.kind, files=tuple((file.name, file.size) for file in files.files), blocks=blocks)


def _sidecar(
    files: StoreFiles,
    extras: Sequence[str],
    verify: bool,
    advance: Callable[[int], None] | None,
    engine: Engine | None,
) -> Sidecar:
    """What is known of the rows of foreign files: by an earlier scan, or by one that is made now.

    With `verify` the rows are gone through in any case and must be those of the earlier scan.
    """
    where = places(files.place, files.files, given=files.given, cache=default_cache_dir())
    key = content_key(files.files, extras)
    found = next((sidecar for place in where if (sidecar := kept(place, key, files.names)) is not None), None)
    if found is not None and not verify:
        return found
    scanned = scan_files(files, extras, advance, engine)
    if found is not None and found.manifest.fingerprint != scanned.manifest.fingerprint:
        raise StoreError(
            f"{files.place}: its rows (fingerprint {scanned.manifest.fingerprint}) are not those of the first use "
            f"({found.manifest.fingerprint}), though its files seem unchanged; restore them, or delete {found.kept}"
        )
    sidecar = found or keep(where, key, scanned)
    if sidecar is not None:
        return sidecar
    return Sidecar(
        index=scanned.facts.index(), manifest=scanned.manifest, blocks=scanned.blocks, carried=scanned.carried
    )


def _rows(files: StoreFiles, sidecar: Sidecar, extras: Sequence[str]) -> StoreRows:
    if files.kind == "json":
        assert sidecar.index.byte is not None or not len(sidecar.index.row), "text is scanned with its places"
        byte = np.empty(0, np.int64) if sidecar.index.byte is None else sidecar.index.byte
        return JsonRows(files.files, sidecar.carried, sidecar.index.file, byte)
    if files.kind == "parquet" or sidecar.blocks:
        return BlockRows(sidecar.blocks, BlockLoader(files.files, files.kind, tuple(extras)))
    return _mapped(files, sidecar.index, sidecar.manifest, extras)


def _mapped(files: StoreFiles, index: RowIndex, manifest: Manifest, extras: Sequence[str]) -> MappedRows:
    """Map Arrow files into memory: the columns of all their batches that are read."""
    chunks: list[Chunk] = []
    carried: list[pa.RecordBatch] = []
    whole: NDArray[np.uint8] | None = None
    for file in files.files:
        mapped = ArrowFile(file.path)
        columns = StoreColumns.of(mapped.schema, file.path, extras)
        for placed in mapped.batches(columns.read):
            chunks.append(decode(placed.batch, columns, file.path))
            if columns.carried:
                carried.append(placed.batch.select(list(columns.carried)))
        whole = mapped.bytes
    _check_rows(files.place, chunks, index, manifest)
    return MappedRows(TokenColumns(chunks, index.bounds, whole if len(files.files) == 1 else None), carried)


def _check_rows(path: Path, chunks: Sequence[Chunk], index: RowIndex, manifest: Manifest) -> None:
    """Check that data, index and manifest speak of the same number of rows and tokens, chunk by chunk."""
    ends = np.cumsum([0] + [len(ids.offsets) - 1 for ids, _ in chunks])
    if not int(ends[-1]) == len(index.row) == manifest.rows:
        raise StoreError(
            f"{path}: holds {ends[-1]:,} rows, its index {len(index.row):,}, its manifest {manifest.rows:,}; "
            "build the store again"
        )
    for pair, tokens in zip(chunks, np.diff(index.bounds[ends]), strict=True):
        if any(int(column.offsets[-1] - column.offsets[0]) != tokens for column in pair):
            raise StoreError(f"{path}: its rows are not as long as its index says; build the store again")
