"""Forks and operations on storage wait for each other; a process forked off in the middle of one is told so."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from streamsft.errors import StoreError
from streamsft.sources.forkgate import ForkGate, OfProcess
from tests import processes
from tests.forking import in_child


def _passes(gate: ForkGate) -> bool:
    try:
        with gate.passing():
            return True
    except StoreError as error:
        return "loader.start_method: spawn" not in str(error)


def fork_in_the_middle(longest: float) -> None:
    """Fork while a thread is in an operation, which it ends when a fork begins if those wait; the child says how."""
    gate = ForkGate(longest)
    gate.watch_forks()
    begun, forking, forked = (threading.Event() for _ in range(3))
    os.register_at_fork(before=forking.set)  # called before the gate's own
    done: list[bool] = []

    def operation() -> None:
        with gate.passing():
            begun.set()
            (forking if longest else forked).wait()
            done.append(True)

    thread = threading.Thread(target=operation)
    thread.start()
    begun.wait()
    passed = in_child(lambda: _passes(gate) and bool(done))
    forked.set()
    thread.join()
    assert passed == (longest > 0)
    assert _passes(gate)
    assert in_child(lambda: _passes(gate) and bool(done))


@pytest.mark.parametrize("longest", [300.0, 0.0])
def test_fork_waits_for_an_operation_and_a_process_whose_fork_did_not_is_told(longest: float) -> None:
    ended = processes.run(fork_in_the_middle, longest)
    assert ended.returncode == 0, ended.stderr


class Counting(OfProcess):
    """Counts under a lock, which takes a while to make."""

    def _begin(self) -> None:
        self.count = 0
        time.sleep(0.01)
        self.lock = threading.Lock()

    def add(self, _: int) -> None:
        self._begin_here()
        with self.lock:
            self.count += 1


def test_threads_of_a_fork_begin_once_whatever_its_parent_holds() -> None:
    counting = Counting()

    def holds() -> bool:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(counting.add, range(100)))
        return counting.count == 100

    assert holds()
    with counting.lock:
        assert in_child(holds)
    assert counting.count == 100
