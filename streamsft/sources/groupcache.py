"""Decoded row groups: the last ones used, and those fetched ahead of their use."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Any, Final, final

from streamsft.errors import StoreError
from streamsft.sources.blockrows import DecodedBlock
from streamsft.sources.forkgate import OfProcess
from streamsft.sources.groupfetch import Decode, Flight, GroupFetcher
from streamsft.sources.groupplan import GroupPlan

__all__ = ["GroupCache"]

_log = logging.getLogger("streamsft")

_MOST_EXPECTED: Final = 128  # groups that one reader is asked for, however small they are
_LEAVE: Final = 2.0  # seconds that the end of the process waits for fetches under way
_GRACE: Final = 5.0  # seconds beyond the deadline that a fetch may take to give up by itself


@final
class GroupCache(OfProcess):
    """Groups by number, each decoded once as long as it fits; thread-safe, and empty again in a forked process.

    Used groups are kept up to `memory` bytes; first those go that no reader has said it reads next, of these the ones
    used longest ago, then those read last. What is read next is fetched ahead, up to `ahead` bytes that are not used
    yet, soonest first.

    Args:
        fetch: gets a group's bytes, and returns what decodes them; both are called by several threads.
        size: bytes of a group in memory, more or less.
        memory: bytes of used groups to keep; the last one used is kept in any case.
        ahead: bytes of groups to fetch before they are needed; 0 fetches none.
        threads: fetches at a time.
        deadline: seconds without any group after which waiting for them is given up.
    """

    def __init__(
        self,
        fetch: Callable[[int], Decode],
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
        self._begin_here()
        _close_at_exit(self)

    def _begin(self) -> None:
        lock = threading.Lock()
        self._changed = threading.Condition(lock)
        self._fetcher = GroupFetcher(self._fetch, self._landed, lock, self._threads)
        self._kept: OrderedDict[int, DecodedBlock] = OrderedDict()
        self._kept_bytes = 0
        self._early: dict[int, DecodedBlock] = {}
        self._early_bytes = 0
        self._readers = GroupPlan()
        self._plan: dict[int, int] = {}  # groups that are read next, in that order, and the rows that are read before
        self._failed: set[int] = set()
        self._ended = False

    def get(self, groups: Sequence[int]) -> list[DecodedBlock]:
        """The groups, all at once: those that are not here are fetched side by side.

        Raises:
            StoreError: one cannot be read, or did not come until the deadline.
        """
        self._revive()
        begun = time.monotonic()
        with self._changed:
            found = self._used(groups)
            self.hits += len(found)
            flights = [self._fetcher.demand(one, self._size(one)) for one in groups if one not in found]
            try:
                self._fill()
                if flights:
                    self._wait(flights)
                    self.seconds_waiting += time.monotonic() - begun
            finally:
                self._fetcher.release(flights)
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
            wanted.append((group, before))
            total += self._size(group) if before else 0
            if total >= self._ahead or len(wanted) >= _MOST_EXPECTED:
                break
        with self._changed:
            self._readers.hear(reader, wanted)
            self._plan = self._readers.order()
            self._check_room()
            gone = [group for group in self._early if group not in self._plan]
            for group, block in [(group, self._early_out(group)) for group in gone]:
                self._keep(group, block, used=False)
            self._failed.clear()
            self._fill(at_once=True)

    def _check_room(self) -> None:
        """Say it once when what is being drawn from does not fit."""
        needed = sum(map(self._size, self._readers.now()))
        if needed > self._memory and not self._said:
            self._said = True
            _log.warning(
                "the row groups that are drawn from take %s bytes in this process, and io.memory is %s: they are "
                "fetched more than once; raise io.memory, or lower shuffle_groups",
                f"{needed:,}",
                f"{self._memory:,}",
            )

    def close(self, *, for_good: bool = False) -> None:
        """End the threads. Groups can still be asked for, which starts them again.

        Args:
            for_good: nothing is fetched ahead any more.
        """
        if self._process != os.getpid():
            return  # they are the parent's
        with self._changed:
            self._ended = for_good
            running = self._fetcher.close()
        stop = time.monotonic() + _LEAVE
        for thread in running:
            thread.join(max(0.0, stop - time.monotonic()))

    def _used(self, groups: Sequence[int]) -> dict[int, DecodedBlock]:
        """Those of the groups that are here; all are looked for before one makes room for another."""
        found = {group: self._kept[group] for group in groups if group in self._kept}
        for group in found:
            self._kept.move_to_end(group)
        early = {group: self._early_out(group) for group in groups if group in self._early}
        for group, block in early.items():
            self._keep(group, block)
        return found | early

    def _early_out(self, group: int) -> DecodedBlock:
        block = self._early.pop(group)
        self._early_bytes -= block.nbytes
        return block

    def _keep(self, group: int, block: DecodedBlock, *, used: bool = True) -> None:
        self._kept[group] = block
        self._kept.move_to_end(group, last=used)
        self._kept_bytes += block.nbytes
        while self._kept_bytes > self._memory and len(self._kept) > 1:
            least = self._least_needed()
            out = self._kept.pop(least)
            self._kept_bytes -= out.nbytes
            if least in self._plan:
                self._save(least, out)

    def _save(self, group: int, block: DecodedBlock) -> None:
        """Keep what is read again as if it had been fetched ahead, in place of what is read later than that."""
        self._early[group] = block
        self._early_bytes += block.nbytes
        flying = self._fetcher.bytes_ahead
        while self._early_bytes + flying > self._ahead and len(self._early) > (0 if flying else 1):
            self._early_out(max(self._early, key=self._plan.__getitem__))

    def _least_needed(self) -> int:
        """Which of the groups that are kept is to go; never the one that was used last, which is needed now."""
        last = next(reversed(self._kept))
        for group in self._kept:
            if group not in self._plan and group != last:
                return group
        return max((group for group in self._kept if group != last), key=self._plan.__getitem__)

    def _wait(self, flights: Sequence[Flight]) -> None:
        """Wait for all flights, or the first error among them."""
        pending, since = len(flights), time.monotonic()
        while (left := sum(not flight.over for flight in flights)) and not any(flight.error for flight in flights):
            if left < pending:
                pending, since = left, time.monotonic()
            if (seconds := since + self._deadline + _GRACE - time.monotonic()) <= 0:
                group = next(flight.group for flight in flights if not flight.over)
                raise StoreError(
                    f"row group {group} did not come within {self._deadline + _GRACE:g} s; see that the storage "
                    "answers, then start the same command again: it goes on from the last checkpoint"
                )
            self._changed.wait(seconds)

    def _fill(self, *, at_once: bool = False) -> None:
        """Fetch ahead, soonest first, what there is room for.

        Args:
            at_once: fetch only what is read from now on. Readers tell one after the other before they read: what one
                needs later must not take the threads that another needs now.
        """
        # A group that is kept may have to go before it is used: it stays in the plan, to be looked at again.
        for group, before in self._plan.items():
            if self._fetcher.free <= 0 or self._fetcher.closed or (at_once and before):
                break
            if group in self._kept or group in self._early or group in self._fetcher.flights or group in self._failed:
                continue
            if not self._make_room(self._size(group), before):
                break
            self._fetcher.add(group, self._size(group))
        self._fetcher.hurry = 2 * self._early_bytes < self._ahead
        self._fetcher.wake()

    def _make_room(self, size: int, before: int) -> bool:
        """Whether so much can be fetched ahead, if need be in place of what is read later than after `before` rows."""
        taken = self._early_bytes + self._fetcher.bytes_ahead
        if not taken or taken + size <= self._ahead:
            return True
        later = sorted((self._plan[group], group) for group in self._early if self._plan[group] > before)
        stays = taken - sum(self._early[group].nbytes for _, group in later)
        if stays and stays + size > self._ahead:
            return False
        while later and self._early_bytes + self._fetcher.bytes_ahead + size > self._ahead:
            self._lay_aside(later.pop()[1])
        return True

    def _lay_aside(self, group: int) -> None:
        """Keep a group that has no room ahead in place of what is read later, or not again, if there is such."""
        block = self._early_out(group)
        while self._kept_bytes + block.nbytes > self._memory and len(self._kept) > 1:
            if self._plan.get(least := self._least_needed(), inf) <= self._plan[group]:
                break
            self._kept_bytes -= self._kept.pop(least).nbytes
        if self._kept_bytes + block.nbytes <= self._memory:
            self._kept[group] = block
            self._kept.move_to_end(group, last=False)
            self._kept_bytes += block.nbytes

    def _landed(self, flight: Flight) -> None:
        if flight.block is None:
            self._failed.add(flight.group)  # not fetched ahead again, but when it is asked for
        elif flight.waiting or flight.group not in self._plan:
            self._keep(flight.group, flight.block, used=flight.waiting > 0)
        else:
            self._early[flight.group] = flight.block
            self._early_bytes += flight.block.nbytes
        self._fill()
        self._changed.notify_all()

    def _revive(self) -> None:
        self._begin_here()
        self._fetcher.closed = self._ended

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
        cache.close(for_good=True)
