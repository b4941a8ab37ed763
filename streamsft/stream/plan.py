"""Which rows of which sources make which packs: planned from lengths, before any token is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

import numpy as np

from streamsft.errors import DataError, EmptySourceError
from streamsft.order.keys import derive_key, hash64, shuffled
from streamsft.order.permutation import permute
from streamsft.sources.base import Source
from streamsft.stream.draws import Schedule, mixed
from streamsft.stream.packing import Packing
from streamsft.types import Bools, Ints

__all__ = ["Documents", "Leaf", "Plan", "Window"]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Leaf:
    """A source as a mix draws from it.

    Attributes:
        source: where the rows are.
        share: its part of the draws of the whole mix, in (0, 1].
        weight: its weight as given, for messages and state; None if in proportion to rows.
        groups: names of the mixes it is in, outermost first.
        shuffle: whether each pass has an order of its own, or the order of the input.
        usable: stored rows that can be drawn, ascending, int64[m]; None where all can.
        dropped: rows that cannot be drawn under this packing, by reason.
    """

    source: Source
    share: float
    weight: float | None
    groups: tuple[str, ...]
    shuffle: bool = True
    usable: Ints | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def rows(self) -> int:
        """Rows that can be drawn: the length of a pass."""
        return len(self.source) if self.usable is None else len(self.usable)


def usable_rows(source: Source, packing: Packing | None) -> tuple[Ints | None, dict[str, int]]:
    """Stored rows that leave something to train on, and how many do not, by reason.

    Args:
        source: the source.
        packing: its sequence length and overflow policy; None when documents are not cut.

    Raises:
        DataError: ``overflow: error`` and a row is longer than a pack; names source, file and row.
        EmptySourceError: no row is left.
    """
    lengths, first = source.lengths, source.first_supervised
    empty = first >= lengths
    too_long = np.zeros(len(lengths), np.bool_)
    if packing is not None:
        over = lengths > packing.sequence_length
        if packing.overflow == "error" and over.any():
            at = int(np.argmax(over))
            raise DataError(
                f"source {source.name!r}, {source.origin(at)}: {lengths[at]} tokens do not fit a pack of "
                f"{packing.sequence_length} slots; raise sequence_length or choose overflow: truncate, drop or split"
            )
        if packing.overflow == "drop":
            too_long = over & ~empty
        elif packing.overflow == "truncate":
            empty = empty | (first >= packing.sequence_length)
        elif packing.overflow == "split":
            empty = empty | _unlabelled_in_fragments(source, packing.sequence_length)
    dropped = {"nothing_supervised": int(empty.sum()), "too_long": int(too_long.sum())}
    dropped = {reason: count for reason, count in dropped.items() if count}
    usable = np.flatnonzero(~(empty | too_long)) if dropped else None
    if len(lengths) == sum(dropped.values()):
        why = ", ".join(f"{count} {reason}" for reason, count in dropped.items()) or "it holds no row"
        limit = "" if packing is None else f" at sequence_length {packing.sequence_length}"
        raise EmptySourceError(f"source {source.name!r} has no row that could be drawn{limit}: {why}")
    return usable, dropped


def _unlabelled_in_fragments(source: Source, limit: int) -> Bools:
    """Rows cut into fragments of `limit` tokens whose every supervised token is a fragment's first, bool[rows].

    Few rows can be such: these alone are read.
    """
    lengths, first = source.lengths, source.first_supervised
    borders = (lengths - 1) // limit
    result: Bools = (borders > 0) & (first < lengths) & (first % limit == 0) & (source.supervised <= borders)
    stored = np.flatnonzero(result)
    if len(stored):
        result[stored] = [_labels_per_fragment(mask, limit).sum() == 0 for mask in source.read(stored)[1]]
    return result


def _labels_per_fragment(mask: Bools, limit: int) -> Ints:
    """Supervised tokens of each fragment but for its first, int64[fragments]."""
    labelled = np.array(mask, np.bool_)
    labelled[::limit] = False
    return np.add.reduceat(labelled, np.arange(0, len(labelled), limit), dtype=np.int64)


class Documents(NamedTuple):
    """Documents in pack order; each array has one entry per document."""

    source: Ints
    """Number of the leaf, int64[n]."""
    stored: Ints
    """Stored row in that source, int64[n]."""
    row: Ints
    """That row's number in the source's input order, int64[n]."""
    pass_index: Ints
    """How often the source had been gone through before, int64[n]."""
    start: Ints
    """First token taken of the row, int64[n]; above 0 in later fragments only."""
    first: Ints
    """1 where a draw's first document stands, int64[n]; 0 in the further fragments of a split row."""
    length: Ints
    """Tokens taken, int64[n]."""
    cut: Ints
    """Tokens that truncation leaves out behind them, int64[n]."""
    pack: Ints
    """Number of the pack, int64[n], never decreasing."""

    def take(self, keep: Ints | Bools | slice) -> Documents:
        """The documents that `keep` selects."""
        return Documents(*(column[keep] for column in self))

    def packs(self, start: int, stop: int) -> Documents:
        """The documents of packs `start` to `stop` (exclusive), packs numbered from 0 again."""
        first, last = np.searchsorted(self.pack, (start, stop)).tolist()
        part = self.take(slice(first, last))
        return part._replace(pack=part.pack - start)

    @staticmethod
    def join(parts: Sequence[tuple[Documents, int]]) -> Documents:
        """Documents of several (documents, number of packs) parts, packs numbered on."""
        if len(parts) == 1:
            return parts[0][0]
        offsets = np.cumsum([0, *(count for _, count in parts)])
        moved = [part._replace(pack=part.pack + offset) for (part, _), offset in zip(parts, offsets, strict=False)]
        return Documents(*(np.concatenate(columns) for columns in zip(*moved, strict=True)))


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Window:
    """The packs of one window, and where the lane stands behind it."""

    documents: Documents
    packs: int
    due: Ints
    drawn: Ints


@final
class Plan:
    """The order of a mix: a pure function of seed, names, shares, lengths and packing.

    Args:
        leaves: the sources with a share above 0, in the order of their names.
        seed: seed of every random choice.
        packing: how documents are packed; None leaves each document its own pack.
        window: draws per window when `packing` is None.
        lanes: number of independent streams that divide each source's rows.

    Cost: about a millisecond per window of 1,024 draws; memory O(sources + window).
    """

    def __init__(
        self, leaves: Sequence[Leaf], *, seed: int, packing: Packing | None, window: int = 1024, lanes: int = 1
    ) -> None:
        self.leaves = tuple(leaves)
        self.seed = seed
        self.packing = packing
        self.draws = packing.window if packing else window
        self.lanes = lanes
        self.names = [leaf.name for leaf in leaves]
        self.schedule = Schedule([leaf.share for leaf in leaves])
        self._rows = np.array([leaf.rows for leaf in leaves], np.int64)
        self._in_order = np.array([not leaf.shuffle for leaf in leaves])
        self._row_keys = np.array([derive_key(seed, name, "rows") for name in self.names], np.uint64)

    def first_due(self, lane: int) -> Ints:
        """Due times before the first draw of `lane`, int64[sources]."""
        return self.schedule.phases(self.seed, self.names, lane)

    def window(self, lane: int, number: int, due: Ints, drawn: Ints) -> Window:
        """Plan window `number` of `lane` from its due times and draw counts (int64[sources] each)."""
        draws = self.schedule.draw(due, drawn, self.draws)
        source, stored, pass_index = self._locate(lane, draws.source, draws.number)
        key = derive_key(self.seed, "window", lane, number)
        order = mixed(key, len(source))
        documents = self._documents(source[order], stored[order], pass_index[order])
        documents, packs = self._packed(documents, derive_key(key, "packs"))
        return Window(documents=documents, packs=packs, due=draws.due, drawn=draws.drawn)

    def _locate(self, lane: int, source: Ints, number: Ints) -> tuple[Ints, Ints, Ints]:
        """Source, stored row and pass of each draw."""
        rows = self._rows[source]
        pass_index, position = np.divmod(number * self.lanes + lane, rows)
        keys = hash64(self._row_keys[source], pass_index.astype(np.uint64))
        stored = permute(position, rows, keys)
        if self._in_order.any():
            stored = np.where(self._in_order[source], position, stored)
        for at, leaf in enumerate(self.leaves):
            if leaf.usable is not None:
                mine = source == at
                stored[mine] = leaf.usable[stored[mine]]
        return source, stored, pass_index

    def _documents(self, source: Ints, stored: Ints, pass_index: Ints) -> Documents:
        """Documents of the draws after the overflow policy, in draw order."""
        length, row = np.empty(len(source), np.int64), np.empty(len(source), np.int64)
        for at, leaf in enumerate(self.leaves):
            mine = np.flatnonzero(source == at)
            length[mine] = leaf.source.lengths[stored[mine]]
            row[mine] = leaf.source.row_numbers[stored[mine]]
        zeros, ones = np.zeros(len(source), np.int64), np.ones(len(source), np.int64)
        documents = Documents(source, stored, row, pass_index, zeros, ones, length, zeros, zeros)
        if self.packing is None:
            return documents
        limit = self.packing.sequence_length
        if self.packing.overflow == "split" and length.max() > limit:
            return self._split(documents, limit)
        kept = np.minimum(length, limit)
        return documents._replace(length=kept, cut=length - kept)

    def _split(self, documents: Documents, limit: int) -> Documents:
        """Cut over-long documents into fragments, leaving out those without a label."""
        pieces = -(-documents.length // limit)
        whole = np.repeat(np.arange(len(pieces)), pieces)
        number = np.arange(len(whole)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        start = number * limit
        length = np.minimum(documents.length[whole] - start, limit)
        keep = np.ones(len(whole), np.bool_)
        for at in np.flatnonzero(pieces > 1).tolist():
            leaf = self.leaves[int(documents.source[at])]
            mask = leaf.source.read(documents.stored[at : at + 1])[1][0]
            keep[whole == at] = _labels_per_fragment(mask, limit) > 0
        whole = whole[keep]
        first = np.diff(whole, prepend=-1).astype(np.bool_).astype(np.int64)
        return documents.take(whole)._replace(start=start[keep], length=length[keep], first=first)

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
