"""What each worker process read last: it is told of one that was killed or hangs, which can tell nothing itself."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from ctypes import c_int64
from multiprocessing.sharedctypes import RawArray
from typing import final

from streamsft.shown import placed

__all__ = ["LastRead", "Where", "note"]

Where = Callable[[int, int], str]
"""Gives for the number of a source and a row of it, as noted, its ``file:row``."""

_noted: Callable[[str, int, int], None] | None = None


def note(source: str, row: int = -1, rows: int = 1) -> None:
    """Say that this process reads `source` now; kept only in a worker process of a loader.

    Args:
        source: its name.
        row: the row that is read, or the first of several; -1 where that is not known yet.
        rows: how many are read together.
    """
    if _noted is not None:
        _noted(source, row, rows)


@final
class LastRead:
    """Process id and last reading of each worker, in memory that they share with the process that started them.

    Args:
        names: names of the sources.
        workers: number of workers.
    """

    def __init__(self, names: Sequence[str], workers: int) -> None:
        self._names = list(names)
        self._numbers = {name: number for number, name in enumerate(names)}
        self._pids = RawArray(c_int64, workers)
        self._count = RawArray(c_int64, workers)
        self._source = RawArray(c_int64, [-1] * workers)
        self._row = RawArray(c_int64, [-1] * workers)
        self._rows = RawArray(c_int64, workers)

    def begin(self, worker: int) -> None:
        """Keep what this process, worker number `worker`, notes from now on."""
        global _noted
        self._pids[worker] = os.getpid()

        def keep(source: str, row: int, rows: int) -> None:
            number = self._numbers[source]
            if row >= 0 or number != self._source[worker]:
                self._row[worker], self._rows[worker] = row, rows
            self._source[worker] = number
            self._count[worker] += 1

        _noted = keep

    def count(self, worker: int) -> int:
        """How often a worker has noted something: as long as this grows, it is not hanging."""
        return self._count[worker]

    def told(self, worker: int, where: Where | None = None) -> str:
        """Which process worker number `worker` is, and what it read last."""
        number, row, more = self._source[worker], self._row[worker], self._rows[worker] - 1
        what = "no source yet"
        if number >= 0:
            what = f"source {self._names[number]!r}"
            if where is not None and row >= 0:
                others = f" and {more} more row{'s' * (more > 1)}" if more else ""
                what += f" ({placed(where(number, row))}{others})"
        return f"worker {worker} (pid {self._pids[worker]}) read {what}"

    def dead(self, message: str, where: Where | None = None) -> str:
        """What torch's `message` about dead workers means: which they are, and what they read last."""
        found = re.search(r"pid(?:\(s\))? ([\d, ]+)", message)
        pids = {int(pid) for pid in re.findall(r"\d+", found[1])} if found else set()
        told = [self.told(worker, where) for worker, pid in enumerate(self._pids) if pid in pids]
        return "; ".join(told) or "one that read no source yet"
