"""What the rows of an indexable source take of packs, known from their lengths and, where they are cut, their masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np

from streamsft.stream.mixture import Leaf
from streamsft.stream.packing import Packing
from streamsft.types import Bools, Ints

__all__ = ["Measured", "Measures"]

_BLOCK = 1024  # rows whose masks are read at a time


class Measured(NamedTuple):
    """What draws take, all their documents together; int64[draws] each."""

    tokens: Ints
    """Tokens in packs."""
    supervised: Ints
    """Of these, labels: supervised tokens that are not the first of their document."""
    cut: Ints
    """Tokens that truncation leaves out."""


class _Cut(NamedTuple):
    """The documents that cut rows become, as far as they were asked for."""

    counts: Ints
    """Documents per row, int64[rows]."""
    tokens: Ints
    """Tokens of these, int64[rows]."""
    labels: Ints
    """Labels of these, int64[rows]."""
    lengths: Ints
    """Length of each document, row after row, int64[documents]."""

    def extended(self, rows: Sequence[tuple[Ints, Ints]]) -> _Cut:
        """With more rows, each the lengths of its documents and their labels."""
        lengths = [lengths for lengths, _ in rows]
        added = (
            [len(row) for row in lengths],
            [row.sum() for row in lengths],
            [labels.sum() for _, labels in rows],
            np.concatenate(lengths),
        )
        return _Cut(*(np.concatenate([old, np.asarray(new, np.int64)]) for old, new in zip(self, added, strict=True)))


@final
class Measures:
    """What each row of a source takes of packs, under an overflow policy.

    Token ids are never read. The loss masks of rows longer than a pack are, once each, when they are first asked for:
    what is supervised of a prefix or a fragment, and which fragments are left out, is written nowhere else.

    Args:
        leaf: the source; not a streaming one.
        packing: how rows become documents, if the source does not say otherwise.
    """

    def __init__(self, leaf: Leaf, packing: Packing) -> None:
        self._leaf = leaf
        self._source = leaf.indexed
        self._limit = packing.sequence_length
        self._split = leaf.packed(packing).overflow == "split"
        self._place = np.full(len(self._source), -1, np.int64)
        """Where each cut row is listed, -1 where it is not yet."""
        nothing = np.empty(0, np.int64)
        self._cut = _Cut(nothing, nothing, nothing, nothing)

    def of(self, stored: Ints) -> Measured:
        """What draws of the stored rows (int64[n]) take."""
        tokens = self._source.lengths[stored].astype(np.int64)
        supervised = self._source.supervised[stored].astype(np.int64)
        cut = np.zeros(len(stored), np.int64)
        long = np.flatnonzero(tokens > self._limit)
        if len(long):
            place = self._listed(stored[long])
            if not self._split:
                cut[long] = tokens[long] - self._limit
            tokens[long], supervised[long] = self._cut.tokens[place], self._cut.labels[place]
        return Measured(tokens, supervised, cut)

    def labels(self, stored: Ints, start: Ints, length: Ints) -> Ints:
        """Labels of single documents: tokens `start` to `start` + `length` of the stored rows; int64[n] each."""
        labels = self.of(stored).supervised
        if self._split:
            parts = np.flatnonzero(self._source.lengths[stored] > self._limit)
            masks = self._leaf.read(stored[parts])[1]
            for at, mask in zip(parts.tolist(), masks, strict=True):
                labels[at] = np.count_nonzero(mask[start[at] + 1 : start[at] + length[at]])
        return labels

    def documents(self, stored: Ints) -> tuple[Ints, Ints]:
        """Documents per draw of the stored rows (int64[n]), and the length of each document in order."""
        whole = self._source.lengths[stored].astype(np.int64)
        counts = np.ones(len(stored), np.int64)
        long = np.flatnonzero(whole > self._limit)
        if not self._split or not len(long):
            return counts, np.minimum(whole, self._limit)
        place = self._listed(stored[long])
        counts[long] = self._cut.counts[place]
        lengths = np.repeat(whole, counts)
        fragment = np.repeat(whole > self._limit, counts)
        first = (np.cumsum(self._cut.counts) - self._cut.counts)[place]
        of_row = np.repeat(first - np.cumsum(counts[long]) + counts[long], counts[long])
        lengths[fragment] = self._cut.lengths[of_row + np.arange(len(of_row))]
        return counts, lengths

    def _listed(self, stored: Ints) -> Ints:
        """Where cut rows are listed, their masks having been read."""
        missing = np.unique(stored[self._place[stored] < 0])
        for start in range(0, len(missing), _BLOCK):
            rows = missing[start : start + _BLOCK]
            self._place[rows] = np.arange(len(self._cut.counts), len(self._cut.counts) + len(rows))
            self._cut = self._cut.extended([self._documents(mask) for mask in self._leaf.read(rows)[1]])
        return self._place[stored]

    def _documents(self, mask: Bools) -> tuple[Ints, Ints]:
        """Lengths and labels of what becomes of a cut row, by its loss mask bool[length]."""
        starts = np.arange(0, len(mask) if self._split else 1, self._limit)
        lengths = np.minimum(len(mask) - starts, self._limit)
        supervised = mask[: int(lengths.sum())].astype(np.int64)
        supervised[0] = 0
        found = np.add.reduceat(supervised, starts)
        kept = found > 0
        return lengths[kept], (found - supervised[starts])[kept]
