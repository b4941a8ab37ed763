"""Which rows of which sources make which packs: planned from lengths, before any token is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from streamsft.order.keys import derive_key, shuffled
from streamsft.order.sorting import stable_order
from streamsft.stream.blocks import FeedState
from streamsft.stream.costs import DrawCosts
from streamsft.stream.documents import Documents
from streamsft.stream.draws import Schedule, mixed
from streamsft.stream.feed import Feed, Feeds
from streamsft.stream.grouporders import GroupOrders
from streamsft.stream.mixture import Leaf, Mixture
from streamsft.stream.packing import Packing
from streamsft.stream.rows import DrawnRows, Rows
from streamsft.types import Bools, Ints

__all__ = ["Plan", "Window"]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Window:
    """The packs of one window, and where the lane stands behind it.

    Attributes:
        documents: all documents, sorted by pack.
        borders: number of documents before each pack, and of all.
        due: due time of each source, int64[sources].
        drawn: draws of each source, int64[sources].
    """

    documents: Documents
    borders: Sequence[int]
    due: Ints
    drawn: Ints

    @property
    def packs(self) -> int:
        return len(self.borders) - 1


_USUAL, _LONGEST = 1024, np.iinfo(np.int32).max


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
        self._streams = np.array([leaf.streams for leaf in self.leaves])
        policies = [None if packing is None else leaf.packed(packing).overflow for leaf in self.leaves]
        self._splits = np.array([policy == "split" for policy in policies])
        self.group_orders = GroupOrders(self.leaves, seed, lanes)
        self._rows = Rows(self.leaves, seed, lanes, self.group_orders.by_leaf)
        self._priced = Rows(self.leaves, seed, lanes, self.group_orders.by_leaf, ahead=0)
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
            packing=None if self.packing is None else self.leaves[at].packed(self.packing),
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
        costs = DrawCosts(lambda source, number: self._drawn(lane, source, number, feeds, self._priced), feeds)
        draws = self.schedule(step).draw(due, drawn, self.draws, costs.of)
        key = derive_key(self.seed, "window", lane, number)
        order = mixed([key], len(draws.source))[0]
        documents = self._named(self._drawn(lane, draws.source[order], draws.number[order], feeds))
        return self._packed(documents, [key], draws.due[None], self.group_orders.settled(lane, draws.drawn)[None])[0]

    @property
    def alike(self) -> bool:
        """Whether `windows` can plan: draws and states are told by counts alone, and each draw is one document."""
        return (
            self.mixture.unit == "samples"
            and self.packing is not None
            and not self._splits.any()
            and not (self.scheduled or self.streaming or self.group_orders.by_leaf)
        )

    def windows(self, lane: int, number: int, due: Ints, drawn: Ints, count: int) -> list[Window]:
        """Plan `count` windows from number `number` on at once, which takes less time; each as `window` plans it."""
        schedule = self.schedule(0)
        draws = schedule.draw(due, drawn, count * self.draws)
        keys = [derive_key(self.seed, "window", lane, number + at) for at in range(count)]
        order = (mixed(keys, self.draws) + np.arange(0, len(draws.source), self.draws)[:, None]).reshape(-1)
        documents = self._named(self._drawn(lane, draws.source[order], draws.number[order], {}))
        return self._packed(documents, keys, *schedule.states(due, drawn, draws, count))

    def _named(self, documents: Documents) -> Documents:
        """The documents with their sources by the numbers that the whole mix, with the one before an edit, gives."""
        return documents._replace(source=np.array(self.numbers, np.int64)[documents.source])

    def _drawn(self, lane: int, source: Ints, number: Ints, feeds: Feeds, rows: Rows | None = None) -> Documents:
        """The documents that draws are (int64[draws] each), after the overflow policy, each in pack 0."""
        return self._cut(self._located(lane, source, number, feeds, rows), feeds)

    def _located(self, lane: int, source: Ints, number: Ints, feeds: Feeds, rows: Rows | None = None) -> Documents:
        """The rows of the draws, whole, each in pack 0."""
        rows = rows or self._rows
        found = DrawnRows(*np.empty((5, len(source)), np.int64)) if feeds else rows.of(lane, source, number)
        if feeds:
            indexed = np.flatnonzero(~self._streams[source])
            if len(indexed):
                looked_up = rows.of(lane, source[indexed], number[indexed])
                for column, values in zip(found, looked_up, strict=True):
                    column[indexed] = values
            for at, feed in feeds.items():
                mine = np.flatnonzero(source == at)
                fed = feed.rows(number[mine].tolist())
                found.stored[mine] = number[mine] * self.lanes + lane
                found.row[mine] = [one.row for one in fed]
                found.pass_index[mine] = [one.pass_index for one in fed]
                found.length[mine] = [len(one.input_ids) for one in fed]
                found.labels_from[mine] = -1
        zeros, ones = np.zeros(len(source), np.int64), np.ones(len(source), np.int64)
        return Documents(
            source=source,
            stored=found.stored,
            row=found.row,
            pass_index=found.pass_index,
            start=zeros,
            first=ones,
            length=found.length,
            cut=zeros,
            labels_from=found.labels_from,
            pack=zeros,
        )

    def _cut(self, documents: Documents, feeds: Feeds) -> Documents:
        """The documents after the overflow policy."""
        if self.packing is None:
            return documents
        limit = self.packing.sequence_length
        kept = np.minimum(documents.length, limit)
        if not self._splits.any() or documents.length.max() <= limit:
            return documents._replace(length=kept, cut=documents.length - kept)
        kept = np.where(self._splits[documents.source], documents.length, kept)
        return self._split(documents._replace(length=kept, cut=documents.length - kept), limit, feeds)

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
        return self.leaves[leaf].read(stored)[1][0]

    def _packed(self, documents: Documents, keys: Sequence[int], due: Ints, drawn: Ints) -> list[Window]:
        """Windows of equally many documents with these keys and ends (int64[windows, sources] each), packed.

        Best-fit hands out long documents first, so a window's packs are permuted; within a pack documents stay in
        draw order.
        """
        count = len(documents.length) // len(keys)
        packs = np.empty((len(keys), count), np.int64)
        for row, key, lengths in zip(packs, keys, documents.length.reshape(packs.shape), strict=True):
            row[:] = np.arange(count) if self.packing is None else self._packs(self.packing, key, lengths)
        order = stable_order(packs, count)
        order += np.arange(0, packs.size, count)[:, None]
        documents = documents._replace(pack=packs.reshape(-1)).take(order.reshape(-1))
        windows = []
        for at, number in enumerate((packs.max(axis=1) + 1).tolist()):
            mine = documents.take(slice(at * count, (at + 1) * count))
            borders = mine.pack.searchsorted(np.arange(number + 1)).tolist()
            windows.append(Window(documents=mine, borders=borders, due=due[at], drawn=drawn[at]))
        return windows

    def _packs(self, packing: Packing, key: int, lengths: Ints) -> Ints:
        """Pack of each document of the window with this key."""
        pack = packing.pack(lengths)
        if packing.best_fit:
            pack = shuffled(derive_key(key, "packs"), int(pack.max()) + 1)[pack]
        return pack
