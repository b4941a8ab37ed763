"""The numbers that every run reports about its sources, its mix nodes and itself.

Per source, and per mix node over all sources below it (``<prefix><name>/…``):

===================== ==============================================================================================
samples               rows drawn; the fragments of a split row are one sample
tokens                tokens in batches, padding not included
supervised_tokens     of these, tokens with a label
passes                how often its drawable rows have come, on average; else (rows unknown) the pass it is in
length_mean, _max     document length in tokens, after overflow; also _p50 and _p95 (within 1 %)
share_supervised_p50  share of a document's tokens that have a label, and _p95, in steps of 0.02
supervised_turns_mean stretches of labelled tokens in a document, as many as it has messages that are trained on unless
                      two follow each other; also _p50 and _p95 (exact up to 16, then in steps)
truncated             documents that were cut, and truncated_tokens, what was cut off
share_samples         share of all samples so far, and share_tokens, of all tokens
share_asked           share that the weights ask for at the step, of samples or of tokens as the mix counts them
rejected              rows of the input that could not be used, and rejected_<reason>; known from the start, but of
                      streaming sources counted in each pass as they are read, under ``other`` if not declared
io_<count>            of a store that is read by row groups: what was read of it, see `streamsft.sources.grouprows`;
                      io_read_amplification is fetched over served rows, io_seconds_waiting adds up over processes
dropped               stored rows of which the overflow policy leaves nothing, and dropped_<reason> (fixed as well)
===================== ==============================================================================================

For the whole run (``data/…``): samples, documents (each fragment of a split row is one), tokens, supervised_tokens,
packs, slots, packing_efficiency (tokens per slot), documents_per_pack.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import ClassVar, final

import numpy as np

from streamsft.metrics.histograms import Histogram
from streamsft.metrics.quantiles import Quantiles
from streamsft.metrics.stats import SampleColumns, SourceInfo
from streamsft.types import Floats, Ints

__all__ = [
    "LENGTHS",
    "NAMES",
    "OTHER",
    "RUN_NAMES",
    "SHARES",
    "TURNS",
    "Refusals",
    "Slots",
    "Tallies",
    "constants",
    "passes",
    "reading",
    "rejections",
    "slots_of",
]

LENGTHS = Quantiles(1, 2**20)
SHARES = Histogram(tuple(n / 50 for n in range(51)))
TURNS = Histogram((*range(-1, 17), 20, 24, 32, 48, 64, 96, 128, 192, 256))
NAMES = (
    *("samples", "tokens", "supervised_tokens", "passes", "truncated", "truncated_tokens", "rejected", "dropped"),
    *("length_mean", "length_max", "length_p50", "length_p95", "share_samples", "share_tokens", "share_asked"),
    *("share_supervised_p50", "share_supervised_p95"),
    *("supervised_turns_mean", "supervised_turns_p50", "supervised_turns_p95"),
)
OTHER = "other"
RUN_NAMES = (
    *("samples", "documents", "tokens", "supervised_tokens", "packs", "slots"),
    *("packing_efficiency", "documents_per_pack"),
)
_SAMPLES, _DOCUMENTS, _TOKENS, _SUPERVISED, _TRUNCATED, _CUT, _TURNS, _PASS, _LONGEST = range(9)


_LOOKED_UP = 2**16


def slots_of(reducer: Quantiles | Histogram, numbers: Ints) -> Ints:
    """`reducer.slots` of whole numbers from 0, int64[n]; looked up, unless one is large, as a search takes longer."""
    if numbers.max(initial=0) < _LOOKED_UP:
        return _known_slots(reducer)[numbers]
    return reducer.slots(numbers.astype(np.float64))


@cache
def _known_slots(reducer: Quantiles | Histogram) -> Ints:
    return reducer.slots(np.arange(_LOOKED_UP, dtype=np.float64))


@final
class Tallies:
    """Whole numbers per source, updated from a batch's statistics in one go."""

    ints: ClassVar[int] = 9
    floats: ClassVar[int] = 0
    layout: ClassVar[str] = "Tallies(9)"
    suffixes: ClassVar[tuple[str, ...]] = (
        "samples",
        "documents",
        "tokens",
        "supervised_tokens",
        "length_mean",
        "length_max",
        "truncated",
        "truncated_tokens",
        "supervised_turns_mean",
        "last_pass",
    )

    def zero(self, groups: int) -> tuple[Ints, Floats]:
        return np.zeros((groups, self.ints), np.int64), np.zeros((groups, 0))

    def update(self, ints: Ints, source: Ints, columns: SampleColumns) -> None:
        """Take in documents; `ints` is int64[sources, 9], `source` is the row of each one's source, int64[n]."""
        groups = len(ints)
        documents = np.bincount(source, minlength=groups)
        ints[:, _DOCUMENTS] += documents
        ints[:, _SAMPLES] += documents - np.bincount(source[~columns.first], minlength=groups)
        # Sums of float64 are exact below 2**53, far more than the tokens of a batch.
        for column, values in ((_TOKENS, columns.tokens), (_SUPERVISED, columns.supervised), (_TURNS, columns.turns)):
            ints[:, column] += np.bincount(source, values, groups).astype(np.int64)
        cut = columns.cut.nonzero()[0]
        if len(cut):
            ints[:, _TRUNCATED] += np.bincount(source[cut], minlength=groups)
            ints[:, _CUT] += np.bincount(source[cut], columns.cut[cut], groups).astype(np.int64)
        np.maximum.at(ints[:, _PASS], source, columns.pass_index)
        np.maximum.at(ints[:, _LONGEST], source, columns.tokens)

    def merge(self, ints: Ints, floats: Floats, other_ints: Ints, other_floats: Floats) -> None:
        ints[:, :_PASS] += other_ints[:, :_PASS]
        np.maximum(ints[:, _PASS:], other_ints[:, _PASS:], out=ints[:, _PASS:])

    def result(self, ints: Ints, floats: Floats) -> dict[str, float]:
        samples, documents, tokens, supervised, truncated, cut, turns, last_pass, longest = ints.tolist()
        numbers = {
            "samples": samples,
            "documents": documents,
            "tokens": tokens,
            "supervised_tokens": supervised,
            "truncated": truncated,
            "truncated_tokens": cut,
        }
        if documents:
            numbers |= {"length_mean": tokens / documents, "length_max": longest, "last_pass": last_pass}
            numbers["supervised_turns_mean"] = turns / documents
        return numbers


@final
class Slots:
    """Packs and token slots of the whole run."""

    ints: ClassVar[int] = 2
    floats: ClassVar[int] = 0
    layout: ClassVar[str] = "Slots()"
    suffixes: ClassVar[tuple[str, ...]] = ("packs", "slots")

    def zero(self, groups: int) -> tuple[Ints, Floats]:
        return np.zeros((groups, 2), np.int64), np.zeros((groups, 0))

    def merge(self, ints: Ints, floats: Floats, other_ints: Ints, other_floats: Floats) -> None:
        ints += other_ints

    def result(self, ints: Ints, floats: Floats) -> dict[str, float]:
        return dict(zip(self.suffixes, ints.tolist(), strict=True))


@final
class Refusals:
    """Rows refused for one reason."""

    ints: ClassVar[int] = 1
    floats: ClassVar[int] = 0
    layout: ClassVar[str] = "Refusals()"
    suffixes: ClassVar[tuple[str, ...]] = ("rows",)

    def zero(self, groups: int) -> tuple[Ints, Floats]:
        return np.zeros((groups, 1), np.int64), np.zeros((groups, 0))

    def merge(self, ints: Ints, floats: Floats, other_ints: Ints, other_floats: Floats) -> None:
        ints += other_ints

    def result(self, ints: Ints, floats: Floats) -> dict[str, float]:
        return {"rows": int(ints[0])}


def constants(members: Sequence[SourceInfo], asked: Mapping[str, float]) -> dict[str, float]:
    """What is known about one source, or about those of a mix node, before anything is drawn.

    Args:
        members: the sources.
        asked: the shares asked for at the step, by source; those that are not in it have their `weight`.
    """
    numbers: dict[str, float] = {"share_asked": sum(asked.get(s.name, s.weight) for s in members)}
    dropped = _added(s.dropped for s in members)
    numbers["dropped"] = sum(dropped.values())
    return numbers | {f"dropped_{reason}": dropped[reason] for reason in sorted(dropped)}


def rejections(
    members: Sequence[SourceInfo], refused: Mapping[str, int], lately: Mapping[str, int], suffix: str
) -> dict[str, float]:
    """The rejected rows of one source, or of those of a mix node.

    Args:
        members: the sources, whose fixed numbers are in it once.
        refused: rows that were refused while reading, since the run began, by reason.
        lately: the same since the last log step; reported, if rows can be refused while reading at all.
        suffix: what comes behind the names of the latter.
    """
    seen = {reason: count for reason, count in refused.items() if count}
    rejected = _added([*(s.rejected for s in members), seen])
    numbers: dict[str, float] = {"rejected": sum(rejected.values())}
    numbers |= {f"rejected_{reason}": rejected[reason] for reason in sorted(rejected)}
    if seen or any(s.reasons for s in members):
        numbers[f"rejected{suffix}"] = sum(lately.values())
        numbers |= {f"rejected_{reason}{suffix}": lately[reason] for reason in sorted(seen)}
    return numbers


def reading(counts: Mapping[str, int]) -> dict[str, float]:
    """What was read of a source, or of those of a mix node, from what they counted."""
    numbers: dict[str, float] = {f"io_{name}": count for name, count in counts.items()}
    if "io_microseconds_waiting" in numbers:
        numbers["io_seconds_waiting"] = numbers.pop("io_microseconds_waiting") / 1e6
    if counts.get("rows_served"):
        numbers["io_read_amplification"] = counts.get("rows_fetched", 0) / counts["rows_served"]
    return numbers


def _added(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    """Counts by reason added up; a reason that came 0 times stays."""
    added: Counter[str] = Counter()
    for count in counts:
        added.update(count)
    return added


def passes(members: Sequence[SourceInfo], tally: dict[str, float]) -> dict[str, float]:
    """How often the drawable rows of one source, or of those of a mix node, have come."""
    rows = sum(s.rows - sum(s.dropped.values()) for s in members)
    if rows > 0 and all(s.rows for s in members):
        return {"passes": tally["samples"] / rows}
    return {"passes": tally["last_pass"]} if len(members) == 1 and "last_pass" in tally else {}
