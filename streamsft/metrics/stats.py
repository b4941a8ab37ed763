"""What a batch tells about its documents, and what is known about a source before the first batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np

from streamsft.errors import StateError
from streamsft.types import Bools, Floats, Int32s, Ints

__all__ = ["SampleStats", "SourceInfo", "by_name", "stretches"]


@final
@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class SampleStats:
    """Numbers about the n documents of a batch, one array entry per document, in batch order.

    Arrays rather than objects, so that a worker process ships a batch's statistics for a few bytes a document.

    Attributes:
        source: number of the source in `Loader.sources`, the order that the aggregator is given them in, int32[n].
        tokens: tokens of the document in the batch, after truncation or splitting, int64[n].
        supervised: how many of these carry a label, int64[n].
        turns: stretches of labelled tokens, int64[n].
        cut: tokens that truncation removed, int64[n].
        first: False for the second and later fragments of a split row, bool[n].
        pass_index: how often the source had been gone through before, int64[n].
        packs: packs in the batch.
        slots: token slots in the batch, padding included.
        values: per user metric what its value function gave, float64[n] each.
        refused: rows of streaming sources that gave no document, (source, reason, count) each; also what was read of
            the sources that count it (`SourceInfo.io`), in the same form.
    """

    source: Int32s
    tokens: Ints
    supervised: Ints
    turns: Ints
    cut: Ints
    first: Bools
    pass_index: Ints
    packs: int
    slots: int
    values: dict[str, Floats] = field(default_factory=dict)
    refused: Sequence[tuple[int, str, int]] = ()

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.source)

    def __repr__(self) -> str:
        return f"SampleStats({len(self):,} documents in {self.packs:,} packs of {self.slots:,} slots in all)"

    @staticmethod
    def join(parts: Sequence[SampleStats]) -> SampleStats:
        """The statistics of several batches as one, in the order given; at least one batch."""
        return SampleStats(
            source=np.concatenate([p.source for p in parts]),
            tokens=np.concatenate([p.tokens for p in parts]),
            supervised=np.concatenate([p.supervised for p in parts]),
            turns=np.concatenate([p.turns for p in parts]),
            cut=np.concatenate([p.cut for p in parts]),
            first=np.concatenate([p.first for p in parts]),
            pass_index=np.concatenate([p.pass_index for p in parts]),
            packs=sum(p.packs for p in parts),
            slots=sum(p.slots for p in parts),
            values={name: np.concatenate([p.values[name] for p in parts]) for name in parts[0].values},
            refused=[one for p in parts for one in p.refused],
        )


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
