"""Random access to rows that can only be decoded in blocks, such as the row groups of a Parquet file."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import pyarrow as pa

from streamsft.errors import StoreError
from streamsft.sources.carried import values_of
from streamsft.sources.damage import check_buffers
from streamsft.sources.forkgate import OfProcess
from streamsft.sources.rowids import RowIds
from streamsft.sources.storecolumns import StoreColumns, decode
from streamsft.types import Bools, Int32s, Ints

__all__ = ["Block", "BlockRows", "DecodedBlock"]

_CACHE_BYTES = 256 << 20


class Block(NamedTuple):
    """Where a block of rows lies; JSON."""

    file: int
    """Number of the file."""
    number: int
    """Number of the block in it."""
    byte: int
    """Where it begins, if that is needed to find it."""
    rows: int


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodedBlock:
    """The rows of a block, compact: nothing of the file is kept alive.

    Attributes:
        ids: int32[tokens].
        mask: bool[tokens].
        bounds: int64[rows + 1], tokens before each row.
        carried: what travels with the rows, if anything does.
    """

    ids: Int32s
    mask: Bools
    bounds: Ints
    carried: pa.RecordBatch | None = None

    @classmethod
    def of(cls, batch: pa.RecordBatch, columns: StoreColumns, where: str) -> DecodedBlock:
        """Decode a record batch, whose values have been checked."""
        check_buffers(batch, where)
        ids, mask = decode(batch, columns, where)
        first, last = int(ids.offsets[0]), int(ids.offsets[-1])
        start, stop = int(mask.offsets[0]), int(mask.offsets[-1])
        if stop - start != last - first:
            raise StoreError(f"{where}: has changed since the store was opened; open it again")
        return cls(
            ids=ids.slice(first, last).astype(np.int32),
            mask=mask.slice(start, stop).astype(np.bool_),
            bounds=ids.offsets.astype(np.int64) - first,
            carried=batch.select(list(columns.carried)) if columns.carried else None,
        )

    @property
    def nbytes(self) -> int:
        """Bytes held in memory."""
        carried = 0 if self.carried is None else self.carried.nbytes
        return int(self.ids.nbytes + self.mask.nbytes + self.bounds.nbytes + carried)


@final
class BlockRows(OfProcess):
    """Rows by number over blocks that are decoded whole, the last ones used being kept in memory.

    May be used by several threads at a time, and after a fork.

    Args:
        blocks: all blocks, in row order.
        load: decodes a block, with as many rows as it says.
        budget: bytes of decoded blocks to keep; one block is kept in any case.
    """

    def __init__(
        self, blocks: Sequence[Block], load: Callable[[Block], DecodedBlock], *, budget: int = _CACHE_BYTES
    ) -> None:
        self._blocks = list(blocks)
        self.blocks = len(self._blocks)
        self._load = load
        self._budget = budget
        self._first = np.cumsum([0, *(block.rows for block in blocks)])

    def read(self, index: Ints) -> tuple[list[Int32s], list[Bools]]:
        """Ids int32[n] and masks bool[n] of the rows `index` (int64[k], each in [0, rows)); copies.

        Raises:
            IndexError: a row that is not there.
        """
        ids: list[Any] = [None] * len(index)
        masks: list[Any] = [None] * len(index)
        for block, places, rows in self._by_block(index):
            starts, stops = block.bounds[rows].tolist(), block.bounds[rows + 1].tolist()
            for place, start, stop in zip(places.tolist(), starts, stops, strict=True):
                ids[place] = block.ids[start:stop].copy()
                masks[place] = block.mask[start:stop].copy()
        return ids, masks

    def read_ids(self, index: Ints) -> RowIds:
        """The ids alone."""
        return RowIds.of(self.read(index)[0])

    def carried(self, index: Ints) -> dict[str, list[Any]]:
        """What travels with the rows `index`, by column."""
        found: dict[str, list[Any]] = {}
        for block, places, rows in self._by_block(index):
            assert block.carried is not None
            part = block.carried.take(pa.array(rows))
            for name in part.schema.names:
                values = found.setdefault(name, [None] * len(index))
                for place, value in zip(places.tolist(), values_of(part.column(name)), strict=True):
                    values[place] = value
        return found

    def _by_block(self, index: Ints) -> Iterator[tuple[DecodedBlock, Ints, Ints]]:
        """Per block of the rows `index`: the block, places in `index`, and numbers of the rows in the block."""
        if not len(index):
            return
        if not 0 <= int(index.min()) <= int(index.max()) < int(self._first[-1]):
            raise IndexError(f"rows {index.min()} to {index.max()} of {self._first[-1]}: rows are numbered from 0")
        block = self._first.searchsorted(index, "right") - 1
        order = np.argsort(block, kind="stable")
        for places in np.split(order, np.flatnonzero(np.diff(block[order])) + 1):
            number = int(block[places[0]])
            yield self._block(number), places, index[places] - self._first[number]

    def _block(self, number: int) -> DecodedBlock:
        self._begin_here()
        with self._lock:
            found = self._kept.get(number)
            if found is None:
                found = self._kept[number] = self._load(self._blocks[number])
                self._bytes += found.nbytes
                while self._bytes > self._budget and len(self._kept) > 1:
                    self._bytes -= self._kept.popitem(last=False)[1].nbytes
            self._kept.move_to_end(number)
            return found

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, DecodedBlock] = OrderedDict()
        self._bytes = 0
