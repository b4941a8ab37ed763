"""What is known of a batch's documents once their tokens are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

import numpy as np

from streamsft.metrics.stats import SampleColumns, SampleStats
from streamsft.stream.carrying import Carried, part_of
from streamsft.stream.lanestate import LaneState
from streamsft.types import Floats, Ints

__all__ = ["BatchDocuments", "DocumentTable", "KnownDocuments", "Places", "StepEnd"]


class DocumentTable(NamedTuple):
    """What is known of each document, in pack order; int64[documents] each."""

    source: Ints
    """Number of the source in the order of names."""
    row: Ints
    """The row's number in the source's input order."""
    pass_index: Ints
    """How often the source had been gone through before."""
    start: Ints
    """First token taken of the row."""
    first: Ints
    """1, but 0 in the further fragments of a split row."""
    length: Ints
    """Tokens taken."""
    pack: Ints
    """Number of the pack, never decreasing."""
    number: Ints
    """Number of the document in its pack, from 1."""
    slot: Ints
    """First slot of the document in its pack."""
    cut: Ints
    """Tokens that truncation removed."""
    supervised: Ints
    """Labels: supervised tokens but for the first."""
    turns: Ints
    """Stretches of labels."""


class StepEnd(NamedTuple):
    """What a step leaves beside its documents."""

    step: int
    """Number of the step in the stream, from 1."""
    refused: Sequence[tuple[int, str, int]]
    """Rows refused on the way, and what was read of sources that count it: (source, reason or name, count) each."""
    lanes: Mapping[int, LaneState]
    """State behind the step of the lanes it came from."""


class Places(NamedTuple):
    """Where the documents of some packs stand, as it takes to fill arrays of slots."""

    number: Ints
    """Number of each document in its pack, int64[documents]."""
    origin: Ints
    """What to take from the number of a slot in its pack to get the position in the document, int64[documents]."""
    reach: Ints
    """Slots up to the next document, padding with the last one of a pack, int64[documents]."""
    used: Sequence[int]
    """Per pack the slots that are not padding."""
    begun: bool
    """Whether each document begins with its row's first token: no later fragment of a split row is among them."""


@final
class KnownDocuments:
    """The documents of some steps, whose batches have parts of them.

    Args:
        table: what is known of each.
    """

    def __init__(self, table: DocumentTable) -> None:
        self.table = table

    @cached_property
    def columns(self) -> SampleColumns:
        """What the metrics need to know of each."""
        table = self.table
        return SampleColumns(
            source=table.source.astype(np.int32),
            tokens=table.length,
            supervised=table.supervised,
            turns=table.turns,
            cut=table.cut,
            first=table.first.astype(np.bool_),
            pass_index=table.pass_index,
        )


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class BatchDocuments:
    """The documents of one rank's part of a step, or of some packs of it.

    Attributes:
        packs: number of packs.
        slots: token slots of a pack.
        known: the documents that they are among.
        chosen: where they are; both ends are given.
        before: number of the first pack in that table.
        values: per user metric a number per document, float64[documents].
        carried: what travels with the documents beside their tokens.
        end: what the step leaves behind.
    """

    packs: int
    slots: int
    known: KnownDocuments
    chosen: slice
    before: int
    values: Mapping[str, Floats]
    carried: Carried
    end: StepEnd

    @cached_property
    def table(self) -> DocumentTable:
        """One entry per document, packs numbered from 0."""
        table = DocumentTable(*[column[self.chosen] for column in self.known.table])
        return table._replace(pack=table.pack - self.before) if self.before else table

    def part(self, start: int, stop: int) -> BatchDocuments:
        """The documents of packs `start` to `stop` (exclusive), as views, packs numbered from 0 again."""
        first, last = self.table.pack.searchsorted((start, stop)).tolist()
        return BatchDocuments(
            packs=stop - start,
            slots=self.slots,
            known=KnownDocuments(self.table),
            chosen=slice(first, last),
            before=start,
            values={name: value[first:last] for name, value in self.values.items()},
            carried=part_of(self.carried, slice(first, last)),
            end=self.end._replace(refused=()) if start else self.end,  # counted with the first part
        )

    @property
    def stats(self) -> SampleStats:
        """What the metrics need to know of these documents."""
        return SampleStats(
            self.known.columns,
            self.chosen,
            packs=self.packs,
            slots=self.packs * self.slots,
            values=self.values,
            refused=self.end.refused,
        )
