"""How many packs windows of documents make, without saying which document goes where."""

from __future__ import annotations

import numpy as np

from streamsft.stream.packing import best_fit_decreasing
from streamsft.types import Ints

__all__ = ["best_fit_bins"]


def best_fit_bins(lengths: Ints, capacity: int) -> Ints:
    """Bins that `best_fit_decreasing` uses for each row of lengths, int64[windows]; a pure function.

    Most rows are decided by two bounds. No packing uses fewer than total / capacity bins, nor fewer than there are
    documents longer than half a bin. Best-fit opens a bin for a document of length l only if none has room for it,
    so that each of the k open ones holds at least capacity - l + 1 of the p tokens placed before:
    k <= p / (capacity - l + 1). Rows on which the bounds differ are packed.

    Args:
        lengths: int64[windows, documents], each in 0..capacity; 0 where there is no document.
        capacity: slots per bin.
    """
    lengths = -np.sort(-lengths, axis=1)
    before = np.cumsum(lengths, axis=1)
    total = before[:, -1].copy()
    before -= lengths
    full = np.count_nonzero(lengths == capacity, axis=1)
    # Documents as long as a bin have one each, and nothing joins them.
    before -= (full * capacity)[:, None]
    open_bins = np.minimum(np.arange(lengths.shape[1]) - full[:, None], before // (capacity - lengths + 1))
    open_bins[(lengths == capacity) | (lengths == 0)] = -1
    most: Ints = open_bins.max(axis=1) + 1 + full
    least: Ints = np.maximum(-(-total // capacity), np.count_nonzero(2 * lengths > capacity, axis=1))
    for row in np.flatnonzero(most != least).tolist():
        documents = lengths[row]
        least[row] = best_fit_decreasing(documents[documents > 0], capacity).max(initial=-1) + 1
    return least
