"""The raw rows of a streaming source on one lane, block by block: which, and in which order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np

from streamsft.errors import EmptySourceError
from streamsft.order.keys import derive_key, shuffled
from streamsft.sources.streaming import RawRow, StreamingSource
from streamsft.types import is_count

__all__ = ["Block", "Blocks", "FeedState"]


class FeedState(NamedTuple):
    """Where a lane stands in a streaming source."""

    pass_index: int = 0
    """Passes behind."""
    shard: int = 0
    """Place in this pass's order of units where the open block starts."""
    position: Any = None
    """Where in that unit."""
    taken: int = 0
    """Rows of the open block that were taken."""

    def to_json(self) -> list[Any]:
        """``[pass_index, shard, taken]``, and behind that `position` unless it is None: a longer list by its items."""
        position = self.position
        behind = [] if position is None else position if _is_long(position) else [position]
        return [self.pass_index, self.shard, self.taken, *behind]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> FeedState:
        """Read what `to_json` wrote.

        Raises:
            ValueError: it did not write that.
        """
        pass_index, shard, taken, *behind = value
        if len(behind) == 1 and (behind[0] is None or _is_long(behind[0])):
            raise ValueError(f"a position is written {behind!r}")
        if not all(map(is_count, (pass_index, shard, taken))):
            raise ValueError("something is no integer from 0 to below 2**62")
        position = behind if len(behind) > 1 else behind[0] if behind else None
        return cls(pass_index, shard, position, taken)


def _is_long(position: Any) -> bool:
    return isinstance(position, list) and len(position) > 1


@final
@dataclass(frozen=True, slots=True)
class Block:
    """Where the rows that are shuffled together begin and end, and how many they are."""

    begin: FeedState
    end: FeedState
    size: int

    def state(self, taken: int) -> FeedState:
        """The position behind `taken` rows, in its one canonical form: a finished block is the start of the next."""
        return self.end if taken == self.size else self.begin._replace(taken=taken)


@final
class Blocks:
    """Reads the blocks of one lane.

    In each pass the units are permuted by key and dealt to the lanes; dealing goes on where the pass before ended,
    so that lanes pass through the data at the same rate whatever the number of units. A lane's rows are shuffled in
    closed blocks. All of it is a pure function of seed, name, lane and position.

    Args:
        source: what is read.
        seed: seed of the order.
        lane: which lane of `lanes`.

    Raises:
        EmptySourceError: there is nothing to read.
    """

    def __init__(self, source: StreamingSource, *, seed: int, lane: int, lanes: int) -> None:
        self._source = source
        self._seed = seed
        self._lane = lane
        self._lanes = lanes
        self._units = source.reader.units(lanes)
        if not self._units:
            raise EmptySourceError(f"source {source.name!r} has no data to read")
        self._rest: tuple[FeedState, Iterator[RawRow]] | None = None
        self._order: tuple[int, list[int]] = (-1, [])

    def __getstate__(self) -> dict[str, Any]:
        """Without the unit that is being read, which is opened again where reading stands."""
        return {**self.__dict__, "_rest": None}

    def read(self, begin: FeedState) -> tuple[Block, list[RawRow]] | None:
        """The block at `begin` and its rows in order; None behind the last of a pass."""
        rows, end = self._gathered(begin)
        if not rows:
            return None
        if self._source.shuffle and len(rows) > 1:
            key = derive_key(self._seed, self._source.name, "block", begin.pass_index, rows[0].number)
            rows = [rows[at] for at in shuffled(key, len(rows)).tolist()]
        return Block(begin, end, len(rows)), rows

    def everything(self) -> Iterator[RawRow]:
        """The rows of all lanes, once."""
        for unit in range(self._units):
            yield from self._source.reader.read(unit, self._lanes, None)

    def _gathered(self, begin: FeedState) -> tuple[list[RawRow], FeedState]:
        """Rows from `begin` on, up to a block's worth or the end of the pass, and the place behind them."""
        rows: list[RawRow] = []
        size = 0
        place, position = begin.shard, begin.position
        units = self._dealt(begin.pass_index)
        rest = self._rest[1] if self._rest is not None and self._rest[0] == begin else None
        self._rest = None  # what raises has ended
        most, most_bytes = self._source.shuffle_window, self._source.block_bytes
        while place < len(units) and len(rows) < most and size < most_bytes:
            if rest is None:
                rest = self._source.reader.read(units[place], self._lanes, position)
            row = next(rest, None)
            if row is None:
                rest, place, position = None, place + 1, None
                continue
            rows.append(row)
            size += row.size
            position = row.after
        end = FeedState(begin.pass_index, place, list(position) if isinstance(position, tuple) else position)
        if rest is not None:
            self._rest = end, rest
        return rows, end

    def _dealt(self, pass_index: int) -> list[int]:
        """The units of this lane in a pass, in order."""
        first = (self._lane - pass_index * self._units) % self._lanes
        if first >= self._units:  # as in most passes of a source with few rows
            return []
        if self._order[0] != pass_index:
            units = np.arange(self._units)
            if self._source.shuffle and self._units > 1:
                units = shuffled(derive_key(self._seed, self._source.name, "shards", pass_index), self._units)
            self._order = (pass_index, units[first :: self._lanes].tolist())
        return self._order[1]
