"""What is wrong with streamed data ends all ranks with one message, or costs the rows that are wrong; none hangs."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from streamsft.comm import Comm, agreeing
from streamsft.errors import StreamsftError
from streamsft.sources.streaming import StreamingSource
from streamsft.stream.interleave import Interleave
from streamsft.stream.loader import Loader
from streamsft.stream.packer import Packer
from streamsft.types import Shard
from tests.distributed.launch import launch
from tests.fakes import source
from tests.text.transforms import KillingWhile, characters, nothing
from tests.training.runs import LENGTH, ListSink, packs_by_step, run

FILES = 4
RANKS = 2
STEPS = 24  # several passes


def texts(file: int) -> list[str]:
    return [f"{'x' if (file, row) == (2, 3) else 'row'} {file}.{row}" for row in range(6)]


def write(folder: Path) -> Path:
    """Files that are in order."""
    folder.mkdir()
    for file in range(FILES):
        (folder / f"{file}.jsonl").write_bytes(json_lines(texts(file)))
    return folder


def json_lines(rows: list[str]) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in rows).encode()


def make_loader(comm: Comm, data: Path, *, workers: int = 0, **options: Any) -> Loader:
    """Two lanes, one of each rank, over the corpus and a second source that is always in order."""
    corpus = StreamingSource(data, name="corpus", **{"transform": characters, "shuffle_window": 4, **options})
    mix = Interleave([corpus, source("fine", [5, 6])], [4.0, 1.0], seed=3)
    return Loader(
        Packer(mix, LENGTH, lookahead=8), global_batch_size=4, dp=Shard(comm.rank, comm.size), lanes_per_step=2,
        lane_groups=1, workers=workers, start_method="fork", tokenizer="characters",
    )  # fmt: skip


class AtStep4(ListSink):
    """Does something when step 4 is logged."""

    def __init__(self, action: Callable[[], None]) -> None:
        super().__init__()
        self.action = action

    def write(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        if step == 4:
            self.action()


def damage(kind: str, folder: Path) -> None:
    """Make something wrong with the files."""
    rows = [hashlib.sha256(bytes([number])).hexdigest()[:12] for number in range(256)] * 4
    match kind:
        case "truncated gzip":
            (folder / "3.jsonl").unlink()
            (folder / "3.jsonl.gz").write_bytes(gzip.compress(json_lines(rows))[:-20])
        case "several zstd frames":
            (folder / "3.jsonl").unlink()
            frames = [zstandard.ZstdCompressor().compress(json_lines([text])) for text in texts(3)]
            (folder / "3.jsonl.zst").write_bytes(b"".join(frames))
        case "drifting schemas":
            for file, (text, number) in enumerate([(pa.null(), pa.int32()), (pa.string(), pa.int64())], 2):
                (folder / f"{file}.jsonl").unlink()
                values = texts(file) if text == pa.string() else [None] * 6
                table = pa.table({"text": pa.array(values, text), "n": pa.array(range(6), number)})
                pq.write_table(table, folder / f"{file}.parquet")
        case "invalid UTF-8" | "invalid UTF-8, strictly":
            data = (folder / "2.jsonl").read_bytes()
            (folder / "2.jsonl").write_bytes(data.replace(b"x 2.3", b"x \xff"))


OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "in order": {},
    "vanishing file": {},
    "truncated gzip": {},
    "several zstd frames": {},
    "drifting schemas": {},
    "invalid UTF-8": {},
    "invalid UTF-8, strictly": {"on_bad_row": "error"},
    "filter of everything": {"filters": [nothing]},
}

ENDS = {
    "vanishing file": r"1\.jsonl: cannot be read: .*No such file",
    "truncated gzip": r"3\.jsonl\.gz: cannot be read: ",
    "invalid UTF-8, strictly": r"source corpus.*2\.jsonl:4.*bad_row",
    "filter of everything": r"source 'corpus' gave lane \d no row that could be drawn in 2 passes: 24 nothing",
}
"""What ends a run, and what it says; the others are gone through."""


@contextmanager
def telling(told: dict[str, tuple[str, bool]], name: str) -> Iterator[None]:
    """Note what a run ends with, and whether all ranks know it."""
    told[name] = ("", False)
    try:
        yield
    except StreamsftError as error:
        told[name] = (str(error), error.shared)


def each_fault(comm: Comm, folder: Path) -> dict[str, tuple[str, bool]]:
    """One run after the other on the same ranks: one that left the ranks out of step would spoil the next."""
    told: dict[str, tuple[str, bool]] = {}
    for name, options in OPTIONS.items():
        data = folder / name
        if comm.rank == 0:
            damage(name, write(data))
        comm.barrier()
        sink = AtStep4((data / "1.jsonl").unlink) if name == "vanishing file" else ListSink()
        with telling(told, name):
            with agreeing(comm):
                loader = make_loader(comm, data, **options)
            run(folder / f"run {name}", STEPS, loader=loader, comm=comm, sink=sink)
    return told


def test_each_fault_ends_both_ranks_with_one_message_or_costs_its_rows_alone(tmp_path: Path) -> None:
    first, second = launch(RANKS, each_fault, tmp_path)
    for name in OPTIONS:
        messages = [told[name][0] for told in (first, second)]
        if name not in ENDS:
            assert messages == ["", ""]
            assert max(packs_by_step(tmp_path / f"run {name}")) == STEPS
            continue
        for rank, (message, shared) in enumerate([first[name], second[name]]):
            assert shared, f"{name}: rank {rank} does not know that the other has ended"
            assert re.search(ENDS[name], message), message
    expected = {"in order": 24, "several zstd frames": 24, "drifting schemas": 18, "invalid UTF-8": 23}
    for name, rows in expected.items():
        packs = packs_by_step(tmp_path / f"run {name}")
        seen = {row for step in packs.values() for pack in step for of, row, _ in pack["rows"] if of == "corpus"}
        assert len(seen) == rows, name


def killed_and_resumed(comm: Comm, folder: Path) -> tuple[dict[str, tuple[str, bool]], int]:
    """A whole run; one whose workers are killed; and that one again, with the reason gone: what they ended with."""
    told: dict[str, tuple[str, bool]] = {}
    flag = folder / "flag"
    for name, run_dir in (("whole", "whole"), ("killed", "legs"), ("resumed", "legs")):
        loader = make_loader(comm, folder / "data", workers=1, transform=KillingWhile(str(flag)))
        sink = AtStep4(flag.touch) if name == "killed" else ListSink()
        resumed_from = 0
        with telling(told, name):
            resumed_from = run(folder / run_dir, STEPS, loader=loader, comm=comm, sink=sink, save_every=4).resumed_from
        comm.barrier()
        flag.unlink(missing_ok=True)
        comm.barrier()
    return told, resumed_from


def test_killed_worker_is_named_with_its_last_source_on_both_ranks_and_training_goes_on_from_there(
    tmp_path: Path,
) -> None:
    write(tmp_path / "data")
    for told, resumed_from in launch(RANKS, killed_and_resumed, tmp_path):
        message, shared = told["killed"]
        assert shared
        assert re.search(r"worker 0 \(pid \d+\) read source 'corpus'", message), message
        assert told["whole"] == told["resumed"] == ("", False)
        assert resumed_from >= 4
    assert packs_by_step(tmp_path / "legs") == packs_by_step(tmp_path / "whole")
