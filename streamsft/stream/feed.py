"""The rows of a streaming source on one lane: in keyed order, endlessly, from any position."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import numpy as np

from streamsft.errors import DataError, EmptySourceError, StateError
from streamsft.order.keys import derive_key, shuffled
from streamsft.sources.streaming import Encoded, RawRow, Refused, StreamingSource
from streamsft.stream.packing import Packing
from streamsft.types import Bools, Int32s

__all__ = ["FedRow", "Feed", "FeedState"]


# A lane gets a random part of each pass: of a tiny source it may miss the one good row many times in a row.
_MANY_ROWS = 1000
_MANY_TIMES = 16


class FeedState(NamedTuple):
    """Where a lane stands in a streaming source; JSON as a list."""

    pass_index: int = 0
    """Passes behind."""
    shard: int = 0
    """Place in this pass's order of units where the open block starts."""
    position: Any = None
    """Where in that unit."""
    taken: int = 0
    """Rows of the open block that were taken."""


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FedRow:
    """An accepted row.

    Attributes:
        after: where the lane stands behind it.
        refused: rows that were refused on the way to it, by reason.
    """

    input_ids: Int32s
    loss_mask: Bools
    row: int
    pass_index: int
    after: FeedState
    refused: Mapping[str, int] = field(default_factory=dict)


@final
class Feed:
    """A cursor over the accepted rows of a streaming source on one lane, numbered from 0.

    In each pass the units are permuted by key and dealt to the lanes; dealing goes on where the pass before ended,
    so that lanes pass through the data at the same rate whatever the number of units. A lane's rows are shuffled in
    closed blocks. All of it is a pure function of seed, name, lane and position.

    Args:
        source: what is read.
        seed: seed of the order.
        lane: which lane of `lanes`.
        packing: how rows are cut, which decides whether anything of a row is left; None does not cut.
        number: number of the next accepted row.
        state: where that row is to be found.
    """

    def __init__(
        self,
        source: StreamingSource,
        *,
        seed: int,
        lane: int,
        lanes: int,
        packing: Packing | None,
        number: int = 0,
        state: FeedState | None = None,
    ) -> None:
        self._source = source
        self._seed = seed
        self._lane = lane
        self._lanes = lanes
        self._packing = packing
        self._units = source.reader.units(lanes)
        if not self._units:
            raise EmptySourceError(f"source {source.name!r} has no data to read")
        self._first = number
        self._rows: deque[FedRow] = deque()
        self._before = state or FeedState()
        self._block: list[RawRow] = []
        self._start = self._before._replace(taken=0)
        self._next = self._start
        self._taken = 0
        self._rest: Iterator[RawRow] | None = None
        self._refused: Counter[str] = Counter()
        self._fruitful = self._start.pass_index - 1  # the last pass that gave an accepted row
        self._examined = 0  # rows since then
        self._order: tuple[int, Any] = (-1, None)
        if self._before.taken:
            self._open_block()
            self._taken = self._before.taken
            if self._taken >= len(self._block):
                raise StateError(
                    f"source {source.name!r}, lane {lane}: {self._taken} rows of a block of {len(self._block)} were "
                    "taken; the data has changed since the state was saved"
                )

    def __getstate__(self) -> dict[str, Any]:
        """Without the unit that is being read, which is opened again where reading stands."""
        return {**self.__dict__, "_rest": None}

    def rows(self, numbers: Sequence[int]) -> list[FedRow]:
        """Accepted rows `numbers`, none of them dropped yet, reading on as far as the last."""
        stop = max(numbers, default=-1) + 1
        while (missing := stop - self._first - len(self._rows)) > 0:
            if self._taken >= len(self._block):
                self._open_block()
            self._encode(self._block[self._taken : self._taken + missing])
        assert all(number >= self._first for number in numbers)
        return [self._rows[number - self._first] for number in numbers]

    def state(self, number: int) -> FeedState:
        """Where to go on for accepted row `number`, which lies at most one behind those that were read."""
        at = number - self._first
        return self._before if at == 0 else self._rows[at - 1].after

    def forget(self, number: int) -> None:
        """Drop the rows before `number`."""
        while self._first < number:
            self._before = self._rows.popleft().after
            self._first += 1

    def _encode(self, rows: list[RawRow]) -> None:
        results = self._source.encode([row.value for row in rows])
        for row, result in zip(rows, results, strict=True):
            self._taken += 1
            self._examined += 1
            reason = result.reason if isinstance(result, Refused) else self._refusal(row, result)
            if isinstance(result, Refused) or reason:
                self._refused[reason] += 1
                continue
            self._fruitful = self._start.pass_index
            self._examined = 0
            self._rows.append(
                FedRow(
                    input_ids=result.input_ids,
                    loss_mask=result.loss_mask,
                    row=row.number,
                    pass_index=self._start.pass_index,
                    after=self._here(),
                    refused=dict(self._refused),
                )
            )
            self._refused.clear()

    def _refusal(self, row: RawRow, encoded: Encoded) -> str:
        """Why nothing could be trained on of an encoded row under this packing; empty if something could."""
        supervised = encoded.loss_mask[1:]
        if self._packing is None:
            return "" if supervised.any() else "nothing_supervised"
        limit = self._packing.sequence_length
        if len(encoded.input_ids) > limit:
            match self._packing.overflow:
                case "error":
                    raise DataError(
                        f"source {self._source.name!r}, {self._source.reader.where(row.number)}: "
                        f"{len(encoded.input_ids)} tokens do not fit a pack of {limit} slots; raise sequence_length or "
                        "choose overflow: truncate, drop or split"
                    )
                case "drop":
                    return "too_long"
                case "truncate":
                    supervised = supervised[: limit - 1]
                case "split":
                    pass
        return "" if supervised.any() else "nothing_supervised"

    def _here(self) -> FeedState:
        """The position in its one canonical form: a finished block is the start of the next."""
        return self._next if self._taken == len(self._block) else self._start._replace(taken=self._taken)

    def _open_block(self) -> None:
        """Gather the rows of the next block, going on to further units and passes as they end."""
        self._block, self._taken = [], 0
        self._start = self._next
        while not self._block:
            self._gather()
            if not self._block:
                self._start_pass(self._start.pass_index + 1)
        if self._source.shuffle and len(self._block) > 1:
            key = derive_key(self._seed, self._source.name, "block", self._start.pass_index, self._block[0].number)
            self._block = [self._block[i] for i in shuffled(key, len(self._block)).tolist()]

    def _gather(self) -> None:
        """Rows from `_next` on, up to a block's worth or the end of the pass; `_next` moves behind them."""
        size = 0
        place, position = self._next.shard, self._next.position
        units = self._dealt(self._next.pass_index)
        while place < len(units) and len(self._block) < self._source.shuffle_window and size < self._source.block_bytes:
            if self._rest is None:
                self._rest = self._source.reader.read(units[place], self._lanes, position)
            row = next(self._rest, None)
            if row is None:
                self._rest, place, position = None, place + 1, None
                continue
            self._block.append(row)
            size += row.size
            position = row.after
        self._next = FeedState(self._next.pass_index, place, position)

    def _start_pass(self, number: int) -> None:
        barren = number - 1 - self._fruitful
        if barren >= self._lanes and (self._examined >= _MANY_ROWS or barren >= _MANY_TIMES * self._lanes):
            reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(self._refused.items()))
            raise EmptySourceError(
                f"source {self._source.name!r} gave lane {self._lane} no row that could be drawn in "
                f"{barren} passes: {reasons or 'it read no rows at all'}"
            )
        self._rest = None
        self._start = self._next = FeedState(number)

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
        dealt: list[int] = self._order[1]
        return dealt
