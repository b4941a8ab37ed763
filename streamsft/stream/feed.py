"""The rows of a streaming source on one lane: in keyed order, endlessly, from any position."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, final

import numpy as np

from streamsft.errors import DataError, EmptySourceError, StateError, StreamsftError
from streamsft.order.keys import derive_key, shuffled
from streamsft.sources.streaming import Encoded, RawRow, Refused, StreamingSource
from streamsft.stream.packing import Packing
from streamsft.types import Bools, Int32s

__all__ = ["FedRow", "Feed", "FeedState"]

_TOGETHER = 16  # rows that are encoded in one call where only the next one is asked for
_SEARCHED = 512  # rows that are encoded in one call in search of one that can be drawn
_NOTHING: Mapping[str, int] = {}


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
@dataclass(frozen=True, slots=True)
class _Block:
    """Where the rows that are shuffled together begin and end, and how many they are."""

    begin: FeedState
    end: FeedState
    size: int

    def state(self, taken: int) -> FeedState:
        """The position behind `taken` rows, in its one canonical form: a finished block is the start of the next."""
        return self.end if taken == self.size else self.begin._replace(taken=taken)


class FedRow(NamedTuple):
    """An accepted row."""

    input_ids: Int32s
    loss_mask: Bools
    row: int
    pass_index: int
    refused: Mapping[str, int]
    """Rows that were refused on the way to it, by reason."""
    block: _Block
    """The block it is of."""
    taken: int
    """Rows of that block that were taken before the next one is."""


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
        self._limit = sys.maxsize if packing is None else packing.sequence_length
        self._first = number
        self._rows: list[FedRow] = []
        self._before = state or FeedState()
        start = self._before._replace(taken=0)
        self._block = _Block(start, start, 0)
        self._raw: list[RawRow] = []
        self._taken = 0
        self._rest: Iterator[RawRow] | None = None
        self._refused: Counter[str] = Counter()
        # The last pass that gave an accepted row, or need not: one that is not gone through from its start.
        self._fruitful = start.pass_index - (self._before == FeedState(start.pass_index))
        self._order: tuple[int, Any] = (-1, None)
        if self._before.taken:
            self._open_block()
            self._taken = self._before.taken
            if self._taken >= len(self._raw):
                raise StateError(
                    f"source {source.name!r}, lane {lane}: {self._taken} rows of a block of {len(self._raw)} were "
                    "taken; the data has changed since the state was saved"
                )

    def __getstate__(self) -> dict[str, Any]:
        """Without the unit that is being read, which is opened again where reading stands."""
        return {**self.__dict__, "_rest": None}

    def rows(self, numbers: Sequence[int]) -> list[FedRow]:
        """Accepted rows `numbers`, none of them dropped yet, reading on as far as the last.

        Raises:
            StreamsftError: a row on the way cannot be read; asked again, the same. The rows before it can be had.
        """
        first = self._first
        stop = max(numbers, default=-1) + 1
        while (missing := stop - first - len(self._rows)) > 0:
            if self._taken >= len(self._raw):
                self._open_block()
            self._encode(self._raw[self._taken : self._taken + missing])
        assert min(numbers, default=first) >= first
        return [self._rows[number - first] for number in numbers]

    def one(self, number: int) -> FedRow:
        """Accepted row `number`, encoding some rows of the open block behind it in the same call."""
        if number - self._first >= len(self._rows) and self._taken < len(self._raw):
            with suppress(StreamsftError):  # of a row behind it; if of this one, it is raised below
                self._encode(self._raw[self._taken : self._taken + _TOGETHER])
        return self.rows((number,))[0]

    def read_ahead(self, number: int) -> None:
        """Read on as far as accepted row `number`, if that can be done; if not, `rows` says so when a row is needed."""
        with suppress(StreamsftError):
            self.rows((number,))

    def state(self, number: int) -> FeedState:
        """Where to go on for accepted row `number`, which lies at most one behind those that were read."""
        at = number - self._first
        return self._behind(at - 1) if at else self._before

    def _behind(self, at: int) -> FeedState:
        return self._rows[at].block.state(self._rows[at].taken)

    def forget(self, number: int) -> None:
        """Drop the rows before `number`."""
        if (count := number - self._first) > 0:
            self._before = self._behind(count - 1)
            del self._rows[:count]
            self._first = number

    def _encode(self, rows: list[RawRow]) -> None:
        """Take the block's next rows; those before one that raises are taken."""
        results = self._source.encode([row.value for row in rows])
        if len(results) != len(rows):
            raise DataError(
                f"source {self._source.name!r}: encode gave {len(results)} results for {len(rows)} rows; it must give "
                "one for each"
            )
        block = self._block
        for row, result in zip(rows, results, strict=True):
            reason = result.reason if isinstance(result, Refused) else self._refusal(row, result)
            self._taken += 1
            if isinstance(result, Refused) or reason:
                self._refused[reason] += 1
                continue
            refused = _NOTHING
            if self._refused:
                refused = dict(self._refused)
                self._refused.clear()
            ids, mask = result
            self._rows.append(FedRow(ids, mask, row.number, block.begin.pass_index, refused, block, self._taken))
            self._fruitful = block.begin.pass_index

    def _refusal(self, row: RawRow, encoded: Encoded) -> str:
        """Why nothing could be trained on of an encoded row under this packing; empty if something could."""
        length, mask = len(encoded.input_ids), encoded.loss_mask
        if 1 < length <= self._limit and mask[-1]:
            return ""
        supervised = mask[1:]
        if length > self._limit:
            assert self._packing is not None
            match self._packing.overflow:
                case "error":
                    raise DataError(
                        f"source {self._source.name!r}, {self._source.reader.where(row.number)}: "
                        f"{length} tokens do not fit a pack of {self._limit} slots; raise sequence_length or "
                        "choose overflow: truncate, drop or split"
                    )
                case "drop":
                    return "too_long"
                case "truncate":
                    supervised = supervised[: self._limit - 1]
                case "split":
                    pass
        return "" if supervised.any() else "nothing_supervised"

    def _open_block(self) -> None:
        """Gather the rows of the next block, going on to further units and passes as they end."""
        begin = self._block.end
        while True:
            try:
                rows, end = self._gathered(begin)
            except BaseException:
                self._rest = None  # it has ended; what comes next begins where this block did
                raise
            if rows:
                break
            begin = self._next_pass(begin.pass_index + 1)
        if self._source.shuffle and len(rows) > 1:
            key = derive_key(self._seed, self._source.name, "block", begin.pass_index, rows[0].number)
            rows = [rows[i] for i in shuffled(key, len(rows)).tolist()]
        self._block, self._raw, self._taken = _Block(begin, end, len(rows)), rows, 0

    def _gathered(self, begin: FeedState) -> tuple[list[RawRow], FeedState]:
        """Rows from `begin` on, up to a block's worth or the end of the pass, and the place behind them."""
        rows: list[RawRow] = []
        size = 0
        place, position = begin.shard, begin.position
        units = self._dealt(begin.pass_index)
        most, most_bytes = self._source.shuffle_window, self._source.block_bytes
        while place < len(units) and len(rows) < most and size < most_bytes:
            if self._rest is None:
                self._rest = self._source.reader.read(units[place], self._lanes, position)
            row = next(self._rest, None)
            if row is None:
                self._rest, place, position = None, place + 1, None
                continue
            rows.append(row)
            size += row.size
            position = row.after
        return rows, FeedState(begin.pass_index, place, position)

    def _next_pass(self, number: int) -> FeedState:
        """The start of pass `number`, unless those before it show that there is nothing to draw.

        As many whole passes in a row as there are lanes without an accepted row are taken for a sign. Unshuffled,
        the lane is dealt the same rows again then. Shuffled, it may have missed the few good rows of the others,
        which is found out by going through the whole source. So no source is called empty that is not, and the search
        at most doubles what is read in vain.
        """
        self._rest = None
        barren = number - 1 - self._fruitful
        if barren >= self._lanes:
            everything = self._lanes == 1 or not self._source.shuffle
            refused = self._refused if everything else self._search()
            if refused is not None:
                reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(refused.items()))
                raise EmptySourceError(
                    f"source {self._source.name!r} gave lane {self._lane} no row that could be drawn in "
                    f"{barren} passes: {reasons or 'it read no rows at all'}"
                )
            self._fruitful = number - 1
        return FeedState(number)

    def _search(self) -> Counter[str] | None:
        """Why no row of the whole source can be drawn; None if one can."""
        refused: Counter[str] = Counter()
        for unit in range(self._units):
            rows = self._source.reader.read(unit, self._lanes, None)
            while chunk := list(islice(rows, _SEARCHED)):
                results = self._source.encode([row.value for row in chunk])
                for row, result in zip(chunk, results, strict=True):
                    reason = result.reason if isinstance(result, Refused) else self._refusal(row, result)
                    if not isinstance(result, Refused) and not reason:
                        return None
                    refused[reason] += 1
        return refused

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
