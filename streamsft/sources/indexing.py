"""Which rows a map-style dataset is asked for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamsft.types import Ints

__all__ = ["rows_at"]


def rows_at(indices: Sequence[int], rows: int, what: str) -> Ints:
    """The numbers of some rows, int64[k], each in [0, `rows`); order and repeats are kept.

    Args:
        indices: as a sampler gives them; negative ones count from the end.
        rows: how many there are.
        what: what has them, for messages.

    Raises:
        TypeError: something else than the number of a row is asked for.
        IndexError: a row that is not there.
    """
    index = np.asarray(indices)
    if not index.size and index.ndim == 1:
        return index.astype(np.int64)
    if index.ndim != 1 or index.dtype.kind not in "iu":
        asked = f"{indices[0]!r}" if len(indices) == 1 else f"an array {index.dtype}{list(index.shape)}"
        raise TypeError(
            f"{what}: a row is asked for by its number, a whole one, not by {asked}; for several rows at once there is "
            "__getitems__([0, 2, 5])"
        )
    lowest, highest = int(index.min()), int(index.max())
    if not -rows <= lowest <= highest < rows:
        raise IndexError(f"{what} has {rows:,} rows; asked for {lowest} to {highest}")
    index = index.astype(np.int64, copy=False)
    return np.where(index < 0, index + rows, index) if lowest < 0 else index
