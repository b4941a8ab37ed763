"""What reading by row groups from far away costs: waiting under latency, and how often a row group is fetched.

    python benchmarks/object_store.py [--json] [--quick]

Parquet files of tokens are read through a file system that makes each request wait, as object storage does: 20 ms, and
none for comparison. The same loader goes through the same packs both times, as fast as it can, and fetches row groups
before they are needed. How long it waits for them is compared with the whole time that it takes without latency.

Then the rows of these files are drawn in two orders, with room in memory for a quarter of them: by row groups, and
shuffled over a whole pass. Rows fetched over rows drawn is the read amplification.
"""

from __future__ import annotations

import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem
from measuring import arguments, report

import streamsft as ss

LATENCY = 0.02  # seconds of each request
FILES, GROUPS = 8, 8  # row groups of each file
LENGTH = 256  # tokens of a row
SEQUENCE_LENGTH = 4096
PACKS = 8  # of a step
MIXED = 4  # row groups whose rows are mixed


class FarAway(LocalFileSystem):  # type: ignore[misc]
    """Local files, each request for which takes its time."""

    protocol = "far"

    def __init__(self, latency: float = 0.0) -> None:
        super().__init__(latency=latency)
        self.latency = latency

    def info(self, path, **options):  # type: ignore[no-untyped-def]
        """What is asked before an object is read."""
        time.sleep(self.latency)
        return super().info(path, **options)

    def cat_file(self, path, start=None, end=None, **options):  # type: ignore[no-untyped-def]
        """A range of an object."""
        time.sleep(self.latency)
        return super().cat_file(path, start=start, end=end, **options)


def write_files(folder: Path, rows: int) -> None:
    """`FILES` files of `GROUPS` row groups of `rows` rows."""
    random_numbers = np.random.default_rng(0)
    offsets = pa.array(np.arange(0, GROUPS * rows * LENGTH + 1, LENGTH, dtype=np.int32))
    mask = pa.ListArray.from_arrays(offsets, pa.array(np.ones(GROUPS * rows * LENGTH, np.int8)))
    for file in range(FILES):
        ids = random_numbers.integers(0, 100_000, GROUPS * rows * LENGTH, np.int32)
        table = pa.table({"input_ids": pa.ListArray.from_arrays(offsets, pa.array(ids)), "loss_mask": mask})
        pq.write_table(
            table, folder / f"part-{file}.parquet", row_group_size=rows, use_dictionary=["loss_mask.list.element"]
        )


def open_store(folder: Path, latency: float, **options: int) -> ss.RowGroupStore:
    """The files, so far away."""
    return ss.RowGroupStore.open(
        str(folder), name="rows", filesystem=FarAway(latency), options=ss.ReadOptions(**options)
    )


def make_loader(store: ss.RowGroupStore, *, by_groups: bool) -> ss.Loader:
    """One process that reads two lanes."""
    stream = store.stream(seed=1, shuffle_groups=MIXED if by_groups else None)
    packer = ss.Packer(stream, SEQUENCE_LENGTH, lookahead=min(1024, len(store) // (FILES * GROUPS)))
    return ss.Loader(packer, global_batch_size=PACKS, lanes_per_step=2, lane_groups=1)


def read(store: ss.RowGroupStore, passes: float, *, by_groups: bool = True) -> float:
    """Seconds to go through the store so often."""
    steps = int(passes * store.tokens) // (PACKS * SEQUENCE_LENGTH)
    begun = time.perf_counter()
    for _ in islice(make_loader(store, by_groups=by_groups), steps):
        pass
    return time.perf_counter() - begun


def amplification(store: ss.RowGroupStore, passes: float, *, by_groups: bool) -> float:
    """Rows fetched over rows drawn."""
    read(store, passes, by_groups=by_groups)
    return store.io["rows_fetched"] / store.io["rows_served"]


def main() -> int:
    """Measure, and print the figures."""
    options = arguments("Measure reading by row groups under latency.").parse_args()
    rows, passes = (32, 2) if options.quick else (768, 8)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        write_files(place, rows)
        memory = FILES * GROUPS // 4 * rows * (5 * LENGTH + 16)  # ids, masks, and where rows begin
        near, far = (open_store(place, latency, memory=memory, prefetch=memory) for latency in (0.0, LATENCY))
        read(open_store(place, 0.0, memory=memory), 0.1)  # what is imported on first use
        without = read(near, passes)
        under = read(far, passes)
        waited = far.io["microseconds_waiting"] / 1e6
        by_groups = amplification(open_store(place, 0.0, memory=memory, prefetch=0), passes, by_groups=True)
        by_rows = amplification(open_store(place, 0.0, memory=memory, prefetch=0), 0.1, by_groups=False)
    figures = {
        "waiting_of_time_without_latency": waited / without,
        "time_vs_without_latency": under / without,
        "amplification_row_groups": by_groups,
        "amplification_rows": by_rows,
    }
    table = [
        ["no latency", f"{without:.2f} s", f"{near.io['microseconds_waiting'] / 1e6:.3f} s"],
        [f"{LATENCY * 1e3:.0f} ms a request", f"{under:.2f} s", f"{waited:.3f} s"],
    ]
    title = f"{passes} passes over {FILES * GROUPS} row groups of {rows * LENGTH:,} tokens"
    report(title, ["storage", "all packs", "waited"], table, figures, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
