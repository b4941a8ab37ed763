"""Which rank gets which packs of a step, so that all of them take about as long.

A step waits for its slowest rank. Packs are equally long but not equally dear: attention costs the square of each
document's length, so one long document costs as much as many packs of short ones. Exchanging packs within a step
changes nothing of what the step learns from.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Literal

import numpy as np

from streamsft.stream.documents import Stretch
from streamsft.types import Ints

__all__ = ["Balance", "balanced_ranks", "balanced_share", "pack_costs"]

Balance = Literal["none", "tokens", "attention"]
"""What is evened out over the ranks of a step: nothing, tokens, or the sum of the squared lengths of documents."""


def pack_costs(lengths: Ints, firsts: Ints | Sequence[int], balance: Balance) -> Ints:
    """What each pack costs, int64[packs].

    Args:
        lengths: tokens of the packs' documents, int64[documents].
        firsts: number of documents before each pack; none is empty.
        balance: what counts.
    """
    costs: Ints = np.add.reduceat(lengths * lengths if balance == "attention" else lengths, firsts)
    return costs


def balanced_ranks(costs: Ints, ranks: int) -> Ints:
    """The rank of each pack, equally many packs each, int64[packs]; a pure function.

    The dearest first, each to the rank with the least so far that still has room (Graham's longest processing time
    first, 1969, with a bound on the number); then the dearest and the cheapest rank exchange the two packs that even
    them out most, as long as that helps. Equal costs keep their order, and of equal ranks the first is taken.

    Args:
        costs: int64[packs].
        ranks: a divisor of their number.
    """
    room = [len(costs) // ranks] * ranks
    result = np.empty(len(costs), np.int64)
    loads = [(0, rank) for rank in range(ranks)]
    for pack in np.argsort(-costs, kind="stable").tolist():
        load, rank = heapq.heappop(loads)
        result[pack] = rank
        room[rank] -= 1
        if room[rank]:
            heapq.heappush(loads, (load + int(costs[pack]), rank))
    while _exchanged(costs, result, ranks):
        pass
    return result


def _exchanged(costs: Ints, chosen: Ints, ranks: int) -> bool:
    """Exchange one pack of the dearest rank for one of the cheapest; False if none would bring the two closer."""
    loads = np.bincount(chosen, costs, ranks).astype(np.int64)
    most, least = int(loads.argmax()), int(loads.argmin())
    gap = int(loads[most] - loads[least])
    giving, taking = np.flatnonzero(chosen == most), np.flatnonzero(chosen == least)
    left = np.abs(gap - 2 * (costs[giving][:, None] - costs[taking]))
    at = int(left.argmin())
    if left.flat[at] >= gap:
        return False
    mine, theirs = divmod(at, len(taking))
    chosen[giving[mine]], chosen[taking[theirs]] = least, most
    return True


def balanced_share(stretches: Sequence[Stretch], rank: int, ranks: int, balance: Balance) -> list[Stretch]:
    """One rank's packs of those of a whole step, in their order.

    Args:
        stretches: all packs of the step.
        rank: which rank.
        ranks: of how many.
        balance: what is evened out.
    """
    costs = []
    for documents, borders, first, stop in stretches:
        start = borders[first]
        lengths = documents.length[start : borders[stop]]
        costs.append(pack_costs(lengths, np.array(borders[first:stop]) - start, balance))
    mine = balanced_ranks(np.concatenate(costs), ranks) == rank
    share = []
    before = 0
    for documents, borders, first, stop in stretches:
        chosen = mine[before : before + stop - first]
        before += stop - first
        for begin, end in np.flatnonzero(np.diff(chosen, prepend=False, append=False)).reshape(-1, 2).tolist():
            share.append(Stretch(documents, borders, first + begin, first + end))
    return share
