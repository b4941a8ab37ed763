"""What is told of a worker that died."""

from __future__ import annotations

import os
from multiprocessing import get_context

import pytest

from streamsft.sources import lastread
from streamsft.sources.lastread import LastRead, note
from tests.processes import context


def _read(last: LastRead, worker: int, *sources: str) -> None:
    last.begin(worker)
    for source in sources:
        note(source)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_dead_workers_are_named_with_the_source_that_they_read_last(method: str) -> None:
    last = LastRead(["a", "b"], 3)
    chosen = get_context("fork") if method == "fork" else context()
    read = [("b", "a"), (), ("a", "b")]
    processes = [chosen.Process(target=_read, args=(last, worker, *sources)) for worker, sources in enumerate(read)]
    for process in processes:
        process.start()
        process.join()
    pids = [process.pid for process in processes]
    assert last.dead(f"DataLoader worker (pid {pids[0]}) is killed by signal: Killed.") == (
        f"worker 0 (pid {pids[0]}) read source 'a'"
    )
    assert last.dead(f"DataLoader worker (pid(s) {pids[1]}, {pids[2]}) exited unexpectedly") == (
        f"worker 1 (pid {pids[1]}) read no source yet; worker 2 (pid {pids[2]}) read source 'b'"
    )
    assert last.dead("something else") == "one that read no source yet"


def test_nothing_is_kept_outside_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lastread, "_noted", None)
    note("a")
    last = LastRead(["a", "b"], 2)
    last.begin(1)
    note("b")
    assert last.dead(f"DataLoader worker (pid {os.getpid()})") == f"worker 1 (pid {os.getpid()}) read source 'b'"


def test_rows_are_told_where_they_are_known_and_each_note_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lastread, "_noted", None)
    last = LastRead(["a", "b"], 2)
    last.begin(1)
    told = []
    for source, row, rows in [("a", 7, 3), ("a", -1, 1), ("b", -1, 1), ("b", 0, 1), ("a", 4, 2)]:
        note(source, row, rows)
        text = last.told(1, lambda number, row: f"file {number}:{row}")
        told.append(text.removeprefix(f"worker 1 (pid {os.getpid()}) read "))
    assert told == [
        "source 'a' (file 0, row 7 and 2 more rows)",
        "source 'a' (file 0, row 7 and 2 more rows)",
        "source 'b'",
        "source 'b' (file 1, row 0)",
        "source 'a' (file 0, row 4 and 1 more row)",
    ]
    assert [last.count(worker) for worker in range(2)] == [0, 5]
