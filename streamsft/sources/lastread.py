"""Which source each worker process read last: what is told of one that was killed, which can tell nothing itself."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from ctypes import c_int64
from multiprocessing.sharedctypes import RawArray
from typing import final

__all__ = ["LastRead", "note"]

_noted: Callable[[str], None] | None = None


def note(source: str) -> None:
    """Say that this process reads `source` now; kept only in a worker process of a loader."""
    if _noted is not None:
        _noted(source)


@final
class LastRead:
    """Process id and last source of each worker, in memory that they share with the process that started them.

    Args:
        names: names of the sources.
        workers: number of workers.
    """

    def __init__(self, names: Sequence[str], workers: int) -> None:
        self._names = list(names)
        self._numbers = {name: number for number, name in enumerate(names)}
        self._pids = RawArray(c_int64, workers)
        self._last = RawArray(c_int64, [-1] * workers)

    def begin(self, worker: int) -> None:
        """Keep what this process, worker number `worker`, notes from now on."""
        global _noted
        self._pids[worker] = os.getpid()

        def keep(source: str) -> None:
            self._last[worker] = self._numbers[source]

        _noted = keep

    def dead(self, message: str) -> str:
        """What torch's `message` about dead workers means: which they are, and what they read last."""
        found = re.search(r"pid(?:\(s\))? ([\d, ]+)", message)
        pids = {int(pid) for pid in re.findall(r"\d+", found[1])} if found else set()
        told = [
            f"worker {worker} (pid {pid}) read {'no source yet' if number < 0 else f'source {self._names[number]!r}'}"
            for worker, (pid, number) in enumerate(zip(self._pids, self._last, strict=True))
            if pid in pids
        ]
        return "; ".join(told) or "one that read no source yet"
