"""The rows of a streaming source on one lane: in keyed order, endlessly, from any position."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple, final

from streamsft.errors import DataError, EmptySourceError, StateError, StreamsftError
from streamsft.shown import placed
from streamsft.sources.lastread import note
from streamsft.sources.streaming import Encoded, RawRow, Refused, StreamingSource
from streamsft.stream.blocks import Block, Blocks, FeedState
from streamsft.stream.packing import Packing
from streamsft.types import Bools, Int32s

__all__ = ["FedRow", "Feed", "Feeds", "read_ahead"]

_TOGETHER = 16  # rows that are encoded in one call where only the next one is asked for
_SEARCHED = 512  # rows that are encoded in one call in search of one that can be drawn
_NOTHING: Mapping[str, int] = {}


class FedRow(NamedTuple):
    """An accepted row."""

    input_ids: Int32s
    loss_mask: Bools
    row: int
    pass_index: int
    refused: Mapping[str, int]
    """Rows that were refused on the way to it, by reason."""
    block: Block
    """The block it is of."""
    taken: int
    """Rows of that block that were taken before the next one is."""


@final
class Feed:
    """A cursor over the accepted rows of a streaming source on one lane, numbered from 0.

    Which rows these are is said by `Blocks`.

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
        self._lane = lane
        self._lanes = lanes
        self.packing = packing
        self._limit = sys.maxsize if packing is None else packing.sequence_length
        self._blocks = Blocks(source, seed=seed, lane=lane, lanes=lanes)
        self._first = number
        self._rows: list[FedRow] = []
        self._before = state or FeedState()
        start = self._before._replace(taken=0)
        self._block = Block(start, start, 0)
        self._raw: list[RawRow] = []
        self._taken = 0
        self._refused: Counter[str] = Counter()
        # The last pass that gave an accepted row, or need not: one that is not gone through from its start.
        self._fruitful = start.pass_index - (self._before == FeedState(start.pass_index))
        if self._before.taken:
            self._open_block()
            self._taken = self._before.taken
            if self._taken >= len(self._raw):
                raise StateError(
                    f"source {source.name!r}, lane {lane}: {self._taken} rows of a block of {len(self._raw)} were "
                    "taken; the data has changed since the state was saved"
                )

    def rows(self, numbers: Sequence[int]) -> list[FedRow]:
        """Accepted rows `numbers`, none of them dropped yet, reading on as far as the last.

        Raises:
            StreamsftError: a row on the way cannot be read; asked again, the same. The rows before it can be had.
        """
        first = self._first
        last = max(numbers, default=-1)
        while raw := self._unread(last):
            self._take(raw, self._encoded(raw))
        assert min(numbers, default=first) >= first
        return [self._rows[number - first] for number in numbers]

    def one(self, number: int) -> FedRow:
        """Accepted row `number`, encoding some rows of the open block behind it in the same call."""
        if number - self._first >= len(self._rows) and self._taken < len(self._raw):
            raw = self._raw[self._taken : self._taken + _TOGETHER]
            with suppress(StreamsftError):  # of a row behind it; if of this one, it is raised below
                self._take(raw, self._encoded(raw))
        return self.rows((number,))[0]

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

    def _unread(self, number: int) -> list[RawRow]:
        """The next rows of the open block, or else of the next one, as many as accepted row `number` is away."""
        missing = number + 1 - self._first - len(self._rows)
        if missing > 0 and self._taken >= len(self._raw):
            self._open_block()
        return self._raw[self._taken : self._taken + max(missing, 0)]

    def _encoded(self, rows: list[RawRow]) -> Sequence[Encoded | Refused]:
        """What the source makes of rows, which may be of other feeds of it, too."""
        note(self._source.name, rows[0].number, len(rows))
        results = self._source.encode([row.value for row in rows])
        if len(results) != len(rows):
            raise DataError(
                f"source {self._source.name!r}: encode gave {len(results)} results for {len(rows)} rows; it must give "
                "one for each"
            )
        return results

    def _take(self, rows: list[RawRow], results: Sequence[Encoded | Refused]) -> None:
        """Take the block's next rows; those before one that raises are taken."""
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
            assert self.packing is not None
            match self.packing.overflow:
                case "error":
                    raise DataError(
                        f"source {self._source.name!r}, {placed(self._source.reader.where(row.number))}: "
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
        """Go on to the next block, in this pass or a later one."""
        note(self._source.name)
        begin = self._block.end
        while (found := self._blocks.read(begin)) is None:
            begin = self._next_pass(begin.pass_index + 1)
        self._block, self._raw = found
        self._taken = 0

    def _next_pass(self, number: int) -> FeedState:
        """The start of pass `number`, unless those before it show that there is nothing to draw.

        As many whole passes in a row as there are lanes without an accepted row are taken for a sign. Unshuffled,
        the lane is dealt the same rows again then. Shuffled, it may have missed the few good rows of the others,
        which is found out by going through the whole source. So no source is called empty that is not, and the search
        at most doubles what is read in vain.
        """
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
        rows = self._blocks.everything()
        while chunk := list(islice(rows, _SEARCHED)):
            note(self._source.name, chunk[0].number, len(chunk))
            results = self._source.encode([row.value for row in chunk])
            for row, result in zip(chunk, results, strict=True):
                reason = result.reason if isinstance(result, Refused) else self._refusal(row, result)
                if not isinstance(result, Refused) and not reason:
                    return None
                refused[reason] += 1
        return refused


Feeds = Mapping[int, Feed]
"""Cursors over the streaming sources of one lane, by leaf number."""


def read_ahead(wanted: Iterable[tuple[Feed, int]]) -> None:
    """Read each feed on as far as an accepted row, those of one source together: tokenizers are faster with more rows.

    What cannot be read is left, and said when a row is needed.
    """
    by_source: dict[int, dict[Feed, int]] = {}
    for feed, number in wanted:
        by_source.setdefault(id(feed._source), {})[feed] = number
    for feeds in by_source.values():
        while feeds:
            feeds = _read_on(feeds)


def _read_on(feeds: Mapping[Feed, int]) -> dict[Feed, int]:
    """Encode the next rows of feeds of one source in one call; those that have to go on, or stopped in a block."""
    parts: dict[Feed, list[RawRow]] = {}
    for feed, number in feeds.items():
        with suppress(StreamsftError):
            if raw := feed._unread(number):
                parts[feed] = raw
    try:
        results = next(iter(parts))._encoded([row for raw in parts.values() for row in raw]) if parts else ()
    except StreamsftError:  # of some row of some feed
        for feed in parts:
            with suppress(StreamsftError):
                feed.rows((feeds[feed],))
        return {}
    going_on, at = {}, 0
    for feed, raw in parts.items():
        with suppress(StreamsftError):
            feed._take(raw, results[at : at + len(raw)])
            going_on[feed] = feeds[feed]
        at += len(raw)
    return going_on
