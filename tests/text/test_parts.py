"""Tokenizing goes on where a call that was stopped has come to."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamsft.engine import Done, Engine
from streamsft.errors import DataError
from streamsft.sources import jsontext
from streamsft.sources.files import RawFiles
from streamsft.sources.store import TokenStore
from streamsft.text import parts
from streamsft.text.tokenizing import tokenize
from streamsft.text.workers import LocalEngine

ROWS = 64


class StoppedError(Exception):
    """Stands for whatever ends a process."""


class Counting(Engine):
    """Does jobs in this process, counts their rows, and stops before so many chunks."""

    def __init__(self, chunks: int | None = None) -> None:
        super().__init__()
        self.rows = 0
        self._chunks = chunks

    def _map(self, job: Any, items: Iterator[Any], *, what: str) -> Iterator[tuple[Any, Any]]:
        for number, item in enumerate(items):
            if number == self._chunks:
                raise StoppedError
            result = job.run(item)
            self.rows += result.rows
            yield item, result

    def close(self) -> None:
        """Nothing is left."""


class Unused:
    """A job that is not done."""

    def run(self, item: Any, /) -> Any:
        raise StoppedError


def lengths(row: dict[str, Any]) -> dict[str, list[int]] | None:
    if row["n"] % 7 == 3:
        return None
    return {"input_ids": [1 + n for n in range(row["n"] % 5 + 2)], "loss_mask": [0] + [1] * (row["n"] % 5 + 1)}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of eight rows, parts of two chunks."""
    monkeypatch.setattr(jsontext, "CHUNK_BYTES", 128)
    monkeypatch.setattr(parts, "CHUNKS", 2)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"n": n, "x": 1}) + "\n" for n in range(100, 100 + ROWS)))
    return path


def run(source: Any, cache: Path, engine: Engine) -> TokenStore:
    return tokenize(source, name="rows", transform=lengths, cache_dir=cache, engine=engine)


def data(store: TokenStore) -> list[bytes]:
    assert store.path is not None
    return [(Path(store.path) / name).read_bytes() for name in ("data-00000-of-00001.arrow", "rejected.jsonl")]


@pytest.mark.parametrize("chunks", range(9))
def test_the_store_is_the_same_wherever_it_was_stopped(file: Path, tmp_path: Path, chunks: int) -> None:
    expected = run(file, tmp_path / "whole", Counting())
    with pytest.raises(StoppedError):
        run(file, tmp_path / "cache", Counting(chunks))
    engine = Counting()
    store = run(file, tmp_path / "cache", engine)
    assert data(store) == data(expected)
    assert store.manifest.rejected == expected.manifest.rejected
    assert store.fingerprint == expected.fingerprint
    kept = max(0, chunks - 1) // 2  # the last part is published once another chunk follows
    done = engine.done.get("rows", Done())
    assert done.parts == kept
    assert engine.rows + done.rows == ROWS
    assert (done.rows > 0) == (kept > 0)
    assert not (tmp_path / "cache" / "parts").exists() or not list((tmp_path / "cache" / "parts").iterdir())


def test_a_store_that_is_there_counts_as_done(file: Path, tmp_path: Path) -> None:
    run(file, tmp_path, Counting())
    engine = Counting()
    run(file, tmp_path, engine)
    assert engine.done == {"rows": Done(rows=ROWS, files=1)}


def test_files_that_are_whole_are_counted(tmp_path: Path, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    other = tmp_path / "second.jsonl"
    other.write_bytes(file.read_bytes())
    with pytest.raises(StoppedError):
        run([file, other], tmp_path / "cache", Counting(14))
    caplog.set_level(logging.INFO, "streamsft")
    engine = Counting()
    run([file, other], tmp_path / "cache", engine)
    done = engine.done["rows"]
    assert (done.files, done.parts) == (1, 6)
    assert f"source rows: {done.rows} rows (6 parts) are not tokenized again" in caplog.text


def test_a_damaged_part_and_those_behind_it_are_made_again(
    file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = run(file, tmp_path / "whole", Counting())
    with pytest.raises(StoppedError):
        run(file, tmp_path / "cache", Counting(7))
    second = sorted((tmp_path / "cache" / "parts").glob("*/*.arrow"))[1]
    damaged = bytearray(second.read_bytes())
    damaged[-40] ^= 1
    second.write_bytes(damaged)
    engine = Counting()
    assert data(run(file, tmp_path / "cache", engine)) == data(expected)
    assert engine.done["rows"].parts == 1
    assert f"{second}: is damaged; its rows are tokenized again" in caplog.text


def test_other_rows_take_over_nothing(file: Path, tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        run(file, tmp_path / "cache", Counting(7))
    folder = next((tmp_path / "cache" / "parts").iterdir())
    text = file.read_text().replace('"n": 101', '"n": 102')
    file.write_text(text)
    engine = Counting()
    store = run(file, tmp_path / "cache", engine)
    assert engine.rows == ROWS
    assert data(store) == data(run(file, tmp_path / "whole", Counting()))
    assert folder.exists()  # for it may still be gone on with


def test_parts_of_the_same_name_are_told_apart_by_their_input(file: Path, tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        run(file, tmp_path / "cache", Counting(7))
    chunks = list(RawFiles(file).chunks())
    folder = next((tmp_path / "cache" / "parts").iterdir())
    turned = parts.Parts(folder, name="rows").tokenized(Counting(0), Unused(), iter(chunks[::-1]), files=1)
    with pytest.raises(StoppedError):
        next(turned)


def test_parts_that_nobody_went_on_with_go_after_two_weeks(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "parts" / "0123"
    folder.mkdir(parents=True)
    run(file, tmp_path, Counting())
    assert folder.exists()
    monkeypatch.setattr(parts, "_STALE_SECONDS", -1.0)
    file.write_text(file.read_text() * 2)
    run(file, tmp_path, Counting())
    assert not folder.exists()


def test_a_disk_that_takes_no_parts_costs_time_alone(
    file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "parts").write_text("in the way")
    store = run(file, tmp_path / "cache", Counting())
    assert len(store) > 0
    assert caplog.text.count("no further parts are kept") == 1


def test_pairs_and_rejected_rows_survive_a_part() -> None:
    first = parts.EncodedChunk(
        rows=4,
        index=np.array([0, 2]),
        lengths=np.array([2, 3], np.int32),
        input_ids=np.array([1, 2, 3, 4, 5], np.int32),
        loss_mask=np.array([0, 1, 0, 0, 1], np.bool_),
        rejected=(parts.Rejected(1, None, "bad_row", 'it\'s "bad" ü'), parts.Rejected(3, 7, "transform", "")),
        pairs=np.array([[1, 1], [0, 2]], np.int32),
    )
    none = np.empty(0, np.int32)
    empty = parts.EncodedChunk(
        rows=0,
        index=np.empty(0, np.int64),
        lengths=none,
        input_ids=none,
        loss_mask=np.empty(0, np.bool_),
        rejected=(),
    )
    again = parts._decoded(parts._encoded([first, empty]))
    assert repr(again) == repr([first, empty])


def test_processes_are_the_engine_s_affair(file: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="processes: the engine that is given says how many"):
        tokenize(file, name="rows", transform=lengths, cache_dir=tmp_path, engine=LocalEngine(1), processes=2)


def test_an_error_in_the_rows_keeps_what_was_before_it(file: Path, tmp_path: Path) -> None:
    file.write_text(file.read_text() + '{"x": 2}\n')
    with pytest.raises(DataError, match="the transform raised KeyError"):
        run(file, tmp_path / "cache", Counting())
    assert list((tmp_path / "cache" / "parts").glob("*/*.arrow"))
