"""Decoded row groups: the last ones used, those fetched ahead of their use, and the threads that fetch."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, final

from streamsft.errors import StoreError
from streamsft.sources.blockrows import DecodedBlock

__all__ = ["GroupCache"]

_log = logging.getLogger("streamsft")

_CORES: Final = os.cpu_count() or 1
_MOST_EXPECTED: Final = 128  # groups that one reader is asked for, however small they are
_IDLE: Final = 5.0  # seconds after which a thread without work ends
_LEAVE: Final = 2.0  # seconds that the end of the process waits for fetches under way
_GRACE: Final = 5.0  # seconds beyond the deadline that a fetch may take to give up by itself


@final
class _Flight:
    """A fetch under way."""

    def __init__(self, group: int, size: int, *, demanded: bool) -> None:
        self.group = group
        self.size = size
        self.demanded = demanded
        self.block: DecodedBlock | None = None
        self.error: BaseException | None = None

    @property
    def over(self) -> bool:
        return self.block is not None or self.error is not None


@final
class GroupCache:
    """Groups by number, each decoded once as long as it fits; thread-safe, and empty again in a forked process.

    Used groups are kept up to `memory` bytes; first those go that no reader has said it reads next, then those used
    longest ago. What is read next is fetched ahead, up to `ahead` bytes that are not used yet, soonest first.

    Args:
        fetch: gets and decodes a group; called by several threads.
        size: bytes of a group in memory, more or less.
        memory: bytes of used groups to keep; the last one used is kept in any case.
        ahead: bytes of groups to fetch before they are needed; 0 fetches none.
        threads: fetches at a time.
        deadline: seconds after which waiting for a group is given up.
    """

    def __init__(
        self,
        fetch: Callable[[int], DecodedBlock],
        size: Callable[[int], int],
        *,
        memory: int,
        ahead: int,
        threads: int,
        deadline: float,
    ) -> None:
        self._fetch = fetch
        self._size = size
        self._memory = memory
        self._ahead = ahead
        self._threads = threads
        self._deadline = deadline
        self._said = False
        self.hits = 0
        self.seconds_waiting = 0.0
        self._forget()
        _close_at_exit(self)

    def _forget(self) -> None:
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._kept: OrderedDict[int, DecodedBlock] = OrderedDict()
        self._kept_bytes = 0
        self._early: dict[int, DecodedBlock] = {}
        self._early_bytes = 0
        self._flights: dict[int, _Flight] = {}
        self._demands: deque[_Flight] = deque()
        self._expected: dict[int, list[tuple[int, int]]] = {}
        self._plan: dict[int, None] = {}  # groups that are read next, in that order
        self._failed: set[int] = set()
        self._running: set[threading.Thread] = set()
        self._idle = 0
        self._closed = False

    def get(self, groups: Sequence[int]) -> list[DecodedBlock]:
        """The groups, all at once: those that are not here are fetched side by side.

        Raises:
            StoreError: one cannot be read, or did not come until the deadline.
        """
        self._revive()
        begun = time.monotonic()
        with self._changed:
            here = sorted(groups, key=self._early.__contains__)  # to keep one more may put out another of them
            found = {group: block for group in here if (block := self._used(group)) is not None}
            self.hits += len(found)
            flights = [self._demanded(group) for group in groups if group not in found]
            if flights:
                self._work()
                self._wait(flights, begun)
                self.seconds_waiting += time.monotonic() - begun
        if (error := next((flight.error for flight in flights if flight.error is not None), None)) is not None:
            raise error
        found |= {flight.group: flight.block for flight in flights if flight.block is not None}
        return [found[group] for group in groups]

    def expect(self, reader: int, groups: Iterable[tuple[int, int]]) -> None:
        """See `GroupedSource.expect`."""
        if not self._ahead:
            return
        self._revive()
        wanted: list[tuple[int, int]] = []
        total = 0
        for group, before in groups:
            wanted.append((before, group))
            total += self._size(group) if before else 0
            if total >= self._ahead or len(wanted) >= _MOST_EXPECTED:
                break
        with self._changed:
            self._expected[reader] = wanted
            self._check_room()
            self._plan = dict.fromkeys(group for _, group in sorted(one for r in self._expected.values() for one in r))
            for group in [group for group in self._early if group not in self._plan]:
                self._keep(group, self._early_out(group), used=False)  # no longer to come
            self._failed.clear()
            self._work()

    def _check_room(self) -> None:
        """Say it once when what is being drawn from does not fit."""
        now = {group for wanted in self._expected.values() for before, group in wanted if not before}
        needed = sum(map(self._size, now))
        if needed > self._memory and not self._said:
            self._said = True
            _log.warning(
                "the row groups that are drawn from take %s bytes in this process, and io.memory is %s: they are "
                "fetched more than once; raise io.memory, or lower shuffle_groups",
                f"{needed:,}",
                f"{self._memory:,}",
            )

    def close(self) -> None:
        """End the threads. Groups can still be asked for, which starts them again."""
        with self._changed:
            self._closed = True
            running = list(self._running)
            self._changed.notify_all()
        stop = time.monotonic() + _LEAVE
        for thread in running:
            thread.join(max(0.0, stop - time.monotonic()))

    def _used(self, group: int) -> DecodedBlock | None:
        if group in self._early:
            self._keep(group, self._early_out(group))
            self._work()  # there is room ahead again
        if group not in self._kept:
            return None
        self._kept.move_to_end(group)
        return self._kept[group]

    def _early_out(self, group: int) -> DecodedBlock:
        block = self._early.pop(group)
        self._early_bytes -= block.nbytes
        return block

    def _keep(self, group: int, block: DecodedBlock, *, used: bool = True) -> None:
        self._kept[group] = block
        self._kept.move_to_end(group, last=used)
        self._kept_bytes += block.nbytes
        while self._kept_bytes > self._memory and len(self._kept) > 1:
            self._kept_bytes -= self._kept.pop(self._least_needed()).nbytes

    def _least_needed(self) -> int:
        """Which of the groups that are kept is to go; never the one that was used last, which is needed now."""
        oldest, last = next(iter(self._kept)), next(reversed(self._kept))
        return next((group for group in self._kept if group not in self._plan and group != last), oldest)

    def _demanded(self, group: int) -> _Flight:
        flight = self._flights.get(group)
        if flight is None:
            flight = self._flights[group] = _Flight(group, self._size(group), demanded=True)
            self._demands.append(flight)
        flight.demanded = True
        return flight

    def _wait(self, flights: Sequence[_Flight], begun: float) -> None:
        """Wait for all flights, or the first error among them."""
        while not all(flight.over for flight in flights) and not any(flight.error for flight in flights):
            left = begun + self._deadline + _GRACE - time.monotonic()
            if left <= 0:
                group = next(flight.group for flight in flights if not flight.over)
                raise StoreError(
                    f"row group {group} did not come within {self._deadline + _GRACE:g} s; see that the storage "
                    "answers, then start the same command again: it goes on from the last checkpoint"
                )
            self._changed.wait(left)

    def _work(self) -> None:
        """Have threads do what there is to do."""
        waiting = len(self._demands) + (1 if self._next_ahead() is not None else 0)
        self._closed = False
        for _ in range(min(waiting - self._idle, self._threads - len(self._running))):
            thread = threading.Thread(target=self._run, name="streamsft-groups", daemon=True)
            self._running.add(thread)
            thread.start()
        self._changed.notify_all()

    def _next_ahead(self) -> int | None:
        """The next group to fetch before it is needed; None if there is none, or no room for it."""
        # One that is kept may have to go before it is used: it stays in the plan, to be looked at again.
        group = next((group for group in self._plan if not self._is_here(group)), None)
        demanded = sum(flight.demanded for flight in self._flights.values())
        if group is None or demanded >= _CORES:  # which decode what is waited for
            return None
        flying = sum(flight.size for flight in self._flights.values() if not flight.demanded)
        taken = self._early_bytes + flying
        return group if not taken or taken + self._size(group) <= self._ahead else None

    def _is_here(self, group: int) -> bool:
        return group in self._kept or group in self._early or group in self._flights or group in self._failed

    def _next(self) -> _Flight | None:
        if self._demands:
            return self._demands.popleft()
        group = self._next_ahead()
        if group is None or self._closed:
            return None
        flight = self._flights[group] = _Flight(group, self._size(group), demanded=False)
        return flight

    def _run(self) -> None:
        """What a thread does: fetch as long as there is something to fetch."""
        while True:
            with self._changed:
                flight = self._next()
                if flight is None:
                    self._idle += 1
                    slept = self._closed or not self._changed.wait(_IDLE)
                    self._idle -= 1
                    if slept and (flight := self._next()) is None:
                        self._running.discard(threading.current_thread())
                        return
                elif self._next_ahead() is not None:
                    self._work()
            if flight is not None:
                self._fly(flight)

    def _fly(self, flight: _Flight) -> None:
        block, failure = None, None
        try:
            block = self._fetch(flight.group)
        except BaseException as error:
            failure = error  # raised where the group is waited for
        with self._changed:
            flight.block, flight.error = block, failure
            del self._flights[flight.group]
            if block is not None and flight.demanded:
                self._keep(flight.group, block)
            elif block is not None:
                self._early[flight.group] = block
                self._early_bytes += block.nbytes
            else:
                self._failed.add(flight.group)  # not fetched ahead again, but when it is asked for
            self._changed.notify_all()

    def _revive(self) -> None:
        if self._process != os.getpid():  # a fork, which has no threads, and whose parent may have held the lock
            self._forget()

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a cache of groups stays in its process")


_caches: weakref.WeakSet[GroupCache] = weakref.WeakSet()


def _close_at_exit(cache: GroupCache) -> None:
    """Have the cache's threads end before the client of the storage is taken down, which registered itself before."""
    if not _caches:
        atexit.register(_close_all)
    _caches.add(cache)


def _close_all() -> None:
    for cache in list(_caches):
        cache.close()
