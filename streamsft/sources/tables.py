"""Reading columnar and delimited files in pieces: Parquet, Arrow, CSV, TSV."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any, BinaryIO

from streamsft.errors import DataError
from streamsft.sources.damage import check_but_text, checked_schema
from streamsft.sources.rawrows import CHUNK_BYTES, BadRow

__all__ = ["read_arrow", "read_delimited", "read_parquet", "record_batches", "rows_per_piece", "serialized"]

_MAX_ROWS = 4096  # per piece, however small the rows
_BUFFER = 8 << 20  # bytes of a column that are read at a time, of a file that is not mapped


def read_parquet(source: str | BinaryIO) -> Iterator[tuple[bytes, int, float]]:
    """Pieces of a Parquet file as Arrow streams, each with its number of rows and the share of the file read so far.

    The file is given by its path, and mapped, or as a stream that can seek, of which columns are read bit by bit.
    """
    import pyarrow.parquet as pq

    buffer = 0 if isinstance(source, str) else _BUFFER
    with pq.ParquetFile(source, memory_map=True, pre_buffer=False, buffer_size=buffer) as file:
        checked_schema(file.schema_arrow)
        total = max(1, file.metadata.num_rows)
        done = 0
        for group in range(file.num_row_groups):
            shape = file.metadata.row_group(group)
            rows = rows_per_piece(shape.num_rows, shape.total_byte_size)
            for batch in file.iter_batches(batch_size=rows, row_groups=[group]):
                check_but_text(batch)
                done += batch.num_rows
                yield serialized(batch), batch.num_rows, done / total


def read_arrow(source: str | BinaryIO) -> Iterator[tuple[bytes, int, float]]:
    """Pieces of an Arrow file (stream or random-access format) as `read_parquet`'s."""
    import pyarrow as pa

    with pa.memory_map(source) if isinstance(source, str) else pa.PythonFile(source, mode="r") as mapped:
        for batch, share, _ in record_batches(mapped):
            rows = rows_per_piece(batch.num_rows, batch.nbytes)
            for start in range(0, batch.num_rows, rows):
                piece = batch.slice(start, rows)
                check_but_text(piece)
                yield serialized(piece), piece.num_rows, share


def record_batches(mapped: Any, first: int = 0, byte: int = 0) -> Iterator[tuple[Any, float, int]]:
    """Record batches of a mapped Arrow file, each with the share of the file read so far and the byte it starts at.

    That the buffers are as long as the batch says is checked; what is in them is not.

    Args:
        mapped: the file, in the stream or the random-access format.
        first: number of the batch to begin with; those before it are passed over without touching their data.
        byte: where that one starts, as it was given with it; spares a stream the way there. 0 in the other format.
    """
    import pyarrow as pa

    try:
        file = pa.ipc.open_file(mapped)
    except pa.ArrowInvalid:
        mapped.seek(0)
        with pa.ipc.open_stream(mapped) as stream:
            checked_schema(stream.schema)
            if byte and "dictionary" not in str(
                checked_schema(stream.schema)
            ):  # whose values stand between the batches
                mapped.seek(byte)
                first = 0
            yield from islice(_streamed(stream, mapped), first, None)
    else:
        with file:
            checked_schema(file.schema)
            count = file.num_record_batches
            for number in range(first, count):
                batch = file.get_batch(number)
                batch.validate()
                yield batch, (number + 1) / count, 0


def _streamed(stream: Any, mapped: Any) -> Iterator[tuple[Any, float, int]]:
    while True:
        byte = mapped.tell()
        try:
            batch = stream.read_next_batch()
        except StopIteration:
            return
        batch.validate()
        yield batch, mapped.tell() / mapped.size(), byte


def serialized(batch: Any) -> bytes:
    """A record batch as a complete Arrow stream. Of a slice, only the slice is written."""
    import pyarrow as pa

    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def rows_per_piece(rows: int, size: int) -> int:
    """How many of `rows` rows that hold `size` bytes make a piece of about `CHUNK_BYTES`."""
    return max(1, min(_MAX_ROWS, rows * CHUNK_BYTES // max(1, size)))


def read_delimited(
    stream: BinaryIO, delimiter: str, where: str
) -> Iterator[tuple[list[dict[str, Any] | BadRow], list[int]]]:
    """Rows of a CSV or TSV file with a header, and the lines they start on (from 1), piece by piece.

    All values are text; nothing is guessed from their looks. Blank lines are no rows.

    Raises:
        DataError: the header is missing, or names a column twice.
    """
    csv.field_size_limit(sys.maxsize)  # the module's own limit, 128 KiB, is shorter than a long answer
    text = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    try:
        header = next(reader, [])
    except csv.Error as error:
        raise DataError(f"{where}:1: malformed quoting in the header: {error}") from error
    if not header:
        if reader.line_num:
            raise DataError(f"{where}:1: the header line is blank; name the columns in it")
        return
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise DataError(f"{where}:1: column {twice!r} is named twice in the header")
    rows: list[dict[str, Any] | BadRow] = []
    lines: list[int] = []
    size = 0
    for line, fields in _records(reader):
        rows.append(fields if isinstance(fields, BadRow) else _delimited_row(header, fields))
        lines.append(line)
        size += 0 if isinstance(fields, BadRow) else sum(map(len, fields))
        if size >= CHUNK_BYTES or len(rows) >= _MAX_ROWS:
            yield rows, lines
            rows, lines, size = [], [], 0
    if rows:
        yield rows, lines


def _records(reader: Any) -> Iterator[tuple[int, list[str] | BadRow]]:
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield line, BadRow(f"malformed quoting: {error}")
            continue
        if fields:
            yield line, fields


def _delimited_row(header: list[str], fields: list[str]) -> dict[str, Any] | BadRow:
    if len(fields) != len(header):
        return BadRow(f"{len(fields)} fields where the header names {len(header)}")
    try:
        "".join(fields).encode("utf-8")
    except UnicodeEncodeError:
        return BadRow("not UTF-8")
    return dict(zip(header, fields, strict=True))
