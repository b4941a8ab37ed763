"""How soon a stream goes on from late in a file, beside from its start.

    python benchmarks/seek.py [--json] [--quick]

A million small rows of tokens lie in one Arrow file, in one Parquet file of 50 row groups, and in one JSON Lines file.
A loader with one lane runs until 900,000 of them are consumed. The time from making a loader to its first batch is
measured with that state loaded, and without one. Loading goes straight to where the open window began, then reads and
packs this window, as a fresh start does.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measuring import arguments, report

import streamsft as ss

TOKENS = 8  # of a row
SEQUENCE_LENGTH = 256
PACKS = 8
ROW_GROUPS = 50
RECORD_BATCH = 1000  # rows, as `datasets` writes them


def tables(rows: int) -> Iterator[pa.Table]:
    """`rows` rows in pieces of `RECORD_BATCH`, beginning with their numbers."""
    mask = [[0] * (TOKENS // 2) + [1] * (TOKENS // 2)] * RECORD_BATCH
    for first in range(0, rows, RECORD_BATCH):
        ids = np.tile(np.arange(first, first + RECORD_BATCH, dtype=np.int32)[:, None], TOKENS)
        columns = {"input_ids": pa.array(ids.tolist(), pa.list_(pa.int32()))}
        yield pa.table(columns | {"loss_mask": pa.array(mask, pa.list_(pa.int8()))})


def write_files(folder: Path, rows: int) -> dict[str, Path]:
    """The same rows in each format."""
    files = {kind: folder / f"rows.{kind}" for kind in ("arrow", "parquet", "jsonl")}
    whole = pa.concat_tables(tables(rows))
    with pa.OSFile(str(files["arrow"]), "wb") as sink, pa.ipc.new_stream(sink, whole.schema) as writer:
        writer.write_table(whole, RECORD_BATCH)
    pq.write_table(whole, files["parquet"], row_group_size=rows // ROW_GROUPS)
    with files["jsonl"].open("w") as file:
        for piece in tables(rows):
            file.writelines(json.dumps(row) + "\n" for row in piece.to_pylist())
    return files


def make_loader(file: Path) -> ss.Loader:
    """One lane over one file."""
    packer = ss.Packer(ss.StreamingSource(file, name="rows"), SEQUENCE_LENGTH)
    return ss.Loader(packer, global_batch_size=PACKS, lanes_per_step=1, lane_groups=1, background=False)


def state_behind(file: Path, rows: int) -> dict[str, Any]:
    """The state of a loader that has consumed `rows` rows."""
    loader, count = make_loader(file), 0
    for batch in loader:
        count += len(batch.documents.table.row)
        if count >= rows:
            break
    return loader.state_dict()


def seconds_to_first(file: Path, state: dict[str, Any] | None) -> float:
    """Time from making a loader to its first batch."""
    begun = time.perf_counter()
    loader = make_loader(file)
    if state is not None:
        loader.load_state_dict(state)
    next(iter(loader))
    return time.perf_counter() - begun


def main() -> int:
    """Measure, and print the figures."""
    options = arguments("Measure resuming a stream late in a file.").parse_args()
    rows, tries = (20_000, 3) if options.quick else (1_000_000, 15)
    figures, table = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for kind, file in write_files(Path(folder), rows).items():
            state = state_behind(file, rows * 9 // 10)
            times = [(seconds_to_first(file, None), seconds_to_first(file, state)) for _ in range(tries)]
            fresh, late = (median(column) for column in zip(*times, strict=True))
            figures[f"{kind}_late_vs_fresh"] = late / fresh
            table.append([kind, f"{fresh * 1e3:.0f} ms", f"{late * 1e3:.0f} ms"])
    title = f"First batch of {rows:,} rows"
    columns = ["file", "from the start", f"behind row {rows * 9 // 10:,}"]
    report(title, columns, table, figures, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
