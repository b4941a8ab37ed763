"""What draws cost where shares count tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import numpy as np

from streamsft.stream.documents import Documents
from streamsft.stream.feed import Feeds
from streamsft.types import Ints

__all__ = ["DrawCosts"]

_AHEAD = 64  # draws


@final
class DrawCosts:
    """Tokens that each draw of a lane takes in its packs, looked up for some draws of a source at a time.

    Args:
        documents: gives the documents that draws of the sources numbered so are, after the overflow policy, from these
            numbers and the draws' own (int64[draws] each).
        feeds: cursors over the streaming sources, which are not read ahead.
    """

    def __init__(self, documents: Callable[[Ints, Ints], Documents], feeds: Feeds) -> None:
        self._documents = documents
        self._feeds = feeds
        self._known: dict[int, tuple[int, list[int]]] = {}

    def of(self, leaf: int, number: int) -> int:
        """Tokens of draw `number` of a leaf."""
        first, costs = self._known.get(leaf, (0, []))
        if not first <= number < first + len(costs):
            if leaf in self._feeds and (whole := self._uncut(leaf, number)):
                return whole
            first, costs = number, self._look_up(leaf, number)
            self._known[leaf] = first, costs
        return costs[number - first]

    def _uncut(self, leaf: int, number: int) -> int:
        """Tokens of a streamed row; 0 if it must be cut up to tell."""
        length, packing = len(self._feeds[leaf].one(number).input_ids), self._feeds[leaf].packing
        if packing is None or length <= packing.sequence_length:
            return length
        return 0 if packing.overflow == "split" else packing.sequence_length

    def _look_up(self, leaf: int, first: int) -> list[int]:
        count = 1 if leaf in self._feeds else _AHEAD
        cut = self._documents(np.full(count, leaf), np.arange(first, first + count))
        costs = np.zeros(count, np.int64)
        np.add.at(costs, np.cumsum(cut.first) - 1, cut.length)
        return costs.tolist()
