"""Rows of tokens, written as stores of every kind."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streamsft.sources.store import TokenStore

Rows = list[dict[str, Any]]


def rows_of(count: int, seed: int = 0, longest: int = 40) -> Rows:
    """`count` rows of 0 to `longest` tokens, with a loss mask."""
    random = np.random.default_rng(seed)
    rows = []
    for length in random.integers(0, longest + 1, count).tolist():
        ids = random.integers(0, 1000, length).tolist()
        rows.append({"input_ids": ids, "loss_mask": random.integers(0, 2, length).tolist()})
    return rows


def labelled(rows: Rows) -> Rows:
    """The same rows with labels in place of the loss mask."""
    return [
        {
            "input_ids": row["input_ids"],
            "labels": [i if m else -100 for i, m in zip(row["input_ids"], row["loss_mask"], strict=True)],
        }
        for row in rows
    ]


def arrow_table(rows: Rows, ids: pa.DataType | None = None) -> pa.Table:
    columns = {name: [row.get(name) for row in rows] for name in rows[0]}
    table = pa.table(columns)
    place = table.schema.get_field_index("input_ids")
    return table.set_column(place, "input_ids", table.column("input_ids").cast(ids or pa.list_(pa.int32())))


def write_stream(rows: Rows, path: Path, batch: int = 7, compression: str | None = None) -> Path:
    table = arrow_table(rows)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(str(path), table.schema, options=options) as writer:
        writer.write_table(table, batch)
    return path


def write_indexed(rows: Rows, path: Path, batch: int = 7, compression: str | None = None) -> Path:
    table = arrow_table(rows, pa.large_list(pa.int64()))
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(str(path), table.schema, options=options) as writer:
        writer.write_table(table, batch)
    return path


def write_parquet(rows: Rows, path: Path, group: int = 11) -> Path:
    pq.write_table(arrow_table(rows, pa.list_(pa.int64())), path, row_group_size=group)
    return path


def write_lines(rows: Rows, path: Path) -> Path:
    path.write_text("\n\n".join(map(json.dumps, rows)) + "\n")
    return path


def write_array(rows: Rows, path: Path) -> Path:
    path.write_text(json.dumps(rows, indent=1))
    return path


def write_saved(rows: Rows, path: Path, shards: int = 2) -> Path:
    datasets.Dataset(arrow_table(rows)).save_to_disk(path, num_shards=shards)
    return path


def write_parts(rows: Rows, path: Path) -> Path:
    """A directory of Parquet files at two depths, with what else lies in such directories."""
    third = len(rows) // 3
    (path / "b").mkdir(parents=True)
    write_parquet(rows[:third], path / "a.parquet")
    write_parquet(rows[third : 2 * third], path / "b" / "a.parquet")
    write_parquet(rows[2 * third :], path / "c.parquet")
    for stray in ("README.md", "dataset_info.json", "_SUCCESS", ".a.parquet.crc", "b/.hidden.parquet"):
        (path / stray).write_text("{}")
    return path


WRITERS: dict[str, Callable[[Rows, Path], Path]] = {
    "stream.arrow": write_stream,
    "indexed.arrow": write_indexed,
    "lz4.arrow": lambda rows, path: write_stream(rows, path, compression="lz4"),
    "zstd.arrow": lambda rows, path: write_indexed(rows, path, compression="zstd"),
    "rows.parquet": write_parquet,
    "rows.jsonl": write_lines,
    "rows.json": write_array,
    "saved": write_saved,
    "parts": write_parts,
}


def contents(store: TokenStore, index: Sequence[int] | None = None) -> Rows:
    """What a store holds, as `rows_of` gives it."""
    ids, masks = store.read(np.arange(len(store)) if index is None else np.array(index, np.int64))
    assert all(i.dtype == np.int32 and m.dtype == np.bool_ for i, m in zip(ids, masks, strict=True))
    return [{"input_ids": i.tolist(), "loss_mask": m.astype(int).tolist()} for i, m in zip(ids, masks, strict=True)]
