"""The threads that fetch row groups: the bytes of many at a time, decoded by few, in the order of need."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, final

from streamsft.sources.blockrows import DecodedBlock

__all__ = ["Decode", "Flight", "GroupFetcher"]

_CORES: Final = os.cpu_count() or 1
_IDLE: Final = 5.0  # seconds after which a thread without work ends

Decode = Callable[[], DecodedBlock]
"""Makes a group of the bytes that were fetched."""


@final
class Flight:
    """A group on its way.

    Attributes:
        group: its number.
        size: its bytes in memory, more or less.
        waiting: how many wait for it.
        decode: makes it of its bytes; None until these are there.
        block: the group, once it is decoded.
        error: why it did not come.
    """

    __slots__ = ("block", "decode", "error", "group", "size", "waiting")

    def __init__(self, group: int, size: int) -> None:
        self.group = group
        self.size = size
        self.waiting = 0
        self.decode: Decode | None = None
        self.block: DecodedBlock | None = None
        self.error: BaseException | None = None

    @property
    def over(self) -> bool:
        """Whether it has come, or failed."""
        return self.block is not None or self.error is not None


@final
class GroupFetcher:
    """Fetches groups, those first that are waited for, the others in the order in which they were added.

    Many requests can wait for the storage at a time. Decoding takes a core: were all groups that have come decoded at
    once, each would be late. So no more are than there are cores, one of which is left to who reads, but when that one
    waits, or there is a `hurry`. All methods are called under `lock`.

    Attributes:
        flights: the groups on their way, by number.
        bytes_ahead: how much of them nobody waits for.
        running: the threads.
        hurry: decode on all cores.
        closed: threads end, once what is waited for has come.

    Args:
        fetch: gets a group's bytes; called by several threads.
        landed: called, under `lock`, with each flight that is over.
        lock: the lock of who asks.
        threads: fetches at a time.
    """

    def __init__(
        self, fetch: Callable[[int], Decode], landed: Callable[[Flight], None], lock: threading.Lock, threads: int
    ) -> None:
        self.flights: dict[int, Flight] = {}
        self.bytes_ahead = 0
        self.running: set[threading.Thread] = set()
        self.hurry = False
        self.closed = False
        self._fetch = fetch
        self._landed = landed
        self._lock = lock
        self._changed = threading.Condition(lock)
        self._threads = threads
        self._queues: dict[tuple[bool, bool], dict[int, Flight]] = {
            (come, demanded): {} for come in (False, True) for demanded in (False, True)
        }
        self._demanded = 0
        self._decoding = 0
        self._idle = 0

    @property
    def free(self) -> int:
        """Fetches that could be begun at once."""
        return self._threads - len(self.flights)

    def add(self, group: int, size: int) -> Flight:
        """Have a group fetched that is not on its way, once `wake` is called."""
        flight = self.flights[group] = Flight(group, size)
        self.bytes_ahead += size
        self._queue(flight)
        return flight

    def demand(self, group: int, size: int) -> Flight:
        """Have a group fetched before all that is not waited for, once `wake` is called."""
        flight = self.flights.get(group) or self.add(group, size)
        self._change(flight, 1)
        return flight

    def release(self, flights: Sequence[Flight]) -> None:
        """Have them no longer waited for by who demanded them; what nobody needs and no thread has begun is left."""
        for flight in flights:
            if not flight.over:
                self._change(flight, -1)
                if not flight.waiting and flight.decode is None and flight.group in self._queues[False, False]:
                    self._drop(flight)

    def _change(self, flight: Flight, by: int) -> None:
        queued = self._queues[flight.decode is not None, flight.waiting > 0].pop(flight.group, None) is not None
        before, flight.waiting = flight.waiting, flight.waiting + by
        if (before > 0) != (flight.waiting > 0):
            self._demanded += by
            self.bytes_ahead -= by * flight.size
        if queued:
            self._queue(flight)

    def _queue(self, flight: Flight) -> None:
        self._queues[flight.decode is not None, flight.waiting > 0][flight.group] = flight

    def _drop(self, flight: Flight) -> None:
        """Have a flight no longer on its way."""
        self._queues[flight.decode is not None, flight.waiting > 0].pop(flight.group, None)
        del self.flights[flight.group]
        if flight.waiting:
            self._demanded -= 1
        else:
            self.bytes_ahead -= flight.size

    def wake(self) -> None:
        """Have threads do what there is to do."""
        come, absent = (sum(len(self._queues[come, one]) for one in (False, True)) for come in (True, False))
        todo = absent + min(self._free_decoders, come)
        for _ in range(min(todo - self._idle, self._threads - len(self.running))):
            thread = threading.Thread(target=self._run, name="streamsft-groups", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                if not self.running:
                    raise
                break  # no more threads can be had: those that there are do it
            self.running.add(thread)
        self._changed.notify(todo)

    def close(self) -> list[threading.Thread]:
        """Have the threads end, which are returned; what no thread has begun and nobody waits for is not fetched."""
        self.closed = True
        for flight in [*self._queues[False, False].values(), *self._queues[True, False].values()]:
            self._drop(flight)
        self._changed.notify_all()
        return list(self.running)

    @property
    def _free_decoders(self) -> int:
        cores = _CORES if self.hurry or self._demanded else max(1, _CORES - 1)
        return max(0, cores - self._decoding)

    def _run(self) -> None:
        """What a thread does: fetch and decode as long as there is something to do."""
        with self._lock:
            until = time.monotonic() + _IDLE
            while True:
                if (flight := self._next()) is not None:
                    self.wake()  # others, for what is left
                    self._step(flight)
                    until = time.monotonic() + _IDLE
                elif self.closed or (left := until - time.monotonic()) <= 0:
                    self.running.discard(threading.current_thread())
                    return
                else:
                    self._idle += 1
                    self._changed.wait(left)
                    self._idle -= 1

    def _next(self) -> Flight | None:
        """What to do next, taken from its queue: decode what is needed first of what has come, else fetch."""
        for come in (True, False) if self._free_decoders else (False,):
            for demanded in (True, False):
                if queue := self._queues[come, demanded]:
                    return queue.pop(next(iter(queue)))
        return None

    def _step(self, flight: Flight) -> None:
        """Fetch or decode, without the lock."""
        come, block, failure = flight.decode is not None, None, None
        self._decoding += come
        self._lock.release()
        try:
            if flight.decode is not None:
                block = flight.decode()
            else:
                flight.decode = self._fetch(flight.group)
        except BaseException as error:
            failure = error  # raised where the group is waited for
        self._lock.acquire()
        self._decoding -= come
        flight.block, flight.error = block, failure
        if flight.over:
            self._drop(flight)
            self._landed(flight)
        else:
            self._queue(flight)
