"""How the ranks of one start of a job find each other below ``torchrun``, whatever earlier starts have left."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

__all__ = ["joined", "meeting"]

_PAUSE_S = 0.01


def meeting() -> dict[str, Any]:
    """What `torch.distributed.init_process_group` is to be given: nothing, or a store of this start's own.

    The agents of ``torchrun`` keep one store over all restarts of a job. What ranks that are dead wrote into it looks
    like what the new ones are about to write: one would connect to an address where nobody is. Collective.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return {}
    from torch.distributed.distributed_c10d import PrefixStore, rendezvous

    store, rank, size = next(rendezvous("env://"))
    start = joined(PrefixStore("streamsft", store), rank, size)
    return {"store": PrefixStore(f"streamsft/{start}", store), "rank": rank, "world_size": size}


def joined(store: Store, rank: int, size: int) -> int:
    """A number of this start of a job, the same on all ranks, and another one than of all starts before.

    No counter of restarts is at hand that is the same on all nodes. So each process counts the starts of its own rank.
    Rank 0 sends its count to the newest process of each rank, until they all have it. There are no processes of an
    earlier start any more when one of this start comes here: the agents see to that.

    Args:
        store: what all ranks of all starts share.
        rank: this rank.
        size: number of ranks.
    """
    mine = store.add(f"starts/{rank}", 1)
    if rank:
        start = int(store.get(f"start/{rank}/{mine}"))  # waits for it
        store.set(f"here/{start}/{rank}", "")
        return start
    sent: set[tuple[int, int]] = set()
    missing = list(range(1, size))
    while missing:
        for other in missing:
            newest = (other, store.add(f"starts/{other}", 0))
            if newest[1] and newest not in sent:
                store.set(f"start/{other}/{newest[1]}", str(mine))
                sent.add(newest)
        missing = [other for other in missing if not store.check([f"here/{mine}/{other}"])]
        if missing:
            time.sleep(_PAUSE_S)
    return mine
