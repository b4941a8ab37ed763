"""The part of `scale.py` that is about row groups: which of them the processes of a job fetch, and how often."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from scaling import MEAN_LENGTH, SEQUENCE_LENGTH, SHUFFLE_GROUPS, TOKEN_BYTES

from streamsft.order.groups import GroupOrder
from streamsft.order.keys import derive_key, hash64
from streamsft.order.permutation import permute

MEMORY = 1 << 30  # io.memory, of each source
REQUESTS = 2  # of a row group: its object's version, and its bytes

Groups = np.ndarray[Any, Any]


class Reading(NamedTuple):
    """What one process reads of one source."""

    kept: float
    """Bytes of the row groups that it draws from at a time."""
    amplification: float
    """Rows fetched over rows drawn."""


def reading(rows: int, group_rows: int, lanes: int, mine: int, step_rows: float) -> Reading:
    """What a process reads of a store by row groups.

    Args:
        rows: rows of the store.
        group_rows: rows of a row group.
        lanes: lanes that the groups are dealt to.
        mine: lanes of the process, which take turns.
        step_rows: rows that a lane draws of the store in a step.
    """
    bounds = np.append(np.arange(0, rows, group_rows), rows)
    order = GroupOrder(seed=7, name="web", bounds=bounds, block=SHUFFLE_GROUPS)
    block = min(SHUFFLE_GROUPS, -(-order.groups // lanes))
    drawn = np.arange(block * min(group_rows, rows))
    together = max(1, round(step_rows))
    numbers = [_groups_of(order, lane, lanes, drawn) for lane in range(mine)]
    turns = (np.unique(lane[start : start + together]) for start in range(0, len(drawn), together) for lane in numbers)
    size = min(group_rows, rows) * MEAN_LENGTH * TOKEN_BYTES
    fetched = _fetched(turns, int(MEMORY / size)) * min(group_rows, rows)
    return Reading(mine * block * size, fetched / (len(drawn) * mine))


def reading_rows(rows: int, group_rows: int, draws: int) -> float:
    """Rows fetched over rows drawn of a store whose rows are shuffled over a whole pass, over its first draws."""
    key = hash64(derive_key(7, "web", "rows"), np.zeros(1, np.uint64))
    groups = permute(np.arange(draws), rows, key) // group_rows
    together = round(SEQUENCE_LENGTH / MEAN_LENGTH)
    turns = (np.unique(groups[start : start + together]) for start in range(0, draws, together))
    return _fetched(turns, int(MEMORY / (group_rows * MEAN_LENGTH * TOKEN_BYTES))) * group_rows / draws


def requests(tokens_per_second: float, group_rows: int, amplification: float) -> float:
    """Requests per second of the whole job."""
    return tokens_per_second / (group_rows * MEAN_LENGTH) * amplification * REQUESTS


def _groups_of(order: GroupOrder, lane: int, lanes: int, drawn: Groups) -> Groups:
    return np.searchsorted(order.bounds, order.located(lane, lanes, drawn)[1], "right") - 1


def _fetched(turns: Iterable[Groups], kept: int) -> int:
    """Groups fetched by a process that keeps the `kept` last used ones, as it does where it draws from all of them.

    `turns` are the groups that are read together, which are kept meanwhile.
    """
    cache: OrderedDict[int, None] = OrderedDict()
    count = 0
    for groups in turns:
        for group in groups.tolist():
            count += group not in cache
            cache[group] = None
            cache.move_to_end(group)
        while len(cache) > max(1, kept):
            cache.popitem(last=False)
    return count
