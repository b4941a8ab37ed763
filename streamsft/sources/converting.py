"""Token stores from one layout into another, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import pyarrow as pa

from streamsft.errors import StoreError
from streamsft.sources.addresses import is_address, shown
from streamsft.sources.columns import Ragged
from streamsft.sources.objectwriting import ObjectTarget
from streamsft.sources.paths import Paths
from streamsft.sources.publish import (
    clean_up_after_the_dead,
    fsync_directory,
    fsync_file,
    remove,
    temporary_name,
    try_rename,
)
from streamsft.sources.rowgroups import RowGroupStore
from streamsft.sources.scan import stored_batches
from streamsft.sources.store import TokenStore
from streamsft.sources.storecolumns import StoreColumns, decode
from streamsft.sources.storefiles import find_store_files
from streamsft.sources.tokennames import CHOSEN, IDS, MASK, SHARED
from streamsft.sources.validation import Validator, pieces
from streamsft.sources.writer import StoreWriter

__all__ = ["Layouts", "convert_store"]

Layouts = Literal["store", "arrow", "parquet"]


def convert_store(
    source: Paths,
    target: str | Path,
    *,
    to: Layouts | None = None,
    row_group_tokens: int = 1 << 20,
    file_tokens: int | None = None,
    extras: Sequence[str] = (),
    advance: Callable[[int], None] | None = None,
) -> TokenStore | RowGroupStore:
    """Write the rows of a store in another layout, checked, in the same order.

    What is written is read back and must have the fingerprint of what was read. Other processes see it once that is so.

    Args:
        source: any store; its text files may be compressed.
        target: an .arrow or .parquet file, or a directory, or an address of Parquet files (``s3://bucket/folder``);
            nothing may be there.
        to: the layout of a directory: ``store`` as streamsft writes it (the default), or files of one kind.
        row_group_tokens: most tokens of a row group or record batch; a longer row has one of its own.
        file_tokens: begin another file when one holds so many tokens, or more by less than a row group, which has no
            more than that either; into a directory of files only.
        extras: further columns to take along; not into a ``store``.
        advance: called with the bytes of the source that lie behind.

    Returns:
        The new store; at an address one that is read by row groups.

    Raises:
        StoreError: the source cannot be used, the target exists or cannot be written, or does not fit what is asked.
    """
    row_group_tokens = min(row_group_tokens, file_tokens or row_group_tokens)
    if is_address(target):
        rows = _Rows(source, extras, advance)
        return _write_objects(rows, str(target), to, row_group_tokens, file_tokens)
    place = Path(target).absolute()
    layout = _layout(place, to, file_tokens, extras)
    if place.exists():
        raise StoreError(f"{place}: exists already; remove it, or choose another place")
    _check_outside(place, source)
    rows = _Rows(source, extras, advance)
    if layout == "store":
        _write_store(rows, place)
    else:
        _write_files(rows, place, layout, row_group_tokens, file_tokens)
    store = TokenStore.open(place, extras=extras)
    if store.fingerprint != rows.validator.manifest().fingerprint:
        raise StoreError(f"{place}: was written, but does not read back as it was; remove it and check the disk")
    return store


def _check_outside(place: Path, source: Paths) -> None:
    """Refuse to write into a directory that is read: it would hold all rows twice."""
    for given in [source] if isinstance(source, str | os.PathLike) else source:
        if Path(os.path.realpath(place)).is_relative_to(os.path.realpath(os.path.expanduser(given))):
            raise StoreError(
                f"{place}: lies in {given}, which is read and would hold all rows twice; choose another place"
            )


def _write_objects(
    rows: _Rows, address: str, to: Layouts | None, row_group_tokens: int, file_tokens: int | None
) -> RowGroupStore:
    """Write Parquet files to an address, and read them back there."""
    if to not in (None, "parquet"):
        raise StoreError(f"{shown(address)}: a store at an address is of Parquet files; leave {to} out")
    target = ObjectTarget(address)
    if target.single and file_tokens is not None:
        raise StoreError(f"{shown(address)}: is one file; give a folder to write several, or leave file_tokens out")
    groups = _groups(iter(rows), row_group_tokens)
    number = target.write(groups, lambda some, sink: _write_file(some, sink, "parquet", file_tokens))
    try:
        _refuse_none(number, shown(address))
        store = RowGroupStore.open(target.files, name="written", extras=rows.extras)
        if store.fingerprint != rows.validator.manifest().fingerprint:
            raise StoreError(f"{shown(address)}: was written, but does not read back as it was; write it again")
    except BaseException:
        target.discard()
        raise
    target.finish()
    return RowGroupStore.open(target.address, extras=rows.extras)


_NOT_WRITTEN = ("json", "jsonl", "csv", "tsv", "txt", "gz", "zst", "feather", "ipc", "pq")


def _layout(place: Path, to: Layouts | None, file_tokens: int | None, extras: Sequence[str]) -> Layouts:
    suffix = place.suffix[1:]
    if suffix in ("arrow", "parquet"):
        if to not in (None, suffix):
            raise StoreError(f"{place}: is named as {suffix}, and {to} is asked for; leave one of them out")
        if file_tokens is not None:
            raise StoreError(f"{place}: is one file; give a directory to write several, or leave file_tokens out")
        return "arrow" if suffix == "arrow" else "parquet"
    if suffix.lower() in _NOT_WRITTEN:
        raise StoreError(f"{place}: stores are written as a directory, .arrow or .parquet")
    if to in (None, "store") and (extras or file_tokens is not None):
        what = "extras" if extras else "file_tokens"
        raise StoreError(f"{place}: {what}: goes with arrow or parquet, not with a store of streamsft's own layout")
    return to or "store"


@final
class _Rows:
    """The rows of a store, checked as they go by, in record batches of ids, mask and what is carried."""

    def __init__(self, source: Paths, extras: Sequence[str], advance: Callable[[int], None] | None) -> None:
        self.files = find_store_files(source)
        self.validator = Validator(extras=extras)
        self.extras = tuple(extras)
        self._advance = advance

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        behind = 0
        for number, file in enumerate(self.files.files):
            first_row = 0
            for stored in stored_batches(file, number, self.files.kind, self.extras):
                batch = stored.batch
                self.validator.add(batch, file.path, file=number, first_row=first_row)
                columns = StoreColumns.of(batch.schema, file.path, self.extras)
                ids, mask = decode(batch, columns, file.path, first_row)
                for first, last in pieces(ids.offsets):
                    names = [*((SHARED, CHOSEN) if columns.pairs else ()), *columns.carried]
                    others = [batch.column(name).slice(first, last - first) for name in names]
                    lists = [_lists(ids, first, last, np.int32), _lists(mask, first, last, np.bool_)]
                    yield pa.RecordBatch.from_arrays([*lists, *others], [IDS, MASK, *names])
                first_row += batch.num_rows
            behind += file.size
            if self._advance is not None:
                self._advance(behind)


def _lists(column: Ragged, first: int, last: int, dtype: Any) -> pa.Array:
    offsets = column.offsets[first : last + 1]
    values = column.slice(int(offsets[0]), int(offsets[-1])).astype(dtype)
    if dtype == np.bool_:
        values = values.view(np.int8)
    return pa.ListArray.from_arrays(pa.array((offsets - offsets[0]).astype(np.int32)), pa.array(values))


def _write_store(rows: _Rows, place: Path) -> None:
    batches = iter(rows)
    first = next(batches, None)
    pairs = first is not None and SHARED in first.schema.names
    with StoreWriter(place, files=rows.files.names, pairs=pairs) as writer:
        for batch in batches if first is None else chain((first,), batches):
            if len(batch.schema) > (4 if pairs else 2):
                raise StoreError(f"{place}: the rows hold images, which a store of streamsft's own layout does not")
            ids, mask = batch.column(0), batch.column(1)
            lengths = np.diff(np.asarray(ids.offsets)).astype(np.int32)
            number = np.arange(writer.rows, writer.rows + len(lengths))
            both = np.stack([np.asarray(batch.column(name)) for name in (SHARED, CHOSEN)], axis=1) if pairs else None
            writer.append(np.asarray(ids.values), np.asarray(mask.values).view(np.bool_), lengths, number, pairs=both)


def _write_files(
    rows: _Rows, place: Path, kind: Literal["arrow", "parquet"], row_group_tokens: int, file_tokens: int | None
) -> None:
    single = place.suffix[1:] == kind
    temporary = temporary_name(place)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        clean_up_after_the_dead(place)
        if single:
            number = int(_write_path(_groups(iter(rows), row_group_tokens), temporary, kind, None))
            _refuse_none(number, place)
            os.link(temporary, place)  # unlike a rename it does not replace what has come there meanwhile
            remove(temporary)
        else:
            temporary.mkdir()
            groups, number = _groups(iter(rows), row_group_tokens), 0
            while _write_path(groups, temporary / f"part-{number:05}.{kind}", kind, file_tokens):
                number += 1
            _refuse_none(number, place)
            fsync_directory(temporary)
            if not try_rename(temporary, place):
                raise StoreError(f"{place}: exists already; remove it, or choose another place")
        fsync_directory(place.parent)
    except BaseException as error:
        remove(temporary)
        if isinstance(error, OSError):
            raise StoreError(f"{place}: writing failed: {error.strerror or error}; nothing was left there") from error
        raise


def _refuse_none(files: int, place: str | Path) -> None:
    if not files:
        raise StoreError(f"{place}: there is nothing to write, the source holds no row; name one that does")


def _groups(batches: Iterator[pa.RecordBatch], limit: int) -> Iterator[pa.Table]:
    """The rows again, in tables of at most `limit` tokens; a longer row is one of its own."""
    waiting: list[pa.RecordBatch] = []
    tokens = 0
    for batch in batches:
        offsets = np.asarray(batch.column(0).offsets)
        first = 0
        while first < batch.num_rows:
            last = int(np.searchsorted(offsets, offsets[first] + limit - tokens, side="right")) - 1
            if last <= first and tokens:
                yield pa.Table.from_batches(waiting)
                waiting, tokens = [], 0
                continue
            last = min(max(last, first + 1), batch.num_rows)
            waiting.append(batch.slice(first, last - first))
            tokens += int(offsets[last] - offsets[first])
            first = last
    if waiting:
        yield pa.Table.from_batches(waiting)


def _write_path(groups: Iterator[pa.Table], path: Path, kind: Literal["arrow", "parquet"], most: int | None) -> bool:
    """`_write_file` to a file of this machine, whose bytes are on the disk then."""
    written = _write_file(groups, str(path), kind, most)
    if written:
        fsync_file(path)
    return written


def _write_file(groups: Iterator[pa.Table], sink: Any, kind: Literal["arrow", "parquet"], most: int | None) -> bool:
    """Write groups to a path or a stream until it holds `most` tokens; False if there was none left."""
    import pyarrow.parquet as pq

    first = next(groups, None)
    if first is None:
        return False
    tokens, table = 0, first
    with (
        pq.ParquetWriter(sink, first.schema, compression="zstd")
        if kind == "parquet"
        else pa.ipc.new_stream(sink, first.schema) as writer
    ):
        while table is not None:
            whole = table.combine_chunks()
            if kind == "parquet":
                writer.write_table(whole, row_group_size=max(1, len(whole)))
            else:
                writer.write_table(whole)
            tokens += sum(len(chunk.flatten()) for chunk in whole.column(0).chunks)  # of a slice, .values are all
            table = None if most is not None and tokens >= most else next(groups, None)
    return True
