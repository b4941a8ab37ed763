"""Threads that fetch and decode: how many of either at a time, and in which order."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from streamsft.sources import groupfetch
from streamsft.sources.blockrows import DecodedBlock
from streamsft.sources.groupfetch import Decode, Flight, GroupFetcher

BLOCK = DecodedBlock(ids=np.zeros(1, np.int32), mask=np.ones(1, np.bool_), bounds=np.array([0, 1]))


class Storage:
    """Fetches at once, and decodes when it is let; counts how many do either at a time."""

    def __init__(self, threads: int) -> None:
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.may_fetch, self.may_decode = threading.Semaphore(0), threading.Semaphore(0)
        self.fetching, self.most_fetching, self.decoding, self.most_decoding = 0, 0, 0, 0
        self.begun: list[int] = []  # to be decoded
        self.landed: list[int] = []
        self.fetcher = GroupFetcher(self.fetch, self.land, self.lock, threads)

    def fetch(self, group: int) -> Decode:
        with self.changed:
            self.fetching += 1
            self.most_fetching = max(self.most_fetching, self.fetching)
            self.changed.notify_all()
        assert self.may_fetch.acquire(timeout=60)
        with self.changed:
            self.fetching -= 1
            self.changed.notify_all()
        return lambda: self.decode(group)

    def decode(self, group: int) -> DecodedBlock:
        with self.changed:
            self.begun.append(group)
            self.decoding += 1
            self.most_decoding = max(self.most_decoding, self.decoding)
            self.changed.notify_all()
        assert self.may_decode.acquire(timeout=60)
        with self.changed:
            self.decoding -= 1
        return BLOCK

    def land(self, flight: Flight) -> None:
        self.landed.append(flight.group)
        self.changed.notify_all()

    def add(self, *groups: int, demanded: bool = False) -> None:
        with self.lock:
            for group in groups:
                if demanded:
                    self.fetcher.demand(group, 1)
                else:
                    self.fetcher.add(group, 1)
            self.fetcher.wake()

    def wait_until(self, **counts: int) -> None:
        end = time.monotonic() + 60
        with self.changed:
            while any(self._count(name) != n for name, n in counts.items()):
                assert time.monotonic() < end
                self.changed.wait(0.01)  # not all that is counted tells

    @property
    def come(self) -> int:
        """How many have been fetched, and wait to be decoded."""
        return sum(len(queue) for (come, _), queue in self.fetcher._queues.items() if come)

    def _count(self, name: str) -> int:
        value = getattr(self, name)
        return len(value) if isinstance(value, list) else value

    def let(self, fetches: int = 0, decodes: int = 0) -> None:
        for _ in range(fetches):
            self.may_fetch.release()
        for _ in range(decodes):
            self.may_decode.release()


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groupfetch, "_CORES", 4)


def test_many_are_fetched_at_a_time_and_decoded_on_all_cores_but_one() -> None:
    storage = Storage(threads=8)
    storage.add(*range(10))
    storage.wait_until(fetching=8)
    storage.let(fetches=10)
    storage.wait_until(decoding=3)
    storage.let(decodes=10)
    storage.wait_until(landed=10)
    assert (storage.most_fetching, storage.most_decoding) == (8, 3)


def test_all_cores_decode_what_is_waited_for() -> None:
    storage = Storage(threads=8)
    storage.add(*range(8), demanded=True)
    storage.let(fetches=8)
    storage.wait_until(decoding=4)
    storage.let(decodes=8)
    storage.wait_until(landed=8)
    assert storage.most_decoding == 4


def test_all_cores_decode_in_a_hurry() -> None:
    storage = Storage(threads=8)
    storage.fetcher.hurry = True
    storage.add(*range(8))
    storage.let(fetches=8)
    storage.wait_until(decoding=4)
    storage.let(decodes=8)
    storage.wait_until(landed=8)
    assert storage.most_decoding == 4


def test_what_is_waited_for_is_fetched_and_decoded_before_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groupfetch, "_CORES", 1)
    storage = Storage(threads=3)
    storage.add(0, 1, 2, 3)
    storage.wait_until(fetching=3)
    storage.add(3, demanded=True)  # known, and not begun
    storage.add(9, demanded=True)
    storage.let(fetches=5)
    for landed in range(1, 6):
        storage.wait_until(landed=landed - 1, decoding=1, come=5 - landed)
        storage.let(decodes=1)
    storage.wait_until(landed=5)
    later = storage.begun[1:]  # without the first that came, when nothing else had
    assert sorted(later, key=lambda group: group not in (3, 9)) == later
    assert set(storage.begun) == {0, 1, 2, 3, 9}


def test_threads_end_when_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groupfetch, "_IDLE", 0.0)
    storage = Storage(threads=4)
    storage.let(fetches=2, decodes=2)
    storage.add(0, 1)
    storage.wait_until(landed=2)
    for thread in list(storage.fetcher.running):
        thread.join(60)
    assert not storage.fetcher.running


def test_closed_it_finishes_what_is_waited_for() -> None:
    storage = Storage(threads=2)
    storage.add(0, 1, 2)
    storage.wait_until(fetching=2)
    storage.add(3, demanded=True)
    with storage.lock:
        threads = storage.fetcher.close()
        assert set(storage.fetcher.flights) == {0, 1, 3}
    storage.let(fetches=3, decodes=3)
    for thread in threads:
        thread.join(60)
    assert sorted(storage.landed) == [0, 1, 3]


def test_where_no_more_threads_can_be_had_those_there_are_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(threads=4)
    storage.let(fetches=3, decodes=3)
    start, started = threading.Thread.start, list[threading.Thread]()

    def first_alone(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", first_alone)
    storage.add(0, 1, 2)
    storage.wait_until(landed=3)
    assert storage.most_fetching == 1


def test_where_no_thread_can_be_had_it_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    storage = Storage(threads=4)
    with pytest.raises(RuntimeError, match="can't start"):
        storage.add(0)
    assert not storage.fetcher.running
