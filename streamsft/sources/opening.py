"""Token stores on disk, mapped into memory: those of streamsft and those that ``datasets`` saved."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamsft.errors import StoreError
from streamsft.sources.columns import TokenColumns, ragged
from streamsft.sources.index import INDEX_FILE, RowIndex, load_index
from streamsft.sources.manifest import MANIFEST_FILE, Manifest, check_files, check_footer, load_manifest
from streamsft.sources.scan import Chunk, scan, scan_once

__all__ = ["TOKEN_COLUMNS", "Opened", "data_files", "open_store", "open_table"]

TOKEN_COLUMNS = ("input_ids", "loss_mask")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A store that is ready to be read.

    Attributes:
        manifest: what it holds.
        index: its per-row columns.
        columns: its tokens.
        table: its tokens as an Arrow table, where that is in memory only.
        indexed: whether `index` can be mapped from disk again.
    """

    manifest: Manifest
    index: RowIndex
    columns: TokenColumns
    table: pa.Table | None = None
    indexed: bool = True


def open_store(path: Path, *, verify: bool = False, known: tuple[RowIndex, Manifest] | None = None) -> Opened:
    """Open the store in the directory `path`.

    Args:
        path: a directory of `StoreWriter` or of ``Dataset.save_to_disk``.
        verify: go through all bytes and compare them with what was written.
        known: index and manifest of a foreign store that was scanned before.

    Raises:
        StoreError: there is no store, or it is incomplete, damaged or lacks a column.
    """
    if not path.is_dir():
        raise StoreError(f"{path}: there is no such directory; the nearest that exists is {_nearest(path)}")
    names, ours = data_files(path)
    if (path / MANIFEST_FILE).exists():
        manifest = load_manifest(path)
        check_files(path, manifest, verify=verify)
        chunks, whole = _map_files(path, names)
        index, _ = load_index(path / INDEX_FILE)
        _check_rows(path, chunks, index, manifest)
        return Opened(manifest=manifest, index=index, columns=TokenColumns(chunks, index.bounds, whole))
    if ours:
        raise StoreError(f"{path}: was only half written or copied ({MANIFEST_FILE} is missing); build the store again")
    chunks, whole = _map_files(path, names)
    if known is not None:
        index, manifest = known
        indexed = False
        _check_rows(path, chunks, index, manifest)
    else:
        index, manifest, indexed = scan_once(path, names, chunks, verify=verify)
    return Opened(manifest=manifest, index=index, columns=TokenColumns(chunks, index.bounds, whole), indexed=indexed)


def open_table(table: pa.Table, where: str, known: tuple[RowIndex, Manifest] | None = None) -> Opened:
    """A store over an Arrow table in memory; scanned unless index and manifest are `known`.

    Raises:
        StoreError: as `scan`, or a column is missing.
    """
    table = table.select(_present(table.schema, where))
    chunks = [_chunk(batch, where) for batch in table.to_batches()]
    index, manifest = known if known is not None else scan(chunks, where)
    return Opened(
        manifest=manifest, index=index, columns=TokenColumns(chunks, index.bounds), table=table, indexed=False
    )


def _nearest(path: Path) -> Path:
    return next(parent for parent in path.absolute().parents if parent.exists())


def data_files(path: Path) -> tuple[list[str], bool]:
    """The names of the Arrow files of a `save_to_disk` directory, and whether streamsft wrote it."""
    place = path / "state.json"
    if not place.is_file():
        if (path / "dataset_dict.json").is_file():
            splits = ", ".join(sorted(p.parent.name for p in path.glob("*/state.json")))
            raise StoreError(f"{path}: holds several splits; name the directory of one of them: {splits}")
        raise StoreError(
            f"{path}: is no token store (state.json is missing): it needs to be a directory of `streamsft tokenize` or "
            "of Dataset.save_to_disk; if it was one, it was only half written or copied"
        )
    try:
        state = json.loads(place.read_bytes())
        return [str(entry["filename"]) for entry in state["_data_files"]], "streamsft" in state
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{place}: cannot be read ({error}); write or copy the store again") from error


def _map_files(path: Path, names: Sequence[str]) -> tuple[list[Chunk], NDArray[np.uint8] | None]:
    """Map Arrow stream files into memory: the token columns of all their batches, and all bytes of a single file."""
    chunks: list[Chunk] = []
    whole = None
    for name in names:
        place = path / name
        check_footer(place)
        try:
            source = pa.memory_map(str(place))
            schema = pa.ipc.open_stream(source).schema
            fields = [schema.get_field_index(column) for column in _present(schema, str(place))]
            source.seek(0)
            batches = list(pa.ipc.open_stream(source, options=pa.ipc.IpcReadOptions(included_fields=fields)))
        except (pa.ArrowException, OSError) as error:
            raise StoreError(f"{place}: is damaged ({error}); write or copy the store again") from error
        chunks += [_chunk(batch, str(place)) for batch in batches]
        source.seek(0)
        whole = np.frombuffer(source.read_buffer(), np.uint8)
    return chunks, whole if len(names) == 1 else None


def _present(schema: pa.Schema, where: str) -> list[str]:
    missing = [column for column in TOKEN_COLUMNS if schema.get_field_index(column) < 0]
    if missing:
        raise StoreError(
            f"{where}: has no column {' and '.join(missing)}, only {', '.join(schema.names)}; a token store needs both "
            "input_ids and loss_mask (for text give the source a `path` instead of a `store`)"
        )
    return list(TOKEN_COLUMNS)


def _chunk(batch: pa.RecordBatch, where: str) -> Chunk:
    ids, mask = (ragged(batch.column(column), f"{where}, column {column}") for column in TOKEN_COLUMNS)
    return ids, mask


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
