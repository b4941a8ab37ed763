"""Several ranks as threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from streamsft.errors import CommError

__all__ = ["ThreadComm"]

T = TypeVar("T")


class _Meeting:
    """Where the threads of one `ThreadComm` group put their arrays."""

    def __init__(self, size: int, timeout: float) -> None:
        self.slots: list[NDArray[Any] | None] = [None] * size
        self.barrier = threading.Barrier(size, timeout=timeout)


@final
class ThreadComm:
    """One rank of a group whose ranks are threads of this process.

    A rank that stays away for longer than the timeout, or whose function raises under `run`, ends the waiting
    of the others with `CommError`, where a process group would hang.
    """

    def __init__(self, rank: int, meeting: _Meeting) -> None:
        self.rank = rank
        self.size = len(meeting.slots)
        self._meeting = meeting

    @classmethod
    def group(cls, size: int, timeout: float = 60.0) -> list[ThreadComm]:
        """The `size` ranks of a new group; each is to be used in a thread of its own."""
        meeting = _Meeting(size, timeout)
        return [cls(rank, meeting) for rank in range(size)]

    @classmethod
    def run(cls, size: int, function: Callable[[ThreadComm], T], timeout: float = 60.0) -> list[T]:
        """Call `function(comm)` in `size` threads; the results in rank order, or the first rank's own exception."""
        results: dict[int, T] = {}
        failures: dict[int, BaseException] = {}

        def body(comm: ThreadComm) -> None:
            try:
                results[comm.rank] = function(comm)
            except BaseException as error:  # handed to the caller below
                failures[comm.rank] = error
                comm._meeting.barrier.abort()

        threads = [threading.Thread(target=body, args=(comm,), daemon=True) for comm in cls.group(size, timeout)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            broken = {r for r, e in failures.items() if isinstance(e.__cause__, threading.BrokenBarrierError)}
            raise failures[min(set(failures) - broken or broken)]
        return [results[rank] for rank in range(size)]

    def all_gather(self, array: NDArray[Any]) -> NDArray[Any]:
        meeting = self._meeting
        meeting.slots[self.rank] = np.array(array)
        self.barrier()
        arrays = [a for a in meeting.slots if a is not None]
        kinds = {(a.shape, a.dtype.str) for a in arrays}
        everyone = np.stack(arrays) if len(kinds) == 1 else None
        self.barrier()  # nobody writes its next array before all have read this one
        if everyone is None:
            raise CommError(f"all_gather: the ranks gave arrays of different shape or dtype: {sorted(kinds)}")
        return everyone

    def barrier(self) -> None:
        try:
            self._meeting.barrier.wait()
        except threading.BrokenBarrierError as error:
            raise CommError(f"rank {self.rank} of {self.size}: another rank failed or did not come") from error
