"""`RowIds`: the token ids of some rows as stretches of memory, without an object for each row."""

from __future__ import annotations

from collections.abc import Sequence
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
        memories: arrays, or memory of some, int32.
        which: per row the number of the one that its ids lie in, int64[rows].
        first: place there of its first id, int64[rows].
        stop: the place behind its last one, int64[rows].
    """

    __slots__ = ("first", "memories", "stop", "which")

    def __init__(self, memories: Sequence[IdBuffer], which: Ints, first: Ints, stop: Ints) -> None:
        self.memories = memories
        self.which = which
        self.first = first
        self.stop = stop

    @classmethod
    def of(cls, rows: Sequence[IdBuffer]) -> RowIds:
        """Rows that are arrays, or memory, of their own."""
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        return cls(rows, np.arange(len(rows)), np.zeros_like(lengths), lengths)

    @classmethod
    def joined(cls, parts: Sequence[RowIds]) -> RowIds:
        """The rows of all parts, one part behind the other."""
        if len(parts) == 1:
            return parts[0]
        before = np.cumsum([0] + [len(part.memories) for part in parts]).tolist()
        which = [part.which + shift for part, shift in zip(parts, before, strict=False)]
        memories = [memory for part in parts for memory in part.memories]
        ends = zip(which, (part.first for part in parts), (part.stop for part in parts), strict=True)
        return cls(memories, *map(np.concatenate, zip(*ends, strict=True)))

    def __len__(self) -> int:
        return len(self.which)

    @property
    def lengths(self) -> Ints:
        """Ids of each row, int64[rows]."""
        return self.stop - self.first

    def take(self, places: Ints) -> RowIds:
        """The rows at `places`, in that order."""
        return RowIds(self.memories, self.which[places], self.first[places], self.stop[places])

    def cut(self, start: Ints, length: Ints) -> RowIds:
        """Of each row the `length` ids from `start` on (int64[rows] each), which it has."""
        first = self.first + start
        return RowIds(self.memories, self.which, first, first + length)

    def views(self, part: slice) -> list[IdBuffer]:
        """The ids of the rows of `part`, as arrays or memory."""
        memories = self.memories
        ends = zip(self.which[part].tolist(), self.first[part].tolist(), self.stop[part].tolist(), strict=True)
        return [memories[which][first:stop] for which, first, stop in ends]
