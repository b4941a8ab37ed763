"""Experiment trackers, each with its real library writing locally: read back, they hold what metrics.jsonl holds."""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamsft.errors import ConfigError
from streamsft.metrics import mlflow_sink
from streamsft.metrics.mlflow_sink import MlflowSink
from streamsft.metrics.sinks import GuardedSink, JsonlSink, Sink
from streamsft.metrics.tracking import TrackedRun
from streamsft.metrics.trackio_sink import TrackioSink
from streamsft.metrics.wandb_files import last_step
from streamsft.metrics.wandb_sink import WandbSink

Steps = dict[int, dict[str, float]]


def numbers(step: int) -> dict[str, float]:
    """A record with counts, fractions and long keys."""
    record: dict[str, float] = {"train/loss": 1 / step, "data/tokens": 10_000_000_000 + step}
    return record | {f"data_some-source.{n}/length_p50_interval": step * n / 7 for n in range(20)}


def wandb_holds(run_dir: Path) -> Steps:
    """What the files of all offline legs hold, which is what `wandb sync` sends: LevelDB log records of protobufs."""
    import wandb
    from wandb.proto import wandb_internal_pb2

    wandb.teardown()  # its service writes the last records when it ends
    found: Steps = {}
    for file in sorted(run_dir.glob("wandb/offline-run-*/*.wandb")):
        for data in _leveldb_records(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                items = {i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
                step = int(items.pop("_step", record.history.step.num))
                assert step not in found, "logged twice"
                found[step] = {key: value for key, value in items.items() if not key.startswith("_")}
    return found


def _leveldb_records(data: bytes) -> Iterator[bytes]:
    """The records of a LevelDB log behind a header of 7 bytes: blocks of 32 KiB; checksum, length, kind, content."""
    at, record = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        if kind == 0:
            break
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield record
            record = b""


def mlflow_holds(run_dir: Path) -> Steps:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=(run_dir.resolve() / "mlruns").as_uri())
    runs = client.search_runs([client.get_experiment_by_name("streamsft").experiment_id])
    assert len(runs) == 1
    found: Steps = {}
    for key in runs[0].data.metrics:
        for metric in client.get_metric_history(runs[0].info.run_id, key):
            assert key not in found.setdefault(metric.step, {}), "logged twice"
            found[metric.step][key] = metric.value
    return found


def trackio_holds(run_dir: Path) -> Steps:
    from trackio.sqlite_storage import SQLiteStorage

    name = json.loads((run_dir / "trackers" / "trackio.json").read_text())["run"]
    found: Steps = {}
    for record in SQLiteStorage.get_logs("streamsft", name):
        step = record.pop("step")
        assert step not in found, "logged twice"
        found[step] = {key: value for key, value in record.items() if key != "timestamp"}
    return found


TRACKERS: dict[str, tuple[Callable[..., Sink], Callable[[Path], Steps]]] = {
    "wandb": (WandbSink, wandb_holds),
    "mlflow": (MlflowSink, mlflow_holds),
    "trackio": (TrackioSink, trackio_holds),
}


@pytest.fixture(autouse=True)
def _local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("WANDB_MODE", "offline"), ("WANDB_SILENT", "true"), ("MLFLOW_ALLOW_FILE_STORE", "true")):
        monkeypatch.setenv(name, value)
    for name in ("WANDB_PROJECT", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "TRACKIO_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    if importlib.util.find_spec("trackio") is not None:  # it reads its folder when it is imported
        import trackio.sqlite_storage
        import trackio.utils

        for module in (trackio.sqlite_storage, trackio.utils):
            monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")


@pytest.mark.parametrize("name", TRACKERS)
def test_a_run_in_legs_is_one_run_with_each_step_once_and_the_numbers_of_metrics_jsonl(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(name)
    monkeypatch.setattr(mlflow_sink, "_AT_ONCE", 7)
    make, holds = TRACKERS[name]
    run_dir = tmp_path / "my run"
    for begin, end in ((0, 6), (4, 9)):  # killed behind step 6, gone on with from the checkpoint of step 4
        sinks: list[Sink] = [JsonlSink(run_dir / "metrics.jsonl"), make(run_dir, config={"seed": 7, "mix": {"a": 1}})]
        for sink in sinks:
            sink.rewind(begin)
        for step in range(begin + 1, end + 1):
            for sink in sinks:
                sink.write(step, 1.8e9 + step, numbers(step))
        for sink in sinks:
            sink.close()
    found = holds(run_dir)
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert sorted(found) == list(range(1, 10))
    assert found == {line["step"]: line["metrics"] for line in lines}


@pytest.mark.parametrize("name", TRACKERS)
def test_a_number_that_is_not_finite_is_no_failure(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name)
    make, holds = TRACKERS[name]
    sink = make(tmp_path / "run")
    sink.write(3, 1.8e9, {"train/loss": math.nan, "x": 2.0})
    sink.close()
    assert holds(tmp_path / "run")[3]["x"] == 2.0


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_package_is_named_with_the_cure(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    with pytest.raises(ConfigError, match=rf"pip install 'streamsft\[{name}\]'"):
        TRACKERS[name][0](tmp_path)


def test_a_step_is_claimed_once_whoever_asks(tmp_path: Path) -> None:
    first = TrackedRun(tmp_path / "t" / "x.json")
    first.id = "abc"
    assert [first.claim(step) for step in (2, 2, 1, 5)] == [True, False, False, True]
    again = TrackedRun(tmp_path / "t" / "x.json")
    assert (again.id, again.step) == ("abc", 5)
    assert [again.claim(step) for step in (5, 6)] == [False, True]
    (tmp_path / "t" / "x.json").write_text("{")
    with pytest.raises(ConfigError, match=r"x\.json is damaged"):
        TrackedRun(tmp_path / "t" / "x.json")


class Failing:
    """A sink whose server is away."""

    def __init__(self) -> None:
        self.calls = 0

    def _fail(self) -> None:
        self.calls += 1
        raise ConnectionError("the server is away")

    def write(self, step: int, time: float, metrics: Any) -> None:
        self._fail()

    def rewind(self, step: int) -> None:
        """Nothing to do."""

    def close(self) -> None:
        self._fail()


def test_a_sink_that_fails_is_told_once_and_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    failing = Failing()
    sink = GuardedSink(failing, "mlflow")
    with caplog.at_level(logging.WARNING):
        sink.rewind(0)
        for step in range(1, 4):
            sink.write(step, 0.0, {"x": 1})
            sink.write_histograms(step, 0.0, {})
        sink.close()
    assert failing.calls == 1
    assert [record.getMessage() for record in caplog.records] == [
        "metrics sink mlflow failed at the record of step 1: ConnectionError: the server is away; training goes on "
        "without it, metrics.jsonl has every record"
    ]


@pytest.mark.parametrize("name", TRACKERS)
def test_what_a_tracker_had_not_written_when_it_was_killed_is_given_again(name: str, tmp_path: Path) -> None:
    """The run and all that belongs to it are killed; on its disk are the steps that the tracker wrote and no others."""
    pytest.importorskip(name)
    make, holds = TRACKERS[name]
    run_dir, kept = tmp_path / "run", tmp_path / "kept"
    for begin, end, checkpoint in ((0, 3, 3), (3, 8, 6), (6, 9, 9)):
        jsonl, sink = JsonlSink(run_dir / "metrics.jsonl"), make(run_dir)
        for one in (jsonl, sink):
            one.rewind(begin)
        for step in range(begin + 1, end + 1):
            for one in (jsonl, sink):
                one.write(step, 1.8e9 + step, numbers(step))
        for one in (jsonl, sink):
            one.close()
        if checkpoint == 3:
            holds(run_dir)  # all is written now
            _copy(tmp_path, kept, ("wandb", "mlruns", "trackio"))
        elif (
            checkpoint == 6
        ):  # of the second leg the trackers wrote nothing, and their notes say that they were given it
            holds(run_dir)
            _copy(kept, tmp_path, ("wandb", "mlruns", "trackio"))
    assert json.loads((run_dir / "trackers" / f"{name}.json").read_text())["step"] == 9
    found = holds(run_dir)
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert sorted(found) == list(range(1, 10))
    assert found == {line["step"]: line["metrics"] for line in lines}


def _copy(source: Path, target: Path, names: tuple[str, ...]) -> None:
    """Put folders of `source`, wherever they lie in it, in the place of those of `target`."""
    for place in [Path(name) for name in names] + [Path("run") / name for name in names]:
        shutil.rmtree(target / place, ignore_errors=True)
        if (source / place).exists():
            shutil.copytree(source / place, target / place)


def test_of_a_step_that_mlflow_holds_in_part_the_rest_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setattr(mlflow_sink, "_AT_ONCE", 7)
    run_dir = tmp_path / "run"
    sink: Sink = MlflowSink(run_dir)
    sink.write(1, 1.8e9, numbers(1))
    with monkeypatch.context() as patched:
        requests = iter([None])

        def once(self: Any, run: str, metrics: Any) -> None:
            next(requests)
            whole(self, run, metrics=metrics)

        whole = mlflow.MlflowClient.log_batch
        patched.setattr(mlflow.MlflowClient, "log_batch", once)
        with pytest.raises(StopIteration):
            sink.write(2, 1.8e9, numbers(2))
    assert len(mlflow_holds(run_dir)[2]) == 7
    again = MlflowSink(run_dir)
    again.rewind(1)
    for step in (2, 3):
        again.write(step, 1.8e9, numbers(step))
    again.close()
    assert mlflow_holds(run_dir) == {step: numbers(step) for step in (1, 2, 3)}


def test_a_run_that_has_no_step_left_gives_wandb_what_it_lacks(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    run_dir = tmp_path / "run"
    for end in (2, 5):  # of the second leg, which is the last, nothing was written
        jsonl, sink = JsonlSink(run_dir / "metrics.jsonl"), WandbSink(run_dir)
        for step in range(1 if end == 2 else 3, end + 1):
            jsonl.write(step, 1.8e9, numbers(step))
            sink.write(step, 1.8e9, numbers(step))
        jsonl.close()
        sink.close()
        wandb_holds(run_dir)
        if end == 2:
            _copy(tmp_path, tmp_path / "kept", ("wandb",))
    _copy(tmp_path / "kept", tmp_path, ("wandb",))
    assert sorted(wandb_holds(run_dir)) == [1, 2]
    for _ in range(2):  # and the second time it lacks nothing, and is not begun
        sink = WandbSink(run_dir)
        sink.rewind(5)
        sink.close()
        assert wandb_holds(run_dir) == {step: numbers(step) for step in range(1, 6)}
    assert len(list(run_dir.glob("wandb/offline-run-*"))) == 2


class Server:
    """A W&B run at a server that holds steps 1 to 3."""

    offline, resumed, starting_step = False, True, 4

    def __init__(self) -> None:
        self.logged: list[int] = []

    def log(self, metrics: Any, *, step: int, commit: bool) -> None:
        assert commit
        self.logged.append(step)


def test_online_the_server_says_which_steps_wandb_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    server = Server()
    monkeypatch.setattr(wandb, "init", lambda **given: server)
    jsonl, note = JsonlSink(tmp_path / "metrics.jsonl"), TrackedRun(tmp_path / "trackers" / "wandb.json")
    note.id = "abc"
    for step in range(1, 7):
        jsonl.write(step, 1.8e9, numbers(step))
        note.claim(step)
    sink = WandbSink(tmp_path)
    for step in (7, 8):
        jsonl.write(step, 1.8e9, numbers(step))
        sink.write(step, 1.8e9, numbers(step))
    assert server.logged == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9, 1.0])
def test_of_a_file_of_wandb_that_was_cut_the_whole_records_count(keep: float, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    sink = WandbSink(tmp_path / "run")
    for step in range(1, 200):
        sink.write(step, 1.8e9, numbers(step))
    sink.close()
    wandb_holds(tmp_path / "run")
    (file,) = (tmp_path / "run").glob("wandb/offline-run-*/*.wandb")
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * keep)])
    held = wandb_holds(tmp_path / "run") if keep in (0.0, 1.0) else None
    assert last_step(file) == max(held, default=0) if held is not None else 0 < last_step(file) < 199
