"""Work spread over processes: order, bounded memory, and what happens when something goes wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from streamsft.errors import ConfigError, DataError, StoreError
from streamsft.text import workers
from streamsft.text.workers import WorkerPool, map_ordered
from tests.jobs import Reading, Released


@dataclass(frozen=True)
class Squares:
    """Squares numbers, some slower than others; some numbers are trouble."""

    def run(self, item: int, /) -> int:
        if item == -1:
            raise StoreError("minus one")
        if item == -2:
            raise KeyError("minus two")
        if item == -3:
            sys.exit(7)
        sum(range(item % 7 * 20_000))
        return item * item


def test_results_come_in_order_whatever_the_processes() -> None:
    expected = [(n, n * n) for n in range(60)]
    for processes in (1, 2, 3, None):
        assert list(map_ordered(Squares(), range(60), processes, what="squares")) == expected


def test_few_items_are_taken_ahead_of_the_results() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    with WorkerPool(Squares(), 2, what="squares") as pool:
        assert max(taken[-1] - item for item, _ in pool.map(items())) <= 9


def test_no_items_start_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    assert list(map_ordered(Squares(), [], 2, what="squares")) == []
    assert list(map_ordered(Squares(), range(5), None, what="squares"))[-1] == (4, 16)


def test_errors_of_streamsft_arrive_as_they_are_and_others_with_their_name() -> None:
    with pytest.raises(StoreError, match=r"^minus one$"):
        list(map_ordered(Squares(), [1, -1, 2], 2, what="squares"))
    with pytest.raises(DataError, match=r"KeyError in a worker process: 'minus two'\n"):
        list(map_ordered(Squares(), [1, -2, 2], 2, what="squares"))


def test_a_worker_that_ends_is_named_with_its_exit_code() -> None:
    with pytest.raises(DataError, match=r"squares: worker process \d+ ended with exit code 7 before its work was done"):
        list(map_ordered(Squares(), [1, -3, 2], 2, what="squares"))


def test_a_worker_that_takes_long_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "QUIET_SECONDS", 0.1)
    os.mkfifo(tmp_path / "pipe")
    log = Released(tmp_path / "pipe")
    workers.logger.addHandler(log)
    try:
        with WorkerPool(Reading(), 1, what="source a") as pool:
            assert [result for _, result in pool.map([str(tmp_path / "pipe")])] == ["released"]
    finally:
        workers.logger.removeHandler(log)
    assert log.said[0].startswith("source a: worker process ")
    assert "has been at the same item for 0.1 s or more; if it hangs, kill it" in log.said[0]


def test_a_job_that_cannot_travel() -> None:
    class Local(Squares):  # type: ignore[misc]
        pass

    with pytest.raises(ConfigError, match=r"squares: cannot be sent to worker processes.*Local"):
        list(map_ordered(Local(), range(3), 2, what="squares"))
    assert list(map_ordered(Local(), range(30), None, what="squares"))[-1] == (29, 841)


def test_a_script_without_a_guard_may_use_processes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "from tests.text.test_tokenizing_workers import Squares\n"
        "from streamsft.text.workers import map_ordered\n"
        "print('once', sum(r for _, r in map_ordered(Squares(), range(40), 2, what='squares')))\n"
        "class Mine(Squares): pass\n"
        "print('alone', sum(r for _, r in map_ordered(Mine(), range(40), None, what='squares')))\n"
    )
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert run.stdout.splitlines() == ["once 20540", "alone 20540"]
