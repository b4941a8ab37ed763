"""Jobs on a Ray cluster: the same stores as on one machine, whatever is lost on the way."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from typer.testing import CliRunner

import streamsft
from streamsft import ray_connecting, ray_engine
from streamsft.cli import app
from streamsft.commands.inspect import inspect
from streamsft.engine import Done, Engine
from streamsft.errors import ConfigError, DataError, StoreError
from streamsft.ray_engine import RayEngine
from streamsft.sources import jsontext
from streamsft.sources.converting import convert_store
from streamsft.sources.store import TokenStore
from streamsft.text import parts
from streamsft.text.chat import ChatTokenizer
from streamsft.text.tokenizing import tokenize
from tests.jobs import FATAL, WRONG, Doubling, Locked, Reading, Released
from tests.objectstore import S3, s3_server
from tests.ports import held_port
from tests.processes import start
from tests.sources.stores import arrow_table, rows_of
from tests.text.tokenizers import bpe

CHUNK_BYTES = 1 << 13
DATA = "data-00000-of-00001.arrow"


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def address(s3: S3) -> Iterator[str]:
    """A cluster on this machine, with cores for a driver of two workers and one of one; its workers know `s3`."""
    ray = pytest.importorskip("ray", reason="ray is not installed")
    own = {
        "RAY_AUTH_MODE": "disabled",  # no token in the home folder
        "RAY_worker_niceness": "0",  # Ray's workers would wait for whatever else the machine does
        "RAY_prestart_worker_first_driver": "0",  # processes that nobody has asked for
    }
    os.environ.update(own)
    context = ray.init(
        address="local", num_cpus=3, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20
    )
    yield context.address_info["address"]
    ray.shutdown()
    for name in own:
        del os.environ[name]


@pytest.fixture(scope="module")
def engine(address: str) -> Iterator[RayEngine]:
    with RayEngine(workers=2) as engine:
        yield engine


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut input into chunks of a few rows, and results into parts of two chunks."""
    monkeypatch.setattr(jsontext, "CHUNK_BYTES", CHUNK_BYTES)
    monkeypatch.setattr(parts, "CHUNKS", 2)


@pytest.fixture
def files(test_data: Path, tmp_path: Path) -> dict[str, Path]:
    """Some hundred real rows, and one that is bad."""
    gsm8k, toolformer = tmp_path / "gsm8k.jsonl", tmp_path / "toolformer.json"
    with (test_data / "gsm8k" / "train.jsonl").open() as lines:
        gsm8k.write_text("".join([*islice(lines, 150), '{"question": 1}\n', *islice(lines, 150)]))
    rows = json.loads((test_data / "gpteacher" / "toolformer-dedupe-only-dataset.json").read_text())
    toolformer.write_text(json.dumps(rows[:300]))
    return {"gsm8k": gsm8k, "toolformer": toolformer}


def workers() -> list[psutil.Process]:
    """The actors of the cluster that this process has started."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # which has ended since
            if process.name().startswith("ray::W"):
                found.append(process)
    return found


def kill_all(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # as one that had been given up
            process.kill()


def assert_same(store: TokenStore, expected: TokenStore) -> None:
    assert store.fingerprint == expected.fingerprint
    assert store.path is not None
    assert expected.path is not None
    for name in (DATA, "rejected.jsonl"):
        one, other = Path(store.path) / name, Path(expected.path) / name
        assert one.exists() == other.exists()
        assert not one.exists() or one.read_bytes() == other.read_bytes(), name
    assert store.manifest.rejected == expected.manifest.rejected


@pytest.mark.usefixtures("small_chunks")
def test_real_rows_give_the_same_store_with_the_workers_killed_in_the_middle(
    engine: RayEngine, files: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chat = ChatTokenizer(bpe())
    caplog.set_level(logging.WARNING, "streamsft")
    killed = []

    def kill(done: int, total: int) -> None:
        if not killed:
            kill_all(workers())  # all: one alone may not have been ready yet, and have had nothing to lose
            killed.append(done)

    for name, progress in (("gsm8k", False), ("toolformer", kill)):
        expected = tokenize(files[name], chat, name=name, cache_dir=tmp_path / "local", processes=1)
        store = tokenize(files[name], chat, name=name, cache_dir=tmp_path / "ray", engine=engine, progress=progress)
        assert_same(store, expected)
        again = tokenize(files[name], chat, name=name, cache_dir=tmp_path / "ray", engine=engine)
        assert again.path == store.path
        assert engine.done[name].rows == (301 if name == "gsm8k" else 300)
    assert 0 < killed[0] < files["toolformer"].stat().st_size
    assert "source toolformer: a worker on the Ray cluster was lost" in caplog.text
    assert not list((tmp_path / "ray" / "parts").iterdir())


class Counting(Engine):
    """Counts the rows that an engine tokenizes."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.rows = 0
        self._engine = engine

    def _map(self, job: Any, items: Iterator[Any], *, what: str) -> Iterator[tuple[Any, Any]]:
        for item, result in self._engine.map(job, items, what=what):
            self.rows += result.rows
            yield item, result

    def close(self) -> None:
        pass


def drive(address: str, file: str, cache: str) -> None:
    """Tokenize on the cluster, until as much was done as makes five chunks; then wait to be killed."""
    jsontext.CHUNK_BYTES, parts.CHUNKS = CHUNK_BYTES, 2
    steps = iter(range(5))

    def stop(done: int, total: int) -> None:
        if next(steps, None) is None:
            print("five chunks", flush=True)
            signal.pause()

    with RayEngine(address, workers=1) as engine:
        tokenize(file, ChatTokenizer(bpe()), name="gsm8k", cache_dir=cache, engine=engine, progress=stop)


@pytest.mark.usefixtures("small_chunks")
def test_a_driver_that_is_killed_goes_on_behind_what_it_published(
    address: str, engine: RayEngine, files: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "streamsft")
    chat, cache = ChatTokenizer(bpe()), tmp_path / "ray"
    expected = tokenize(files["gsm8k"], chat, name="gsm8k", cache_dir=tmp_path / "local", processes=1)
    driver = start(drive, address, str(files["gsm8k"]), str(cache))
    assert driver.readline() == "five chunks\n"
    driver.process.kill()
    assert driver.end().returncode == -9
    assert len(list((cache / "parts").glob("*/*.arrow"))) == 2
    assert not list((cache / "stores").glob("*/streamsft.json"))
    counting = Counting(engine)
    store = tokenize(files["gsm8k"], chat, name="gsm8k", cache_dir=cache, engine=counting)
    assert_same(store, expected)
    done = counting.done["gsm8k"]
    assert done == Done(rows=done.rows, files=0, parts=2)
    assert 0 < done.rows == 301 - counting.rows
    assert f"source gsm8k: {done.rows} rows (2 parts) are not tokenized again" in caplog.text
    assert not list((cache / "parts").iterdir())


@pytest.mark.usefixtures("small_chunks")
def test_from_object_storage_to_object_storage(
    engine: RayEngine, s3: S3, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMSFT_CACHE", str(tmp_path / "sidecars"))
    chat, raw = ChatTokenizer(bpe()), files["gsm8k"].parent
    expected = tokenize(files["gsm8k"], chat, name="gsm8k", cache_dir=tmp_path / "local", processes=1)
    address = f"{s3.upload(raw, 'raw')}/gsm8k.*"
    store = tokenize(address, chat, name="gsm8k", cache_dir=tmp_path / "ray", engine=engine)
    assert_same(store, expected)
    assert store.path is not None
    there = convert_store(store.path, s3.address("tokens"), row_group_tokens=10_000)
    console = Console(quiet=True)
    report = inspect(s3.address("tokens"), verify=True, engine=engine, console=console)
    here = convert_store(store.path, tmp_path / "tokens.parquet")  # rows are numbered anew, without those rejected
    assert report.fingerprint == there.fingerprint == here.fingerprint
    assert report.row_groups > 3
    assert report == inspect(s3.address("tokens"), verify=True, console=console)


def test_results_come_in_order_and_few_items_are_taken_ahead(engine: RayEngine) -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(60):
            taken.append(number)
            yield number

    for number, (item, result) in enumerate(engine.map(Doubling(), items(), what="numbers")):
        assert (item, result) == (number, 2 * number)
        assert taken[-1] - item <= 9
    assert len(taken) == 60
    assert list(engine.map(Doubling(), [], what="numbers")) == []


def test_a_store_is_checked_on_the_cluster_with_the_same_findings(
    engine: RayEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMSFT_CACHE", str(tmp_path / "cache"))
    rows, path = rows_of(400), tmp_path / "rows.parquet"
    pq.write_table(arrow_table(rows), path, row_group_size=32)
    console = Console(quiet=True)
    here = inspect(path, verify=True, console=console)
    assert inspect(path, verify=True, engine=engine, console=console) == here
    others = workers()
    killed = []

    def kill(found: dict[str, str]) -> None:
        if not killed:
            killed.extend(worker for worker in workers() if worker not in others)
            kill_all(killed)

    monkeypatch.setattr(ray_engine, "check_versions", kill)
    command = ["inspect", str(path), "--verify", "--engine", "ray", "--processes", "1", "--json"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["fingerprint"] == here.fingerprint
    assert killed  # which Ray tells of on its own
    rows[-1] = {"input_ids": [1, 2], "loss_mask": [0, 2]}
    pq.write_table(arrow_table(rows), path, row_group_size=32)
    with pytest.raises(StoreError, match=r"rows\.parquet, row 399: loss_mask holds 2"):
        inspect(path, verify=True, engine=engine, console=console)


def test_a_worker_that_takes_long_is_told_of(
    engine: RayEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine, "_WAIT_SECONDS", 0.05)
    monkeypatch.setattr(ray_engine, "QUIET_SECONDS", 0.1)
    os.mkfifo(tmp_path / "pipe")
    log = Released(tmp_path / "pipe")
    log.addFilter(lambda record: "no worker on the Ray cluster has finished" in record.msg)
    ray_engine.logger.addHandler(log)
    try:
        assert [result for _, result in engine.map(Reading(), [str(tmp_path / "pipe")], what="source a")] == [
            "released"
        ]
    finally:
        ray_engine.logger.removeHandler(log)
    assert log.said[0].startswith("source a: no worker on the Ray cluster has finished an item for 0.1 s")


@pytest.fixture
def single(address: str) -> Iterator[RayEngine]:
    with RayEngine(workers=1) as engine:
        yield engine


def test_all_that_was_sent_may_come_back_at_once_while_items_are_left(
    single: RayEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine, "_AHEAD", 1)
    assert list(single.map(Doubling(), range(9), what="numbers")) == [(n, 2 * n) for n in range(9)]


def test_an_error_of_the_job_arrives_with_its_name(single: RayEngine) -> None:
    with pytest.raises(DataError, match=r"KeyError in a worker process: 'minus two'\n"):
        list(single.map(Doubling(), [1, WRONG, 2], what="numbers"))


def test_an_item_that_brings_every_worker_down_ends_the_call(
    single: RayEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine, "_TRIES", 2)
    with pytest.raises(
        DataError, match=r"numbers: the same item was lost with 2 workers of the Ray cluster; .*: The actor"
    ):
        list(single.map(Doubling(), [FATAL], what="numbers"))


def test_the_end_of_rays_own_process_on_this_machine_is_told(
    engine: RayEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(engine.map(Doubling(), [1], what="numbers")) == [(1, 2)]
    monkeypatch.setattr(ray_connecting, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(engine._lifeline, "_next", 0.0)
    with held_port() as port:
        monkeypatch.setattr(engine._lifeline, "_place", ("127.0.0.1", port))
        with pytest.raises(DataError, match=r"numbers: Ray's process on this machine \(raylet\) has ended; .* again"):
            list(engine.map(Doubling(), [1], what="numbers"))


def test_a_job_that_cannot_travel(engine: RayEngine) -> None:
    with pytest.raises(ConfigError, match="numbers: cannot be sent to workers"):
        list(engine.map(Locked(), [1], what="numbers"))


def test_other_versions_on_the_cluster_are_refused(engine: RayEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamsft, "__version__", "0.0.9")
    with pytest.raises(ConfigError, match=r"a machine of the cluster has streamsft \S+ instead of 0\.0\.9"):
        list(engine.map(Doubling(), [1], what="numbers"))
