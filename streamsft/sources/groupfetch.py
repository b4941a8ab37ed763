"""The threads that fetch row groups: the bytes of many at a time, decoded by few, in the order of need."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
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
        demanded: whether it is waited for.
        decode: makes it of its bytes; None until these are there.
        block: the group, once it is decoded.
        error: why it did not come.
    """

    __slots__ = ("block", "decode", "demanded", "error", "group", "size", "taken")

    def __init__(self, group: int, size: int, *, demanded: bool) -> None:
        self.group = group
        self.size = size
        self.demanded = demanded
        self.taken = False  # by a thread
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
        self.closed = False
        self.hurry = False
        self.running: set[threading.Thread] = set()
        self._fetch = fetch
        self._landed = landed
        self._lock = lock
        self._changed = threading.Condition(lock)
        self._threads = threads
        self._decoding = 0
        self._idle = 0

    @property
    def free(self) -> int:
        """Fetches that could be begun at once."""
        return self._threads - len(self.flights)

    @property
    def bytes_ahead(self) -> int:
        """Bytes of the groups on their way that are not waited for."""
        return sum(flight.size for flight in self.flights.values() if not flight.demanded)

    def add(self, group: int, size: int, *, demanded: bool = False) -> Flight:
        """Have a group fetched, or told that it is waited for, once `wake` is called."""
        flight = self.flights.setdefault(group, Flight(group, size, demanded=demanded))
        flight.demanded = flight.demanded or demanded
        return flight

    def wake(self) -> None:
        """Have threads do what there is to do."""
        todo = sum(flight.decode is None for flight in self.flights.values() if not flight.taken)
        todo += min(self._free_decoders, len(self.flights) - todo)
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
        for flight in [flight for flight in self.flights.values() if not flight.taken and not flight.demanded]:
            del self.flights[flight.group]
        self._changed.notify_all()
        return list(self.running)

    @property
    def _free_decoders(self) -> int:
        hurry = self.hurry or any(flight.demanded for flight in self.flights.values())
        cores = _CORES if hurry else max(1, _CORES - 1)
        return max(0, cores - self._decoding)

    def _run(self) -> None:
        """What a thread does: fetch and decode as long as there is something to do."""
        with self._lock:
            until = time.monotonic() + _IDLE
            while True:
                if (flight := self._next()) is not None:
                    flight.taken = True
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
        """What to do next: decode what is needed first of what has come, else fetch."""
        waiting = [flight for flight in self.flights.values() if not flight.taken]
        waiting.sort(key=lambda flight: not flight.demanded)
        come = (flight for flight in waiting if flight.decode is not None)
        if self._free_decoders and (flight := next(come, None)) is not None:
            return flight
        return next((flight for flight in waiting if flight.decode is None), None)

    def _step(self, flight: Flight) -> None:
        """Fetch or decode, without the lock."""
        decode, block, failure = flight.decode, None, None
        self._decoding += decode is not None
        self._lock.release()
        try:
            if decode is not None:
                block = decode()
            else:
                flight.decode = self._fetch(flight.group)
        except BaseException as error:
            failure = error  # raised where the group is waited for
        self._lock.acquire()
        self._decoding -= decode is not None
        flight.taken = False
        flight.block, flight.error = block, failure
        if flight.over:
            del self.flights[flight.group]
            self._landed(flight)
