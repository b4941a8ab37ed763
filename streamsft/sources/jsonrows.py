"""JSON Lines and JSON arrays of tokenized rows: read in place, row by row, by where each begins."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, final

import numpy as np
import pyarrow as pa

from streamsft.errors import StoreError
from streamsft.sources.carried import values_of
from streamsft.sources.damage import decoding
from streamsft.sources.files import check_unchanged, reading
from streamsft.sources.jsontext import array_elements, holds_array, without_bom
from streamsft.sources.paths import RawFile
from streamsft.sources.rawbytes import open_bytes
from streamsft.sources.rowchecks import checked_row
from streamsft.sources.rowids import RowIds
from streamsft.sources.tokennames import IDS, LABELS, MASK, UNSUPERVISED
from streamsft.types import Bools, Int32s, Ints

__all__ = ["JsonBatch", "JsonRows", "json_batches"]

_CHUNK_BYTES = 8 << 20
_CHUNK_ROWS = 50_000
_OPEN = 64  # files mapped at a time, and one more


class JsonBatch(NamedTuple):
    """Some rows of a file."""

    batch: pa.RecordBatch
    byte: Ints
    """Where each row begins, int64[rows]."""


def json_batches(file: RawFile, extras: Sequence[str] = ()) -> Iterator[JsonBatch]:
    """The rows of a file as record batches, with all of their columns.

    Raises:
        StoreError: a row is no JSON object, or its tokens cannot be used.
    """
    texts: list[bytes] = []
    places: list[int] = []
    size = row = 0
    for text, byte in _rows(file):
        texts.append(text)
        places.append(byte)
        size += len(text)
        if size >= _CHUNK_BYTES or len(texts) >= _CHUNK_ROWS:
            yield JsonBatch(_parsed(texts, file.path, row, extras), np.array(places, np.int64))
            row += len(texts)
            texts, places, size = [], [], 0
    if texts:
        yield JsonBatch(_parsed(texts, file.path, row, extras), np.array(places, np.int64))


def _rows(file: RawFile) -> Iterator[tuple[bytes, int]]:
    """The text of each row, and where it begins."""
    with reading(file), open_bytes(file.path, file.compression) as (stream, _):
        if holds_array(stream, lines=file.format == "jsonl"):
            for text, _, (behind, _) in array_elements(stream, file.path):
                yield text.replace(b"\n", b" ").replace(b"\r", b" "), behind - len(text)
            return
        byte = 0
        for line in stream:
            text = line if byte else without_bom(line, file.path)
            if row := text.lstrip():
                yield row.rstrip(), byte + len(line) - len(row)
            byte += len(line)


def _parsed(texts: list[bytes], path: str, row: int, extras: Sequence[str]) -> pa.RecordBatch:
    """Rows as a record batch; numbered from `row` in messages."""
    import pyarrow.json

    data = b"\n".join(texts)
    if not _is_utf8(data):
        return _row_by_row(texts, path, row, extras)
    options = pyarrow.json.ReadOptions(block_size=len(data) + 1, use_threads=False)
    try:
        table = pyarrow.json.read_json(pa.BufferReader(data), read_options=options)
    except pa.ArrowException:
        return _row_by_row(texts, path, row, extras)
    if len(table) != len(texts) or any(not _is_whole(field) for field in table.schema if field.name in (IDS, MASK)):
        return _row_by_row(texts, path, row, extras)
    return table.combine_chunks().to_batches()[0]


def _is_utf8(data: bytes) -> bool:
    """Whether rows can be read as text, also where a parser would pass over what cannot."""
    try:
        return data.isascii() or bool(str(data, "utf-8"))
    except UnicodeDecodeError:
        return False


def _is_whole(field: pa.Field) -> bool:
    """Whether a column holds lists of integers or booleans, as far as it holds anything."""
    kind = field.type
    if not pa.types.is_list(kind):
        return bool(pa.types.is_null(kind))
    inner = kind.value_type
    return bool(pa.types.is_integer(inner) or pa.types.is_boolean(inner) or pa.types.is_null(inner))


def _row_by_row(texts: list[bytes], path: str, row: int, extras: Sequence[str]) -> pa.RecordBatch:
    """The same where the fast way fails: it tells which row is wrong, or reads rows whose other fields differ."""
    rows = [_object(text, f"{path}, row {row + number}") for number, text in enumerate(texts)]
    checked = [checked_row(value, f"{path}, row {row + number}") for number, value in enumerate(rows)]
    columns: dict[str, Any] = {
        IDS: pa.array([ids for ids, _ in checked], pa.list_(pa.int32())),
        MASK: pa.array([mask.view(np.int8) for _, mask in checked], pa.list_(pa.int8())),
    }
    names = dict.fromkeys(name for value in rows for name in value)
    for name in names:
        if name not in (IDS, MASK, LABELS):
            try:
                columns[name] = pa.array([value.get(name) for value in rows])
            except (pa.ArrowException, TypeError) as error:
                if name in extras:
                    raise StoreError(f"{path}, column {name}: its values differ in type ({error})") from error
    return pa.RecordBatch.from_pydict(columns)


def _object(text: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(str(text, "utf-8"), object_pairs_hook=_once)
    except UnicodeDecodeError as error:
        raise StoreError(f"{where}: is not UTF-8 ({error}); repair or remove it") from error
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{where}: is no JSON ({error}); repair or remove it") from error
    if not isinstance(value, dict):
        raise StoreError(f"{where}: is a JSON {type(value).__name__}, not an object with {IDS}; repair or remove it")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, no name of which is there twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"it has {next(name for name in names if names.count(name) > 1)!r} twice")
    return found


@final
class JsonRows:
    """Rows by number, parsed as they are read.

    Args:
        files: the files.
        carried: the columns that travel with the rows.
        file: number of the file of each row, int32[rows].
        byte: where each row begins in its file, int64[rows].
    """

    def __init__(self, files: Sequence[RawFile], carried: Sequence[str], file: Int32s, byte: Ints) -> None:
        self._carried = tuple(carried)
        self._file = file
        self._byte = byte
        self._files = list(files)
        self._maps: dict[int, mmap.mmap | bytes] = {}

    def read(self, index: Ints) -> tuple[list[Int32s], list[Bools]]:
        """Ids int32[n] and masks bool[n] of the rows `index` (int64[k], each in [0, rows)).

        Raises:
            IndexError: a row that is not there.
            DataError: a file is not what it was.
        """
        ids: list[Int32s] = []
        masks: list[Bools] = []
        for row in self._objects(index):
            ids.append(np.array(row.get(IDS) or (), np.int32))
            mask, labels = row.get(MASK), row.get(LABELS)
            by_labels = mask is None and labels
            masks.append(np.array(labels) != UNSUPERVISED if by_labels else np.array(mask or (), np.bool_))
        return ids, masks

    def read_ids(self, index: Ints) -> RowIds:
        """The ids alone."""
        return RowIds.of(self.read(index)[0])

    def carried(self, index: Ints) -> dict[str, list[Any]]:
        """What travels with the rows `index`, by column."""
        rows = list(self._objects(index))
        return {name: values_of(pa.array([row.get(name) for row in rows])) for name in self._carried}

    def _objects(self, index: Ints) -> Iterator[dict[str, Any]]:
        if len(index) and not 0 <= int(index.min()) <= int(index.max()) < len(self._byte):
            raise IndexError(f"rows {index.min()} to {index.max()} of {len(self._byte)}: rows are numbered from 0")
        following = np.minimum(index + 1, len(self._byte) - 1)
        last = (following == index) | (self._file[following] != self._file[index])
        stops = np.where(last, -1, self._byte[following])
        files, starts = self._file[index].tolist(), self._byte[index].tolist()
        decode = json.JSONDecoder().raw_decode
        for file, start, stop in zip(files, starts, stops.tolist(), strict=True):
            data = self._mapped(file)
            with decoding(self._files[file].path):
                text = str(data[start : len(data) if stop < 0 else stop], "utf-8")
                row = decode(text)[0]
            yield row

    def _mapped(self, file: int) -> mmap.mmap | bytes:
        data = self._maps.get(file)
        if data is None:
            maps = dict(list(self._maps.items())[-_OPEN:])  # replaced, not changed: other threads may read it
            data = maps[file] = _map(self._files[file])
            self._maps = maps
        return data


def _map(listed: RawFile) -> mmap.mmap | bytes:
    check_unchanged(listed)
    with open(listed.path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if file.seek(0, 2) else b""
