"""Rows that lie in memory or in a memory map, as Arrow has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import pyarrow as pa

from streamsft.sources.carried import values_of
from streamsft.sources.columns import TokenColumns
from streamsft.sources.rowids import RowIds
from streamsft.types import Bools, Int32s, Ints

__all__ = ["MappedRows"]


@final
class MappedRows:
    """Rows by number over record batches.

    Args:
        tokens: ids and masks.
        carried: what travels with the rows, batch by batch, or nothing.
    """

    def __init__(self, tokens: TokenColumns, carried: Sequence[pa.RecordBatch] = ()) -> None:
        self._tokens = tokens
        self.blocks = tokens.chunks
        self._carried = list(carried)
        self._first = np.cumsum([0, *(batch.num_rows for batch in carried)])

    def read(self, index: Ints) -> tuple[list[Int32s], list[Bools]]:
        """Ids int32[n] and masks bool[n] of the rows `index`; see `TokenColumns.read`."""
        return self._tokens.read(index)

    def read_ids(self, index: Ints) -> RowIds:
        """The ids alone."""
        return self._tokens.read_ids(index)

    def carried(self, index: Ints) -> dict[str, list[Any]]:
        """What travels with the rows `index`, by column."""
        batches = self._first.searchsorted(index, "right") - 1
        found: dict[str, list[Any]] = {}
        for number in np.unique(batches).tolist():
            places = np.flatnonzero(batches == number)
            rows = pa.array(index[places] - self._first[number])
            part = self._carried[number].take(rows)
            for name in part.schema.names:
                values = found.setdefault(name, [None] * len(index))
                for place, value in zip(places.tolist(), values_of(part.column(name)), strict=True):
                    values[place] = value
        return found
