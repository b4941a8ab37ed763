"""Documents of packs before their tokens are read: arrays with one entry each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from streamsft.types import Bools, Ints

__all__ = ["Documents", "Stretch", "gathered"]


class Documents(NamedTuple):
    """Documents in pack order; each array has one entry per document."""

    source: Ints
    """Number of the leaf, int64[n]."""
    stored: Ints
    """Stored row in that source, int64[n]; of a streaming source number * lanes + lane of the draw."""
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
    labels_from: Ints
    """The row's first supervised token if all behind it are supervised too; else, or if not known, -1, int64[n]."""
    pack: Ints
    """Number of the pack, int64[n], never decreasing."""

    def take(self, keep: Ints | Bools | slice) -> Documents:
        """The documents that `keep` selects."""
        return Documents(*[column[keep] for column in self])

    def packs(self, start: int, stop: int) -> Documents:
        """The documents of packs `start` to `stop` (exclusive), packs numbered from 0 again."""
        first, last = self.pack.searchsorted((start, stop)).tolist()
        part = self.take(slice(first, last))
        return part._replace(pack=part.pack - start)


class Stretch(NamedTuple):
    """Packs of a window that follow each other."""

    documents: Documents
    """All documents of the window."""
    borders: Sequence[int]
    """Number of documents before each pack of the window, and of all."""
    first: int
    """Number of the first pack in the window."""
    stop: int
    """Number of the pack behind the last."""

    @property
    def size(self) -> int:
        """Number of documents."""
        return self.borders[self.stop] - self.borders[self.first]


def gathered(stretches: Iterable[Stretch]) -> Documents:
    """The documents of some stretches, packs numbered from 0. Views, if the stretches follow each other."""
    joined: list[Stretch] = []
    for stretch in stretches:
        if joined and joined[-1].documents is stretch.documents and joined[-1].stop == stretch.first:
            joined[-1] = joined[-1]._replace(stop=stretch.stop)
        else:
            joined.append(stretch)
    parts, packs = [], 0
    for documents, borders, first, stop in joined:
        part = documents.take(slice(borders[first], borders[stop]))
        parts.append(part._replace(pack=part.pack + (packs - first)))
        packs += stop - first
    if len(parts) == 1:
        return parts[0]
    return Documents(*map(np.concatenate, zip(*parts, strict=True)))
