"""What a batch tells about its documents, and what is known about a source before the first batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, final

import numpy as np

from streamsft.errors import StateError
from streamsft.types import Bools, Floats, Int32s, Ints

__all__ = ["SampleColumns", "SampleStats", "SourceInfo", "by_name", "stretches"]


class SampleColumns(NamedTuple):
    """Numbers about n documents, one array entry for each."""

    source: Int32s
    """Number of the source in `Loader.sources`, the order that the aggregator is given them in, int32[n]."""
    tokens: Ints
    """Tokens of the document in the batch, after truncation or splitting, int64[n]."""
    supervised: Ints
    """How many of these carry a label, int64[n]."""
    turns: Ints
    """Stretches of labelled tokens, int64[n]."""
    cut: Ints
    """Tokens that truncation removed, int64[n]."""
    first: Bools
    """False for the second and later fragments of a split row, bool[n]."""
    pass_index: Ints
    """How often the source had been gone through before, int64[n]."""


@final
class SampleStats:
    """Numbers about the documents of a batch, in batch order.

    Arrays rather than objects, so that those of many batches are counted at once; and cut out of what is known of more
    documents only when they are asked for, as a batch's statistics are made between the moments that training waits.

    Args:
        known: numbers about documents, those of the batch among them.
        chosen: where they are; by default, all. Both ends are given.
        packs: packs in the batch.
        slots: token slots in the batch, padding included.
        values: per user metric what its value function gave for each document of the batch, float64[n] each.
        refused: rows of streaming sources that gave no document, (source, reason, count) each; also what was read of
            the sources that count it (`SourceInfo.io`), in the same form.
    """

    __slots__ = ("_chosen", "_known", "packs", "refused", "slots", "values")

    def __init__(
        self,
        known: SampleColumns,
        chosen: slice | None = None,
        *,
        packs: int,
        slots: int,
        values: Mapping[str, Floats] | None = None,
        refused: Sequence[tuple[int, str, int]] = (),
    ) -> None:
        self._known = known
        self._chosen = slice(0, len(known.source)) if chosen is None else chosen
        self.packs = packs
        self.slots = slots
        self.values = values or {}
        self.refused = refused

    def __len__(self) -> int:
        """Number of documents."""
        return int(self._chosen.stop - self._chosen.start)

    def __repr__(self) -> str:
        return f"SampleStats({len(self):,} documents in {self.packs:,} packs of {self.slots:,} slots in all)"

    @property
    def columns(self) -> SampleColumns:
        """The numbers about each document of the batch."""
        return _cut(self._known, self._chosen)

    @staticmethod
    def join(parts: Sequence[SampleStats]) -> SampleStats:
        """The statistics of several batches as one, in the order given; at least one batch."""
        pieces: list[tuple[SampleColumns, slice]] = []
        for part in parts:
            known, chosen = part._known, part._chosen
            if pieces and pieces[-1][0] is known and pieces[-1][1].stop == chosen.start:
                chosen = slice(pieces.pop()[1].start, chosen.stop)
            pieces.append((known, chosen))
        columns = [_cut(known, chosen) for known, chosen in pieces]
        return SampleStats(
            SampleColumns._make(map(np.concatenate, zip(*columns, strict=True))),
            packs=sum(p.packs for p in parts),
            slots=sum(p.slots for p in parts),
            values={name: np.concatenate([p.values[name] for p in parts]) for name in parts[0].values},
            refused=[one for p in parts for one in p.refused],
        )


def _cut(known: SampleColumns, chosen: slice) -> SampleColumns:
    return SampleColumns._make(column[chosen] for column in known)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SourceInfo:
    """What is known about a source before anything is drawn from it.

    Attributes:
        name: the source's name.
        groups: names of the mix nodes that the source is in, from the root downwards.
        weight: share that was asked for, of the samples or the tokens drawn as the mix counts them, in [0, 1];
            nested weights multiplied. The shares of all sources add up to 1; a source that an edit of the mix
            removed has 0.
        rows: stored rows, those never drawn included; 0 when unknown.
        rejected: rows of the input that could not be used, counted by reason; nothing for a streaming source.
        dropped: stored rows that are never drawn, since the overflow policy leaves nothing of them, counted by reason.
        reasons: for which reasons rows of a streaming source may be refused as they are read; empty for others.
        io: names of what is counted as the source is read; empty for most.
    """

    name: str
    groups: tuple[str, ...] = ()
    weight: float = 0.0
    rows: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    io: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """What stays true of the source when it is drawn no more, as JSON: all but its name and weight."""
        return {
            "groups": list(self.groups),
            "rows": self.rows,
            "rejected": dict(self.rejected),
            "dropped": dict(self.dropped),
            "reasons": list(self.reasons),
            **({"io": list(self.io)} if self.io else {}),
        }

    @staticmethod
    def from_json(name: str, saved: Any) -> SourceInfo:
        """The source that `to_json` told of, with weight 0.

        Raises:
            StateError: it is damaged.
        """
        try:
            return SourceInfo(
                name=name,
                groups=tuple(saved["groups"]),
                rows=int(saved["rows"]),
                rejected=dict(saved["rejected"]),
                dropped=dict(saved["dropped"]),
                reasons=tuple(saved["reasons"]),
                io=tuple(saved.get("io", ())),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"what the metrics state says of source {name!r} is damaged: {error!r}") from error


def by_name(sources: Iterable[SourceInfo]) -> tuple[SourceInfo, ...]:
    """The sources in the order of their names, those of one name made one.

    A name comes twice when an edit changed a source's content. Then what is known is that of the first, the one in
    force; asked shares are added, and the reasons are those of both.
    """
    found: dict[str, SourceInfo] = {}
    for source in sources:
        first = found.get(source.name)
        reasons = tuple(sorted({*source.reasons, *(first.reasons if first else ())}))
        weight = source.weight + (first.weight if first else 0.0)
        found[source.name] = replace(first or source, weight=weight, reasons=reasons)
    return tuple(found[name] for name in sorted(found))


def stretches(labelled: Bools, lengths: Ints) -> Ints:
    """How many stretches of True each document has, int64[documents].

    Args:
        labelled: of all documents one after the other, bool[tokens], False on the first token of each.
        lengths: tokens per document, int64[documents].
    """
    begins = (labelled[1:] > labelled[:-1]).nonzero()[0]  # the token behind is the first of a stretch
    until = begins.searchsorted(lengths.cumsum() - 1)
    counts = until.copy()
    counts[1:] -= until[:-1]
    return counts
