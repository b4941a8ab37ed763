"""Which rows the draws of indexable sources give: looked up for some windows at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, final

import numpy as np

from streamsft.order.groups import GroupOrder
from streamsft.order.keys import derive_key, hash64
from streamsft.order.permutation import LARGEST_TABLE, permute
from streamsft.sources.base import IdsSource
from streamsft.stream.mixture import Leaf
from streamsft.types import Ints

__all__ = ["DrawnRows", "Rows"]

_AHEAD = 8192  # draws looked up together, which takes hardly longer than a quarter of them
_PASSED = 1 << 18  # rows of a small source to sort, on all lanes, for what is looked up beyond what is asked for


class DrawnRows(NamedTuple):
    """The rows of some draws; int64[draws] each."""

    stored: Ints
    """Stored row in the source."""
    row: Ints
    """Its number in the source's input order."""
    pass_index: Ints
    """How often the source had been gone through before."""
    length: Ints
    """Tokens of the row."""
    labels_from: Ints
    """Its first supervised token if all behind it are supervised and its ids can be read alone; else -1."""


class _Known(NamedTuple):
    """Draws of a lane that were looked up: per source those from `first` to before `stop`, lying from `offset` on."""

    first: Ints
    stop: Ints
    offset: Ints
    columns: Ints
    """`DrawnRows` as one array, int64[5, draws]."""


@final
class Rows:
    """From draws to rows, a pure function of seed, names and contents.

    Args:
        leaves: the sources; those that stream are never asked for.
        seed: seed of the order of each pass.
        lanes: number of lanes that divide each source's rows.
        group_orders: the order of each source that is read by groups, by its number; its draws are numbered by code.
        ahead: how many draws to look up together at least; 0 looks up what is asked for alone.
    """

    def __init__(
        self,
        leaves: Sequence[Leaf],
        seed: int,
        lanes: int,
        group_orders: Mapping[int, GroupOrder],
        ahead: int = _AHEAD,
    ) -> None:
        self._leaves = leaves
        self._group_orders = group_orders
        self._lanes = lanes
        self._ahead = ahead
        self._size = np.array([leaf.rows or 1 for leaf in leaves], np.int64)
        self._in_order = np.array([not leaf.shuffle for leaf in leaves])
        self._keys = np.array([derive_key(seed, leaf.name, "rows") for leaf in leaves], np.uint64)
        self._ids_alone = [leaf.source if isinstance(leaf.source, IdsSource) else None for leaf in leaves]
        self._most = np.where(self._size <= LARGEST_TABLE, _PASSED // lanes, np.iinfo(np.int64).max)
        self._known: dict[int, _Known] = {}

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_known": {}}

    def of(self, lane: int, source: Ints, number: Ints) -> DrawnRows:
        """The rows of draws `number` of each `source` on a lane (int64[draws] each)."""
        known = self._known.get(lane)
        if known is None or not ((known.first[source] <= number) & (number < known.stop[source])).all():
            known = self._known[lane] = self._look_up(lane, source, number)
        return DrawnRows(*known.columns[:, (known.offset - known.first)[source] + number])

    def _look_up(self, lane: int, source: Ints, number: Ints) -> _Known:
        """These draws and, if they are the next of their sources, as many of the following as come with them."""
        first = np.full(len(self._leaves), np.iinfo(np.int64).max)
        stop = np.zeros(len(self._leaves), np.int64)
        np.minimum.at(first, source, number)
        np.maximum.at(stop, source, number + 1)
        first = np.minimum(first, stop)
        ahead = np.minimum((stop - first) * max(1, self._ahead // len(source)), self._most)
        count = np.maximum(stop - first, ahead)
        offset = np.cumsum(count) - count
        all_sources = np.repeat(np.arange(len(count)), count)
        all_numbers = np.arange(len(all_sources)) - np.repeat(offset - first, count)
        return _Known(first, first + count, offset, self._located(lane, all_sources, all_numbers, count))

    def _located(self, lane: int, source: Ints, number: Ints, count: Ints) -> Ints:
        """`DrawnRows` of draws that are sorted by source, of which there are `count` each, int64[5, draws]."""
        size = self._size[source]
        codes = number
        if self._group_orders:
            number = np.where(np.isin(source, list(self._group_orders)), 0, number)
        pass_index, place = np.divmod(number * self._lanes + lane, size)
        passes = np.concatenate(([0], np.flatnonzero(np.diff(source) | np.diff(pass_index)) + 1))  # where each begins
        keys = hash64(self._keys[source[passes]], pass_index[passes].astype(np.uint64))
        keys = keys.repeat(np.diff(passes, append=len(source)))
        found = np.empty((5, len(source)), np.int64)
        found[0] = np.where(self._in_order[source], place, permute(place, size, keys))
        found[2] = pass_index
        stop = 0
        for at, (leaf, rows) in enumerate(zip(self._leaves, count.tolist(), strict=True)):
            ids_alone = self._ids_alone[at]
            mine = slice(stop, stop + rows)
            stop += rows
            if not rows:
                continue
            if at in self._group_orders:
                found[2, mine], found[0, mine] = self._group_orders[at].located(lane, self._lanes, codes[mine])
            if leaf.usable is not None:
                found[0, mine] = leaf.usable[found[0, mine]]
            stored = found[0, mine]
            found[1, mine] = leaf.indexed.row_numbers[stored]
            found[3, mine] = leaf.indexed.lengths[stored]
            found[4, mine] = -1
            if ids_alone is not None:
                first = ids_alone.first_supervised[stored]
                to_the_end = ids_alone.supervised[stored] == found[3, mine] - first
                found[4, mine][to_the_end] = first[to_the_end]
        return found
