"""Which rows of which sources make which packs: planned from lengths, before any token is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np

from streamsft.order.keys import derive_key, hash64, shuffled
from streamsft.order.permutation import permute
from streamsft.stream.documents import Documents
from streamsft.stream.draws import Schedule, mixed
from streamsft.stream.feed import Feed, FeedState
from streamsft.stream.mixture import Leaf, Mixture
from streamsft.stream.packing import Packing
from streamsft.types import Bools, Ints

__all__ = ["Feeds", "Plan", "Window"]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Window:
    """The packs of one window, and where the lane stands behind it; `due` and `drawn` are int64[sources]."""

    documents: Documents
    packs: int
    due: Ints
    drawn: Ints


_USUAL, _LONGEST = 1024, np.iinfo(np.int32).max

Feeds = Mapping[int, Feed]
"""Cursors over the streaming sources of one lane, by leaf number."""


@final
class Plan:
    """The order of a mix: a pure function of seed, names, shares, lengths and packing.

    Args:
        mixture: the sources and their weights.
        seed: seed of every random choice.
        packing: how documents are packed; None leaves each document its own pack.
        window: draws per window when `packing` is None.
        lanes: number of independent streams that divide each source's rows.

    Cost: about a millisecond per window of 1,024 draws; memory O(sources + window).
    """

    def __init__(
        self, mixture: Mixture, *, seed: int, packing: Packing | None, window: int = 1024, lanes: int = 1
    ) -> None:
        self.mixture = mixture
        self.leaves = mixture.leaves
        self.seed = seed
        self.packing = packing
        self.draws = packing.window if packing else window
        self.lanes = lanes
        self.names = [leaf.name for leaf in self.leaves]
        self.numbers = list(range(len(self.leaves)))
        """By which number documents name each leaf; another plan's leaves may stand beside them."""
        self.scheduled = mixture.weights.scheduled
        self.streaming = [at for at, leaf in enumerate(self.leaves) if leaf.streams]
        self.group_orders = {
            at: order for at, leaf in enumerate(self.leaves) if (order := leaf.group_order(seed)) is not None
        }
        self._rows = np.array([leaf.rows or 1 for leaf in self.leaves], np.int64)
        self._in_order = np.array([not leaf.shuffle for leaf in self.leaves])
        self._row_keys = np.array([derive_key(seed, name, "rows") for name in self.names], np.uint64)
        self._schedules: dict[int, Schedule] = {}
        for at in self.streaming:  # once, before a worker process would do it again
            self.leaves[at].streamed.reader.units(lanes)

    def schedule(self, step: int) -> Schedule:
        """The scheduling of draws by the weights at a step."""
        step = step if self.scheduled else 0
        if step not in self._schedules:
            shares = self.mixture.weights.shares(step)
            self._schedules = {step: Schedule([shares[name] for name in self.names], self.mixture.unit)}
        return self._schedules[step]

    def first_due(self, lane: int, step: int = 0) -> Ints:
        """Due times before the first draw of `lane` under the weights of a step, int64[sources]."""
        costs = None
        if self.mixture.unit == "tokens":
            costs = [self._usual_length(leaf) for leaf in self.leaves]
        return self.schedule(step).phases(self.seed, self.names, lane, costs)

    def same(self, leaf: Leaf) -> int | None:
        """Number of the leaf with the name, contents and order of `leaf`, which is another plan's; None without one."""
        at = self.names.index(leaf.name) if leaf.name in self.names else None
        return at if at is not None and self.leaves[at].identity == leaf.identity else None

    def _usual_length(self, leaf: Leaf) -> int:
        """Tokens that a draw takes or so: how far apart lanes should start."""
        limit = self.packing.sequence_length if self.packing else None
        if leaf.streams:
            return max(1, (limit or _USUAL) // 4)
        lengths = leaf.indexed.lengths if leaf.usable is None else leaf.indexed.lengths[leaf.usable]
        return max(1, int(np.minimum(lengths, limit or _LONGEST).sum(dtype=np.int64)) // len(lengths))

    def feed(self, at: int, lane: int, drawn: int, state: FeedState) -> Feed:
        """A cursor over streaming source `at` on `lane`, behind `drawn` draws, at `state`."""
        return Feed(
            self.leaves[at].streamed,
            seed=self.seed,
            lane=lane,
            lanes=self.lanes,
            packing=self.packing,
            number=drawn,
            state=state,
        )

    def window(
        self, lane: int, number: int, due: Ints, drawn: Ints, feeds: Feeds | None = None, step: int = 0
    ) -> Window:
        """Plan window `number` of `lane` from its due times and draw counts (int64[sources] each).

        Rows of streaming sources are read, from `feeds`, as far as they are drawn. Weights are those of `step`.
        """
        feeds = feeds or {}
        draws = self.schedule(step).draw(due, drawn, self.draws, _Costs(self, lane, feeds).of)
        found = self._located(lane, draws.source, draws.number, feeds)
        key = derive_key(self.seed, "window", lane, number)
        found = found.take(mixed(key, len(draws.source)))
        documents, packs = self._packed(self._cut(found, feeds), derive_key(key, "packs"))
        documents = documents._replace(source=np.array(self.numbers, np.int64)[documents.source])
        return Window(documents=documents, packs=packs, due=draws.due, drawn=self._settled(lane, draws.drawn))

    def _settled(self, lane: int, drawn: Ints) -> Ints:
        """Draw counts behind a window; of a source that is read by groups, where the lane stands in its order."""
        for at, order in self.group_orders.items():
            drawn[at] = order.settled(lane, self.lanes, int(drawn[at]))
        return drawn

    def announce(self, lane: int, window: Window) -> None:
        """Tell sources that are read by groups what `lane` reads of them in `window`, then behind it."""
        for at, order in self.group_orders.items():
            stored = window.documents.stored[window.documents.source == self.numbers[at]]
            self.leaves[at].announce(order, lane, self.lanes, stored, int(window.drawn[at]))

    def _located(self, lane: int, source: Ints, number: Ints, feeds: Feeds) -> Documents:
        """The rows of the draws, whole, each in pack 0."""
        rows = self._rows[source]
        codes = number
        if self.group_orders:
            number = np.where(np.isin(source, list(self.group_orders)), 0, number)
        position = number * self.lanes + lane
        pass_index, place = np.divmod(position, rows)
        if len(feeds) < len(self.leaves):
            keys = hash64(self._row_keys[source], pass_index.astype(np.uint64))
            stored = np.where(self._in_order[source], place, permute(place, rows, keys))
        else:
            stored = place
        length, row = np.empty(len(source), np.int64), np.empty(len(source), np.int64)
        for at, leaf in enumerate(self.leaves):
            mine = np.flatnonzero(source == at)
            if leaf.streams:
                fed = feeds[at].rows(number[mine].tolist())
                stored[mine] = position[mine]
                length[mine] = [len(one.input_ids) for one in fed]
                row[mine] = [one.row for one in fed]
                pass_index[mine] = [one.pass_index for one in fed]
                continue
            if at in self.group_orders:
                order = self.group_orders[at]
                pass_index[mine], stored[mine] = order.located(lane, self.lanes, codes[mine])
            if leaf.usable is not None:
                stored[mine] = leaf.usable[stored[mine]]
            length[mine] = leaf.indexed.lengths[stored[mine]]
            row[mine] = leaf.indexed.row_numbers[stored[mine]]
        zeros, ones = np.zeros(len(source), np.int64), np.ones(len(source), np.int64)
        return Documents(source, stored, row, pass_index, zeros, ones, length, zeros, zeros)

    def _cut(self, documents: Documents, feeds: Feeds) -> Documents:
        """The documents after the overflow policy."""
        if self.packing is None:
            return documents
        limit = self.packing.sequence_length
        if self.packing.overflow == "split" and documents.length.max() > limit:
            return self._split(documents, limit, feeds)
        kept = np.minimum(documents.length, limit)
        return documents._replace(length=kept, cut=documents.length - kept)

    def _split(self, documents: Documents, limit: int, feeds: Feeds) -> Documents:
        """Cut over-long documents into fragments, leaving out those with nothing supervised."""
        pieces = -(-documents.length // limit)
        whole = np.repeat(np.arange(len(pieces)), pieces)
        number = np.arange(len(whole)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        start = number * limit
        length = np.minimum(documents.length[whole] - start, limit)
        keep = np.ones(len(whole), np.bool_)
        for at in np.flatnonzero(pieces > 1).tolist():
            supervised = self._mask(documents, at, feeds).copy()
            supervised[0] = False
            fragments = np.add.reduceat(supervised, np.arange(0, len(supervised), limit), dtype=np.int64)
            keep[whole == at] = fragments > 0
        whole = whole[keep]
        first = np.diff(whole, prepend=-1).astype(np.bool_).astype(np.int64)
        return documents.take(whole)._replace(start=start[keep], length=length[keep], first=first)

    def _mask(self, documents: Documents, at: int, feeds: Feeds) -> Bools:
        """Loss mask of the whole row of document `at`."""
        leaf, stored = int(documents.source[at]), documents.stored[at : at + 1]
        if leaf in feeds:
            return feeds[leaf].rows([int(stored[0]) // self.lanes])[0].loss_mask
        return self.leaves[leaf].indexed.read(stored)[1][0]

    def _packed(self, documents: Documents, key: int) -> tuple[Documents, int]:
        """Documents sorted by pack, and the number of packs.

        Best-fit hands out long documents first, so its packs are permuted; within a pack documents
        stay in draw order.
        """
        count = len(documents.length)
        if self.packing is None:
            return documents._replace(pack=np.arange(count)), count
        pack = self.packing.pack(documents.length)
        packs = int(pack.max()) + 1
        if self.packing.best_fit:
            pack = shuffled(key, packs)[pack]
        order = np.argsort(pack, kind="stable")
        return documents._replace(pack=pack).take(order), packs


@final
class _Costs:
    """Tokens that each draw of a lane takes in its packs, looked up for some draws of a source at a time."""

    def __init__(self, plan: Plan, lane: int, feeds: Feeds) -> None:
        self._plan = plan
        self._lane = lane
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
        length, packing = len(self._feeds[leaf].rows([number])[0].input_ids), self._plan.packing
        if packing is None or length <= packing.sequence_length:
            return length
        return 0 if packing.overflow == "split" else packing.sequence_length

    def _look_up(self, leaf: int, first: int) -> list[int]:
        count = 1 if leaf in self._feeds else _COSTS_AHEAD  # a streaming source is not read ahead
        numbers = np.arange(first, first + count)
        found = self._plan._located(self._lane, np.full(count, leaf), numbers, self._feeds)
        cut = self._plan._cut(found, self._feeds)
        costs = np.zeros(count, np.int64)
        np.add.at(costs, np.cumsum(cut.first) - 1, cut.length)
        return costs.tolist()


_COSTS_AHEAD = 64
