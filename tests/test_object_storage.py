"""Training from object storage, over a socket: what is read, how often, and what happens when the storage fails."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import streamsft as ss
from streamsft.errors import StoreError
from streamsft.sources.grouprows import ReadOptions
from streamsft.sources.rowgroups import RowGroupStore
from streamsft.stream.loader import Loader
from streamsft.stream.packer import Packer
from streamsft.stream.sourcestream import SourceStream
from streamsft.types import Shard
from tests.laws import as_json, first
from tests.objectstore import S3, Faults, s3_server, write_groups
from tests.ports import held_port

STEPS = 12
GROUPS, ROWS = 64, 20
TOKENS = 32  # of each row, so that four fill a pack and each window of 64 draws makes 16


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_groups(tmp_path_factory.mktemp("disk") / "rows", length=TOKENS)


@pytest.fixture(scope="module")
def address(s3: S3, disk: Path) -> str:
    return s3.upload(disk, "data/rows")


@pytest.fixture(autouse=True)
def _healthy(s3: S3, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMSFT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    s3.faults = Faults()
    s3.gets.clear()


def config(store: object, run_dir: Path, **source: Any) -> dict[str, Any]:
    given = {"store": str(store), "shuffle": "row_groups", "shuffle_groups": 2, **source}
    return {
        "seed": 3,
        "sequence_length": 128,
        "mix": {"sources": {"rows": given}},
        "packing": {"lookahead": 64},
        "loader": {"global_batch_size": 8, "lanes_per_step": 2, "lane_groups": 2},
        "metrics": {"log_every": STEPS},
        "train": {"steps": STEPS, "save_every": 4, "run_dir": str(run_dir), "model": "none", "audit": True},
    }


def audit(run_dir: Path) -> list[list[Any]]:
    """The packs of each step, joined over ranks."""
    found: dict[int, list[Any]] = {}
    for file in sorted((run_dir / "audit").glob("rank-*.jsonl")):
        for record in map(json.loads, file.read_text().splitlines()):
            found.setdefault(record["step"], []).extend(record["packs"])
    assert sorted(found) == list(range(1, STEPS + 1))
    return [found[step] for step in sorted(found)]


@pytest.fixture(scope="module")
def expected(disk: Path, tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """What a run from the disk consumes."""
    run_dir = tmp_path_factory.mktemp("expected") / "run"
    ss.train(config(disk, run_dir), quiet=True)
    return audit(run_dir)


def make_loader(store: RowGroupStore, *, dp: Shard = Shard(), workers: int = 0) -> Loader:  # noqa: B008 - frozen
    packer = Packer(SourceStream(store, seed=3, shuffle_groups=2), 128, lookahead=64)
    return Loader(
        packer, global_batch_size=8, lanes_per_step=2, lane_groups=2, dp=dp, workers=workers, background=False
    )


def record(run_dir: Path) -> dict[str, float]:
    last = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    metrics: dict[str, float] = last["metrics"]
    return metrics


def test_training_is_that_from_the_disk_and_later_runs_read_the_tier(
    s3: S3, address: str, expected: list[list[Any]], tmp_path: Path
) -> None:
    tier = {"dir": str(tmp_path / "tier"), "budget": "10MiB"}
    ss.train(config(address, tmp_path / "plain"), quiet=True)
    assert audit(tmp_path / "plain") == expected
    numbers = record(tmp_path / "plain")
    assert numbers["data_rows/io_bytes_fetched"] > 0
    assert numbers["data_rows/io_read_amplification"] >= 1
    ss.train(config(address, tmp_path / "filling", tier={**tier, "whole": True}), quiet=True)
    s3.gets.clear()
    ss.train(config(address, tmp_path / "kept", tier=tier), quiet=True)
    assert not s3.gets
    numbers = record(tmp_path / "kept")
    assert numbers["data_rows/io_bytes_fetched"] == 0
    assert numbers["data_rows/io_tier_hits"] > 0
    assert audit(tmp_path / "filling") == audit(tmp_path / "kept") == expected


def test_inspect_tells_what_an_address_holds(address: str, disk: Path, tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=120)
    report = ss.inspect(address, verify=True, console=console)
    local = ss.inspect(disk, console=console)
    assert asdict(report) == asdict(local)
    with pytest.raises(StoreError, match="is an address, and only files of this machine can be read so"):
        ss.convert(address, tmp_path / "copy", console=console)


def test_two_jobs_share_a_tier(s3: S3, address: str, tmp_path: Path) -> None:
    tier = ss.Tier(dir=tmp_path / "tier", budget=10 << 20)
    options = ReadOptions(prefetch=0)
    RowGroupStore.open(address, name="rows")  # a first scan would fill the tier
    jobs = [RowGroupStore.open(address, name="rows", tier=tier, options=options) for _ in range(2)]
    s3.gets.clear()
    one = first(make_loader(jobs[0]), STEPS)
    assert max(s3.gets.values()) == 1
    s3.gets.clear()
    assert first(make_loader(jobs[1]), STEPS) == one
    assert not s3.gets


@pytest.mark.parametrize(("ranks", "workers"), [(1, 2), (2, 2)])
def test_each_row_group_is_fetched_once_per_pass(s3: S3, address: str, ranks: int, workers: int) -> None:
    pass_ends = 40
    store = RowGroupStore.open(address, name="rows", options=ReadOptions(prefetch=0))
    s3.gets.clear()
    counts: dict[str, int] = {}
    rows: list[int] = []
    for rank in range(ranks):
        loader = make_loader(store, dp=Shard(rank, ranks), workers=workers)
        for batch in islice(loader, pass_ends):
            for _, name, count in batch.stats.refused:
                counts[name] = counts.get(name, 0) + count
            rows += [row for pack in batch.rows for _, row, pass_index in pack if pass_index == 0]
    assert sorted(rows) == list(range(GROUPS * ROWS))
    assert counts["rows_served"] == counts["rows_fetched"] == GROUPS * ROWS
    assert counts["groups_fetched"] == GROUPS
    assert len(s3.gets) == GROUPS


def test_a_resume_reads_the_groups_of_the_open_window_alone(s3: S3, address: str) -> None:
    store = RowGroupStore.open(address, name="rows", options=ReadOptions(prefetch=0))
    loader = make_loader(store)
    expected = first(loader, 13)[-1]
    behind = make_loader(store)
    first(behind, 12)
    state = as_json(behind.state_dict())
    s3.gets.clear()
    resumed = make_loader(RowGroupStore.open(address, name="rows", options=ReadOptions(prefetch=0)))
    resumed.load_state_dict(state)
    assert first(resumed, 1) == [expected]
    assert 0 < sum(s3.gets.values()) <= 2 * (64 // ROWS + 2), "more than the groups of two lanes' open windows"


def test_faults_change_nothing(s3: S3, address: str, expected: list[list[Any]], tmp_path: Path) -> None:
    s3.faults = Faults(errors=0.10, slow=0.05, cut=0.02)
    run = config(address, tmp_path / "run", io={"memory": 1})
    ss.train(run, quiet=True)
    assert s3.faults.happened["error"] > 0
    assert s3.faults.happened["cut"] > 0
    assert audit(tmp_path / "run") == expected


def test_an_object_that_changes_under_a_run_is_refused(s3: S3, disk: Path, tmp_path: Path) -> None:
    address = s3.upload(disk, "data/changing")
    store = RowGroupStore.open(address, name="rows")
    s3.upload(write_groups(tmp_path / "other", seed=1, length=TOKENS), "data/changing")
    with pytest.raises(StoreError, match=r"^source rows: s3://.*/data/changing/part-\d\d\.parquet: has changed"):
        first(make_loader(store), 1)


def test_storage_that_dies_ends_the_run_and_one_that_comes_back_goes_on(
    s3: S3, address: str, expected: list[list[Any]], tmp_path: Path
) -> None:
    io = {"memory": 1, "prefetch": 0}
    run = config(address, tmp_path / "run", io=io)
    RowGroupStore.open(address, name="rows")  # so that no rank has to scan
    s3.dies_after(40)
    told = _train_on_ranks(config(address, tmp_path / "run", io={**io, "deadline": 1}), tmp_path)
    assert all(told), "a rank goes on without storage"
    lost = r"source rows: (s3://\S+: could not be read in 1 s|row group \d+ did not come within)"
    assert any(re.search(lost, one) for one in told), told
    assert "secret-for-tests" not in "".join(told)
    s3.start()
    assert _train_on_ranks(run, tmp_path) == ["", ""]
    assert audit(tmp_path / "run") == expected


def test_processes_forked_off_while_a_thread_reads_make_clients_of_their_own(address: str) -> None:
    store = RowGroupStore.open(address, name="rows", options=ReadOptions(memory=1, prefetch=0))
    reading, enough = threading.Event(), threading.Event()

    def read() -> None:
        while not enough.is_set():
            for row in range(0, GROUPS * ROWS, ROWS):
                store.read(np.array([row]))
                reading.set()

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    reading.wait(60)
    context = multiprocessing.get_context("fork")
    forks = [context.Process(target=_read_first, args=(address,)) for _ in range(3)]
    _run_to_the_end(forks)
    enough.set()
    thread.join()
    assert [process.exitcode for process in forks] == [0] * len(forks)


def _read_first(address: str) -> None:
    store = RowGroupStore.open(address, name="rows", options=ReadOptions(prefetch=0))
    assert store.read(np.array([0]))[0][0][0] == 0


def _train_on_ranks(run: dict[str, Any], folder: Path) -> list[str]:
    """Train on two ranks; what each failed with, "" for one that did not. A rank that hangs fails the test."""
    context = multiprocessing.get_context("fork")  # all is imported already
    with held_port() as port:
        _run_to_the_end([context.Process(target=_train_as, args=(rank, port, run, folder)) for rank in range(2)])
    return [(folder / f"failure-{rank}").read_text() for rank in range(2)]


def _run_to_the_end(started: Sequence[BaseProcess]) -> None:
    try:
        for process in started:
            process.start()
        for process in started:
            process.join(120)
            assert process.exitcode is not None, "a process hangs"
    finally:
        for process in started:
            process.kill()  # which would be waited for at the end of the tests


def _train_as(rank: int, port: int, run: dict[str, Any], folder: Path) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}  # fmt: skip
    try:
        ss.train(run, quiet=True)
    except BaseException as error:  # told to the test
        (folder / f"failure-{rank}").write_text(f"{type(error).__name__}: {error}")
    else:
        (folder / f"failure-{rank}").write_text("")
