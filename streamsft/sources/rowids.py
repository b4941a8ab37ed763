"""`RowIds`: the token ids of some rows as stretches of memory, without an object for each row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

import numpy as np

from streamsft.types import IdBuffer, Ints

__all__ = ["RowIds"]


@final
class RowIds:
    """Token ids of rows, each a stretch of some memory.

    Rows are cut and put in order by numbers; views of them are made where they are copied, a few at a time. So many
    views that live at once would have Python's garbage collector run for them.

    Args:
        memory: per row the array, or memory of one, that its ids lie in, int32.
        first: place there of its first id, int64[rows].
        stop: the place behind its last one, int64[rows].
    """

    __slots__ = ("first", "memory", "stop")

    def __init__(self, memory: list[IdBuffer], first: Ints, stop: Ints) -> None:
        self.memory = memory
        self.first = first
        self.stop = stop

    @classmethod
    def of(cls, rows: Sequence[IdBuffer]) -> RowIds:
        """Rows that are arrays, or memory, of their own."""
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        return cls(list(rows), np.zeros_like(lengths), lengths)

    @classmethod
    def joined(cls, parts: Sequence[RowIds]) -> RowIds:
        """The rows of all parts, one part behind the other."""
        if len(parts) == 1:
            return parts[0]
        memory = [row for part in parts for row in part.memory]
        return cls(memory, *(np.concatenate(ends) for ends in zip(*((p.first, p.stop) for p in parts), strict=True)))

    def __len__(self) -> int:
        return len(self.memory)

    @property
    def lengths(self) -> Ints:
        """Ids of each row, int64[rows]."""
        return self.stop - self.first

    def take(self, places: Ints) -> RowIds:
        """The rows at `places`, in that order."""
        memory = self.memory
        return RowIds([memory[place] for place in places.tolist()], self.first[places], self.stop[places])

    def cut(self, start: Ints, length: Ints) -> RowIds:
        """Of each row the `length` ids from `start` on (int64[rows] each), which it has."""
        first = self.first + start
        return RowIds(self.memory, first, first + length)

    def views(self, part: slice) -> Iterable[IdBuffer]:
        """The ids of the rows of `part`, as arrays or memory, made as they are asked for."""
        ends = zip(self.memory[part], self.first[part].tolist(), self.stop[part].tolist(), strict=True)
        return (memory[first:stop] for memory, first, stop in ends)
