"""Documents of packs before their tokens are read: arrays with one entry each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from streamsft.types import Bools, Ints

__all__ = ["Documents"]


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
        return Documents(*(column[keep] for column in self))

    def packs(self, start: int, stop: int) -> Documents:
        """The documents of packs `start` to `stop` (exclusive), packs numbered from 0 again."""
        first, last = self.pack.searchsorted((start, stop)).tolist()
        if first == 0 and last == len(self.pack):
            return self if start == 0 else self._replace(pack=self.pack - start)
        part = self.take(slice(first, last))
        return part._replace(pack=part.pack - start) if start else part

    @staticmethod
    def join(parts: Sequence[tuple[Documents, int]]) -> Documents:
        """Documents of several (documents, number of packs) parts, packs numbered on."""
        if len(parts) == 1:
            return parts[0][0]
        offsets = np.cumsum([0, *(count for _, count in parts)])
        moved = [part._replace(pack=part.pack + offset) for (part, _), offset in zip(parts, offsets, strict=False)]
        return Documents(*(np.concatenate(columns) for columns in zip(*moved, strict=True)))
