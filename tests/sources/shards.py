"""Files of all formats with the same rows, and what every reader of shards must do."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from streamsft.sources.shardvalues import decode_values
from streamsft.sources.streaming import RawRow, ShardReader

Rows = list[dict[str, Any]]


def rows_of(first: int, count: int) -> Rows:
    return [{"n": str(i), "t": f'é\u2028, "{i}"\n' * (i % 3)} for i in range(first, first + count)]


def json_lines(rows: Rows) -> bytes:
    """JSON Lines with everything that is no row in between."""
    texts = [json.dumps(row, ensure_ascii=False).encode() for row in rows]
    return b"\xef\xbb\xbf" + b"".join(text + (b"\r\n \n" if i % 4 == 1 else b"\n") for i, text in enumerate(texts))


def json_array(rows: Rows) -> bytes:
    return b"\xef\xbb\xbf [\n" + b" ,\n\n".join(json.dumps(row, ensure_ascii=False).encode() for row in rows) + b"\n] "


def delimited(rows: Rows, delimiter: str) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, ["n", "t"], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def table(rows: Rows) -> pa.Table:
    return pa.Table.from_pylist(rows, pa.schema({"n": pa.string(), "t": pa.string()}))


def parquet(rows: Rows, group: int = 5) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table(rows), sink, row_group_size=group)
    return sink.getvalue()


def arrow(rows: Rows, *, file: bool, batch: int = 5) -> bytes:
    sink = io.BytesIO()
    data = table(rows)
    with (pa.ipc.new_file if file else pa.ipc.new_stream)(sink, data.schema) as writer:
        writer.write_table(data, max_chunksize=batch)
    return sink.getvalue()


def zstd_frames(data: bytes) -> bytes:
    half = len(data) // 2
    return b"".join(zstandard.ZstdCompressor().compress(part) for part in (data[:half], data[half:]))


FORMATS: dict[str, Callable[[Rows], bytes]] = {
    "jsonl": json_lines,
    "jsonl.gz": lambda rows: gzip.compress(json_lines(rows)),
    "jsonl.zst": lambda rows: zstd_frames(json_lines(rows)),
    "json": json_array,
    "json.gz": lambda rows: gzip.compress(json_array(rows)),
    "parquet": parquet,
    "arrow": lambda rows: arrow(rows, file=False),
    "file.arrow": lambda rows: arrow(rows, file=True),
    "csv": lambda rows: delimited(rows, ","),
    "tsv.gz": lambda rows: gzip.compress(delimited(rows, "\t")),
}


def written(folder: Path, kind: str, sizes: list[int]) -> Path:
    """A folder of files with that many rows each, numbered on from file to file."""
    folder.mkdir()
    first = 0
    for number, size in enumerate(sizes):
        (folder / f"{number:03}.{kind}").write_bytes(FORMATS[kind](rows_of(first, size)))
        first += size
    return folder


def decoded(rows: list[RawRow]) -> list[Any]:
    return decode_values([row.value for row in rows])


def check_reader(make: Callable[[], ShardReader], lanes: int, expected: list[Any], *, only: int = 0) -> None:
    """Units cover each row exactly once, none is empty, and from every position on the rest is read, and only that.

    Args:
        make: a fresh reader.
        lanes: readers.
        expected: all rows, in order.
        only: resume behind few rows: every so many, those around a multiple of 64, and the last; 0 behind all.
    """
    reader = make()
    units = reader.units(lanes)
    assert min(lanes, len(expected)) <= units
    seen: list[tuple[int, Any]] = []
    for unit in range(units):
        rows = list(reader.read(unit, lanes, None))
        assert rows, "an empty unit"
        values = decoded(rows)
        seen += zip((row.number for row in rows), values, strict=True)
        for at, row in enumerate(rows):
            if only and at % only and (at + 1) % 64 > 1 and at + 1 < len(rows):
                continue
            position = json.loads(json.dumps(row.after))
            rest = list(make().read(unit, lanes, position))
            assert [one.number for one in rest] == [one.number for one in rows[at + 1 :]]
            assert decoded(rest) == values[at + 1 :]
            assert only or [one.after for one in rest] == [one.after for one in rows[at + 1 :]]
    seen.sort(key=lambda pair: pair[0])
    assert len({number for number, _ in seen}) == len(expected)
    assert [value for _, value in seen] == expected
