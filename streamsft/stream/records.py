"""What is known of a batch's documents once their tokens are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np

from streamsft.metrics.stats import SampleStats
from streamsft.stream.carrying import Carried, part_of
from streamsft.stream.lane import LaneState
from streamsft.types import Floats, Ints

__all__ = ["BatchDocuments", "DocumentTable", "StepEnd"]


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


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchDocuments:
    """The documents of one rank's part of a step, or of some packs of it.

    Attributes:
        packs: number of packs.
        table: one entry per document, packs numbered from 0.
        values: per user metric a number per document, float64[documents].
        carried: what travels with the documents beside their tokens.
        end: what the step leaves behind.
    """

    packs: int
    table: DocumentTable
    values: Mapping[str, Floats]
    carried: Carried
    end: StepEnd

    def part(self, start: int, stop: int) -> BatchDocuments:
        """The documents of packs `start` to `stop` (exclusive), as views, packs numbered from 0 again."""
        first, last = self.table.pack.searchsorted((start, stop)).tolist()
        table = DocumentTable(*[column[first:last] for column in self.table])
        return BatchDocuments(
            packs=stop - start,
            table=table._replace(pack=table.pack - start) if start else table,
            values={name: value[first:last] for name, value in self.values.items()},
            carried=part_of(self.carried, slice(first, last)),
            end=self.end._replace(refused=()) if start else self.end,  # counted with the first part
        )

    def stats(self, slots: int) -> SampleStats:
        """What the metrics need to know of these documents, which have `slots` token slots."""
        table = self.table
        return SampleStats(
            source=table.source.astype(np.int32),
            tokens=table.length,
            supervised=table.supervised,
            turns=table.turns,
            cut=table.cut,
            first=table.first.astype(np.bool_),
            pass_index=table.pass_index,
            packs=self.packs,
            slots=slots,
            values=dict(self.values),
            refused=self.end.refused,
        )
