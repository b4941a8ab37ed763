"""What a mix draws from: its sources, what can be drawn of each, and their weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

import numpy as np

from streamsft.errors import DataError, EmptySourceError
from streamsft.sources.base import Source
from streamsft.sources.streaming import StreamingSource
from streamsft.stream.draws import Unit
from streamsft.stream.packing import Packing
from streamsft.stream.weights import WeightTree
from streamsft.types import Ints

__all__ = ["Leaf", "Mixture", "usable_rows"]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mixture:
    """What is mixed: the sources that are ever drawn, in the order of their names; their weights; what these count."""

    leaves: tuple[Leaf, ...]
    weights: WeightTree
    unit: Unit = "samples"


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Leaf:
    """A source as a mix draws from it.

    Attributes:
        source: where the rows are.
        share: its part of the draws of the whole mix, in [0, 1]; with weights by step, that at the start.
        groups: names of the mixes it is in, outermost first.
        shuffle: whether each pass has an order of its own, or the order of the input.
        usable: stored rows that can be drawn, ascending, int64[m]; None where all can.
        dropped: rows that cannot be drawn under this packing, by reason.
    """

    source: Source | StreamingSource
    share: float = 0.0
    groups: tuple[str, ...] = ()
    shuffle: bool = True
    usable: Ints | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def order(self) -> str:
        """What its order depends on beside seed and contents; "" for rows that are shuffled over a whole pass."""
        if isinstance(self.source, StreamingSource):
            source = self.source
            blocks = f"blocks of {source.shuffle_window} rows, {source.block_bytes} bytes"
            return blocks if source.shuffle else f"none, {blocks}"
        return "" if self.shuffle else "none"

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
        DataError: ``overflow: error`` and a row is longer than a pack; names source, file and row.
        EmptySourceError: no row is left.
    """
    lengths, first = source.lengths, source.first_supervised
    empty = first >= lengths
    too_long = np.zeros(len(lengths), np.bool_)
    if packing is not None:
        over = lengths > packing.sequence_length
        if packing.overflow == "error" and over.any():
            at = int(np.argmax(over))
            raise DataError(
                f"source {source.name!r}, {source.origin(at)}: {lengths[at]} tokens do not fit a pack of "
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
