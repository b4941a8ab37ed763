"""What a mix draws from: its sources, what can be drawn of each, and their weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import chain
from typing import cast, final

import numpy as np

from streamsft.errors import ConfigError, DataError, EmptySourceError
from streamsft.order.groups import GroupOrder
from streamsft.shown import naming, placed
from streamsft.sources.base import GroupedSource, IdsSource, Source, is_grouped
from streamsft.sources.promises import Promises, is_checked, promises_of, read_as_promised, read_ids_as_promised
from streamsft.sources.rowids import RowIds
from streamsft.sources.streaming import StreamingSource
from streamsft.stream.draws import Unit
from streamsft.stream.packing import Overflow, Packing
from streamsft.stream.weights import WeightTree
from streamsft.types import Bools, Int32s, Ints

__all__ = ["Leaf", "Mixture", "checked_groups", "usable_rows"]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mixture:
    """What is mixed: the sources that are ever drawn, in the order of their names; their weights; what these count."""

    leaves: tuple[Leaf, ...]
    weights: WeightTree
    unit: Unit = "samples"


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Leaf:
    """A source as a mix draws from it.

    Attributes:
        source: where the rows are.
        share: its part of the draws of the whole mix, in [0, 1]; with weights by step, that at the start.
        groups: names of the mixes it is in, outermost first.
        shuffle: whether each pass has an order of its own, or the order of the input.
        shuffle_groups: row groups whose rows are mixed, if each pass goes through the groups one after the other;
            None where the rows of a whole pass are.
        usable: stored rows that can be drawn, ascending, int64[m]; None where all can.
        dropped: rows that cannot be drawn under this packing, by reason.
        overflow: what happens to its rows that are too long, if that is not what the packing says.
    """

    source: Source | StreamingSource
    share: float = 0.0
    groups: tuple[str, ...] = ()
    shuffle: bool = True
    shuffle_groups: int | None = None
    usable: Ints | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)
    overflow: Overflow | None = None

    @property
    def name(self) -> str:
        return self.source.name

    def packed(self, packing: Packing) -> Packing:
        """How its rows are packed where the others' are by `packing`."""
        return packing.of(self.overflow)

    @property
    def order(self) -> str:
        """What its documents depend on beside seed, contents and packing: "" for rows that are shuffled over a whole
        pass and cut as all are."""
        order = self._shuffled
        return order if self.overflow is None else f"{order}; overflow: {self.overflow}".removeprefix("; ")

    @property
    def _shuffled(self) -> str:
        if isinstance(self.source, StreamingSource):
            source = self.source
            blocks = f"blocks of {source.shuffle_window} rows, {source.block_bytes} bytes"
            return blocks if source.shuffle else f"none, {blocks}"
        if not self.shuffle:
            return "none"
        return "" if self.shuffle_groups is None else f"blocks of {self.shuffle_groups} row groups, {self._layout}"

    @property
    def _layout(self) -> str:
        """A digest of where groups begin, which contents do not say."""
        return blake2b(self.grouped.group_bounds.astype("<i8").tobytes(), digest_size=4).hexdigest()

    @property
    def identity(self) -> tuple[str, str]:
        """Contents and order: where both are equal, a position means the same."""
        return self.source.fingerprint, self.order

    @property
    def streams(self) -> bool:
        """Whether the source is read in order rather than by index."""
        return isinstance(self.source, StreamingSource)

    @property
    def streamed(self) -> StreamingSource:
        """The source as one that is read in order."""
        assert isinstance(self.source, StreamingSource)
        return self.source

    @property
    def indexed(self) -> Source:
        """The source as one that is read by index."""
        assert not isinstance(self.source, StreamingSource)
        return self.source

    @cached_property
    def _promises(self) -> Promises | None:
        """What the source says of its rows, if it is to be held against what it gives."""
        return None if is_checked(self.source) else promises_of(self.indexed)

    def read(self, stored: Ints) -> tuple[Sequence[Int32s], Sequence[Bools]]:
        """Ids (int32[n] each) and masks (bool[n] each) of the stored rows (int64[k]) of a source read by index.

        Raises:
            DataError: a row cannot be read, or a source of one's own failed, or gave another row than it said; names
                the source and the row.
        """
        if self._promises is None:
            with naming(self.name):
                return self.indexed.read(stored)
        return read_as_promised(self.indexed, self._promises, stored)

    def read_ids(self, stored: Ints) -> RowIds:
        """The same of ids alone, of a source that can read them alone."""
        source = cast(IdsSource, self.source)
        if self._promises is None:
            with naming(self.name):
                given = source.read_ids(stored)
            return given if isinstance(given, RowIds) else RowIds.of(given)
        return RowIds.of(read_ids_as_promised(source, self._promises, stored))

    @property
    def grouped(self) -> GroupedSource:
        """The source as one whose rows are stored in groups."""
        assert is_grouped(self.source)
        return self.source

    @property
    def owned(self) -> bool:
        """Whether one process alone may read each lane's part of it."""
        return self.streams or self.shuffle_groups is not None

    @cached_property
    def filled(self) -> Ints:
        """Numbers of the groups that have a row which can be drawn, ascending, int64[groups]."""
        return np.flatnonzero(np.diff(self._drawable))

    @cached_property
    def _drawable(self) -> Ints:
        """Rows that can be drawn before each group, int64[groups + 1]."""
        bounds = self.grouped.group_bounds
        return bounds if self.usable is None else np.searchsorted(self.usable, bounds)

    def group_order(self, seed: int) -> GroupOrder | None:
        """The order by groups; None where rows are shuffled over a whole pass, or not at all."""
        if self.shuffle_groups is None:
            return None
        bounds = np.append(self._drawable[self.filled], self._drawable[-1])
        return GroupOrder(seed=seed, name=self.name, bounds=bounds, block=self.shuffle_groups)

    def announce(self, order: GroupOrder, lane: int, lanes: int, stored: Ints, code: int) -> None:
        """Tell the source what a lane reads next.

        Args:
            order: the order by groups.
            lane: which lane.
            lanes: of how many.
            stored: rows that it reads now, int64[k].
            code: where it stands in the order behind them.
        """
        source = self.grouped
        now = np.unique(np.searchsorted(source.group_bounds, stored, "right") - 1).tolist()
        later = order.upcoming(lane, lanes, code)
        following = ((int(self.filled[group]), len(stored) + before) for group, before in later)
        source.expect(lane, chain(((group, 0) for group in now), following))

    @property
    def rows(self) -> int:
        """Rows that can be drawn: the length of a pass; 0 where that is unknown."""
        if isinstance(self.source, StreamingSource):
            return 0
        return len(self.source) if self.usable is None else len(self.usable)


def usable_rows(source: Source, packing: Packing | None) -> tuple[Ints | None, dict[str, int]]:
    """Stored rows that leave something to train on, and how many do not, by reason.

    Args:
        source: the source.
        packing: its sequence length and overflow policy; None when documents are not cut.

    Raises:
        DataError: ``overflow: error`` and a row is longer than a pack, or what a source of one's own says of its rows
            contradicts itself; names source, file and row.
        EmptySourceError: no row is left.
    """
    if not is_checked(source):
        promises_of(source)
    lengths, first = source.lengths, source.first_supervised
    empty = first >= lengths
    too_long = np.zeros(len(lengths), np.bool_)
    if packing is not None:
        over = lengths > packing.sequence_length
        if packing.overflow == "error" and over.any():
            at = int(np.argmax(over))
            raise DataError(
                f"source {source.name!r}, {placed(source.origin(at))}: {lengths[at]} tokens do not fit a pack of "
                f"{packing.sequence_length} slots; raise sequence_length or choose overflow: truncate, drop or split"
            )
        whole = getattr(source, "whole", None)  # rows with images, which must not be cut
        if packing.overflow == "drop":
            too_long = over & ~empty
        elif whole is not None:
            too_long = over & ~empty & whole
        if packing.overflow == "truncate":
            empty = (empty | (first >= packing.sequence_length)) & ~too_long
    dropped = {"nothing_supervised": int(empty.sum()), "too_long": int(too_long.sum())}
    dropped = {reason: count for reason, count in dropped.items() if count}
    usable = np.flatnonzero(~(empty | too_long)) if dropped else None
    if len(lengths) == sum(dropped.values()):
        why = ", ".join(f"{count} {reason}" for reason, count in dropped.items()) or "it holds no row"
        limit = "" if packing is None else f" at sequence_length {packing.sequence_length}"
        raise EmptySourceError(f"source {source.name!r} has no row that could be drawn{limit}: {why}")
    return usable, dropped


def checked_groups(source: Source, shuffle: bool, shuffle_groups: int | None) -> int | None:
    """`shuffle_groups` of a stream over `source`, if it can be shuffled that way.

    Raises:
        ConfigError: it is no number >= 1, there is nothing to shuffle, or the source has no row groups.
    """
    if shuffle_groups is None:
        return None
    if not isinstance(shuffle_groups, int) or isinstance(shuffle_groups, bool) or shuffle_groups < 1:
        raise ConfigError(
            f"source {source.name!r}: shuffle_groups {shuffle_groups!r} is not a number of row groups >= 1"
        )
    if not shuffle:
        raise ConfigError(
            f"source {source.name!r}: shuffle_groups has no effect without shuffle; leave one of them out"
        )
    if not is_grouped(source):
        raise ConfigError(
            f"source {source.name!r}: has no row groups to shuffle by; open a store of Parquet files as a RowGroupStore"
        )
    return shuffle_groups
