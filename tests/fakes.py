"""Sources and metrics for tests that need no files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsft.sources.streaming import Encoded, RawRow, Refused, StreamingSource

Array = NDArray[Any]


class ListSource:
    """A plain-Python `Source` over given rows of (input_ids, loss_mask); picklable.

    The first token of row r is r, so that a row can be told from its tokens.
    """

    def __init__(
        self, name: str, rows: Sequence[tuple[Sequence[int], Sequence[int]]], row_numbers: Sequence[int] | None = None
    ) -> None:
        self.name = name
        self.ids = [np.array(ids, np.int32) for ids, _ in rows]
        self.masks = [np.array(mask, np.bool_) for _, mask in rows]
        self.row_numbers = np.array(range(len(rows)) if row_numbers is None else row_numbers, np.int64)
        self.lengths = np.array([len(ids) for ids in self.ids], np.int32)
        self.supervised = np.array([int(mask[1:].sum()) for mask in self.masks], np.int32)
        self.first_supervised = np.array(
            [1 + int(np.argmax(m[1:])) if m[1:].any() else len(m) for m in self.masks], np.int32
        )
        digest = hashlib.blake2b(digest_size=16)
        for ids, mask in zip(self.ids, self.masks, strict=True):
            digest.update(len(ids).to_bytes(4, "little") + ids.tobytes() + mask.tobytes())
        digest.update(self.row_numbers.tobytes())
        self.fingerprint = digest.hexdigest()

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, index: Array) -> tuple[list[Array], list[Array]]:
        return [self.ids[i] for i in index.tolist()], [self.masks[i] for i in index.tolist()]

    def origin(self, index: int) -> str:
        return f"{self.name}.list:{self.row_numbers[index]}"


class GroupedList(ListSource):
    """A `ListSource` whose rows are stored in groups; notes what it is told to expect and what is read.

    Attributes:
        expected: by reader, the first groups that it was last said to read.
        reads: the groups of each read, in order.
    """

    def __init__(self, source: ListSource, bounds: Sequence[int]) -> None:
        self.__dict__.update(source.__dict__)
        self.group_bounds = np.array(bounds, np.int64)
        self.expected: dict[int, list[tuple[int, int]]] = {}
        self.reads: list[list[int]] = []

    def expect(self, reader: int, groups: Iterable[tuple[int, int]]) -> None:
        self.expected[reader] = list(islice(groups, 200))

    def read(self, index: Array) -> tuple[list[Array], list[Array]]:
        self.reads.append(np.unique(np.searchsorted(self.group_bounds, index, "right") - 1).tolist())
        return super().read(index)


def source(name: str, lengths: Sequence[int], prompt: int = 1) -> ListSource:
    """Rows of the given lengths: row number, then counting tokens; all but the first `prompt` supervised."""
    rows = []
    for row, length in enumerate(lengths):
        ids = ([row, *range(1000, 1000 + length - 1)])[:length]
        rows.append((ids, [0] * min(prompt, length) + [1] * max(0, length - prompt)))
    return ListSource(name, rows)


Row = tuple[Sequence[int], Sequence[int], str]
"""Token ids, loss mask, and why the row is refused; "" where it is not."""


class ListShards:
    """A `ShardReader` over rows in memory, one list per shard; picklable.

    With fewer shards than lanes, shards are cut by row stride. Counts what it is asked for.
    """

    def __init__(self, shards: Sequence[Sequence[Row]]) -> None:
        self.shards = [list(rows) for rows in shards]
        digest = hashlib.blake2b(json.dumps(self.shards).encode(), digest_size=16)
        self.fingerprint = digest.hexdigest()
        self.begun: list[tuple[int, int, int]] = []
        """Shard, start and stride of each unit that reading began on, in order."""
        self.open = 0
        self.most_open = 0
        self.rows_read = 0
        self._cut: dict[int, list[tuple[int, int, int]]] = {}

    def _units(self, lanes: int) -> list[tuple[int, int, int]]:
        if lanes in self._cut:
            return self._cut[lanes]
        filled = [shard for shard, rows in enumerate(self.shards) if rows]
        most = max((len(self.shards[shard]) for shard in filled), default=1)
        for step in range(1, most + 1):
            units = [(shard, at, step) for shard in filled for at in range(min(step, len(self.shards[shard])))]
            if len(units) >= lanes:
                break
        self._cut[lanes] = units
        return units

    def units(self, lanes: int) -> int:
        return len(self._units(lanes))

    def read(self, unit: int, lanes: int, position: Any) -> Iterator[RawRow]:
        shard, start, step = self._units(lanes)[unit]
        self.begun.append((shard, start, step))
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            behind = position or 0
            for index in range(start + step * behind, len(self.shards[shard]), step):
                behind += 1
                self.rows_read += 1
                row = self.shards[shard][index]
                yield RawRow((shard << 32) + index, row, 8 * len(row[0]), behind)
        finally:
            self.open -= 1

    def where(self, number: int) -> str:
        return f"{number >> 32}.list:{number % 2**32}"

    def accepted(self, name: str) -> ListSource:
        """The rows that are not refused, by the same numbers, as a source to be read by index."""
        rows = [((shard << 32) + at, row) for shard, rows in enumerate(self.shards) for at, row in enumerate(rows)]
        kept = [(number, row) for number, row in rows if not row[2]]
        return ListSource(name, [(ids, mask) for _, (ids, mask, _) in kept], [number for number, _ in kept])


def encode_rows(rows: Sequence[Row]) -> list[Encoded | Refused]:
    """What makes tokens of the rows of `ListShards`."""
    return [
        Refused(reason, "") if reason else Encoded(np.array(ids, np.int32), np.array(mask, np.bool_))
        for ids, mask, reason in rows
    ]


def streamed(name: str, shards: Sequence[Sequence[Row]], **options: Any) -> StreamingSource:
    """A streaming source of rows in memory."""
    return StreamingSource(name=name, reader=ListShards(shards), encode=encode_rows, **options)


def plain_rows(count: int, length: int = 3, refused: str = "") -> list[Row]:
    """Rows of one length, supervised but for the first token."""
    mask = [0, *[1] * (length - 1)]
    return [([row, *range(1000, 999 + length)], mask, refused) for row in range(count)]
