"""The orders of those sources of a mix that are read by groups, and what these sources are told of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from streamsft.order.groups import GroupOrder
from streamsft.stream.documents import Documents
from streamsft.stream.mixture import Leaf
from streamsft.types import Ints

__all__ = ["GroupOrders"]


@final
class GroupOrders:
    """The order of each leaf that is shuffled by groups, over the lanes of a plan.

    Args:
        leaves: the sources of the mix.
        seed: seed of every order.
        lanes: number of lanes that groups are dealt to.

    Attributes:
        by_leaf: the orders by the number of their leaf; empty where rows are shuffled over a whole pass.
    """

    def __init__(self, leaves: Sequence[Leaf], seed: int, lanes: int) -> None:
        self._leaves = leaves
        self._lanes = lanes
        found = {at: leaf.group_order(seed) for at, leaf in enumerate(leaves)}
        self.by_leaf: Mapping[int, GroupOrder] = {at: order for at, order in found.items() if order is not None}

    def settled(self, lane: int, drawn: Ints) -> Ints:
        """Draw counts behind windows, int64[sources] or int64[windows, sources], with codes in their one form."""
        settled = drawn.copy()
        for row in settled.reshape(-1, len(self._leaves)):  # views
            for at, order in self.by_leaf.items():
                row[at] = order.settled(lane, self._lanes, int(row[at]))
        return settled

    def announce(self, lane: int, documents: Documents, drawn: Ints, numbers: Sequence[int]) -> None:
        """Tell sources that `lane` reads `documents` of them, then what lies behind `drawn`.

        Args:
            lane: which lane.
            documents: what it reads now.
            drawn: where it stands behind them, int64[sources].
            numbers: by which number documents name each leaf.
        """
        for at, order in self.by_leaf.items():
            stored = documents.stored[documents.source == numbers[at]]
            self._leaves[at].announce(order, lane, self._lanes, stored, int(drawn[at]))
