"""Sinks: every record readable at once, and a resumed run's log has each step once."""

from __future__ import annotations

import builtins
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from streamsft.errors import ConfigError, RunError
from streamsft.metrics.histograms import Buckets
from streamsft.metrics.sinks import JsonlSink, Sink, TensorBoardSink


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_record_is_a_line_that_can_be_read_as_soon_as_written(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    sink: Sink = JsonlSink(path)
    sink.write(10, 1.5, {"train/loss": 2.25, "data/samples": 12})
    assert records(path) == [{"step": 10, "time": 1.5, "metrics": {"train/loss": 2.25, "data/samples": 12}}]
    sink.close()


def test_numbers_that_json_cannot_write_become_null(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "m.jsonl")
    sink.write(1, 0.0, {"a": float("nan"), "b": float("-inf"), "c": 1})
    assert records(tmp_path / "m.jsonl")[0]["metrics"] == {"a": None, "b": None, "c": 1}


def test_a_resumed_run_has_each_step_once(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    killed = JsonlSink(path)
    for step in range(1, 14):
        killed.write(step, float(step), {"x": step})
    resumed = JsonlSink(path)
    resumed.rewind(10)
    for step in range(11, 16):
        resumed.write(step, 100.0 + step, {"x": step})
    resumed.close()
    assert [r["step"] for r in records(path)] == list(range(1, 16))
    assert records(path)[10]["time"] == 111.0
    assert [p.name for p in tmp_path.iterdir()] == ["m.jsonl"]


@pytest.mark.parametrize("size", [10, 70_000, 200_000])
def test_a_line_left_unfinished_by_a_kill_is_removed(tmp_path: Path, size: int) -> None:
    path = tmp_path / "m.jsonl"
    JsonlSink(path).write(1, 0.0, {"x": 1})
    with path.open("a") as file:
        file.write('{"step": 2, "time": 0.0, "metrics": {"' + "é" * size)
    JsonlSink(path).write(2, 0.0, {"x": 2})
    assert [r["step"] for r in records(path)] == [1, 2]


def test_a_file_of_only_an_unfinished_line_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"st')
    JsonlSink(path).rewind(0)
    assert path.read_text() == ""
    path.write_text('{"st')
    JsonlSink(path).write(1, 0.0, {})
    assert [r["step"] for r in records(path)] == [1]


def test_nothing_is_made_before_the_first_record(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "run" / "m.jsonl")
    sink.rewind(0)
    sink.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("line", ["not json", "[1]", '{"time": 1}', "12"])
def test_a_line_that_is_no_record_is_named_and_nothing_is_lost(tmp_path: Path, line: str) -> None:
    path = tmp_path / "m.jsonl"
    JsonlSink(path).write(1, 0.0, {})
    text = path.read_text() + line + "\n"
    path.write_text(text)
    with pytest.raises(RunError, match=r"m\.jsonl:2: not a metrics record"):
        JsonlSink(path).rewind(1)
    assert path.read_text() == text
    assert [p.name for p in tmp_path.iterdir()] == ["m.jsonl"]


def test_tensorboard_shows_each_step_once_after_a_resume(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    killed: Sink = TensorBoardSink(tmp_path)
    for step in range(1, 14):
        killed.write(step, float(step), {"train/loss": step})
    resumed = TensorBoardSink(tmp_path)
    resumed.rewind(10)
    for step in range(11, 16):
        resumed.write(step, 100.0 + step, {"train/loss": step})
    resumed.close()
    killed.close()
    shown = EventAccumulator(str(tmp_path)).Reload().Scalars("train/loss")
    assert [(e.step, e.value) for e in shown] == [(step, step) for step in range(1, 16)]


def test_tensorboard_and_histograms_jsonl_hold_the_same_distributions(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {"data_mix/length": Buckets((1.0, 2.0, 4.0), (3, 5)), "data_mix/turns": Buckets((0.0, 1.0), (7,))}
    board, lines = TensorBoardSink(tmp_path / "tb"), JsonlSink(tmp_path / "m.jsonl", tmp_path / "h.jsonl")
    for step in (1, 2, 3):
        for sink in (board, lines):
            sink.write(step, float(step), {"x": step})
            sink.write_histograms(step, float(step), found)
    lines.rewind(2)
    board.close()
    shown = (
        EventAccumulator(str(tmp_path / "tb"), size_guidance={"histograms": 0}).Reload().Histograms("data_mix/length")
    )
    assert [event.step for event in shown] == [1, 2, 3]
    assert list(shown[0].histogram_value.bucket_limit) == [1, 2, 4]
    assert list(shown[0].histogram_value.bucket) == [0, 3, 5]
    assert [record["step"] for record in records(tmp_path / "h.jsonl")] == [1, 2]
    assert records(tmp_path / "h.jsonl")[0]["histograms"]["data_mix/length"] == {"edges": [1, 2, 4], "counts": [3, 5]}


def test_a_missing_tensorboard_is_named_with_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name.startswith("torch.utils.tensorboard"):
            raise ImportError("No module named 'tensorboard'")
        return real(name, *args)

    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"pip install 'streamsft\[train\]'"):
        TensorBoardSink(tmp_path)
