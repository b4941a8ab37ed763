"""How the ranks of one start of a job find each other in a store that earlier starts have used."""

from __future__ import annotations

import time
from typing import Protocol

from streamsft.errors import CommError

__all__ = ["KeyStore", "joined"]

_PAUSE_S = 0.01
_TIMEOUT_S = 1800.0  # that of the stores of torch


class KeyStore(Protocol):
    """What is needed of a store of ``torch.distributed``."""

    def add(self, key: str, amount: int, /) -> int: ...

    def set(self, key: str, value: str, /) -> None: ...

    def get(self, key: str, /) -> bytes: ...

    def check(self, keys: list[str], /) -> bool: ...


def joined(store: KeyStore, rank: int, size: int, *, timeout: float = _TIMEOUT_S) -> int:
    """A number of this start of a job, the same on all ranks, and another one than of all starts before.

    No counter of restarts is at hand that is the same on all nodes. So each process counts the starts of its own rank.
    Rank 0 sends its count to the newest process of each rank, until they all have it. There are no processes of an
    earlier start any more when one of this start comes here: the agents see to that.

    Args:
        store: what all ranks of all starts share.
        rank: this rank.
        size: number of ranks.
        timeout: seconds that rank 0 waits for the others; how long these wait is the store's own affair.

    Raises:
        CommError: on rank 0, if some have not come in time.
    """
    mine = store.add(f"starts/{rank}", 1)
    if rank:
        start = int(store.get(f"start/{rank}/{mine}"))  # waits for it
        store.set(f"here/{start}/{rank}", "")
        return start
    sent: set[tuple[int, int]] = set()
    missing, end = list(range(1, size)), time.monotonic() + timeout
    while missing:
        for other in missing:
            newest = (other, store.add(f"starts/{other}", 0))
            if newest[1] and newest not in sent:
                store.set(f"start/{other}/{newest[1]}", str(mine))
                sent.add(newest)
        missing = [other for other in missing if not store.check([f"here/{mine}/{other}"])]
        if missing and time.monotonic() > end:
            shown = ", ".join(map(str, missing))
            raise CommError(
                f"ranks {shown} of {size} have not started within {timeout:g} s; see what holds them up there"
            )
        if missing:
            time.sleep(_PAUSE_S)
    return mine
