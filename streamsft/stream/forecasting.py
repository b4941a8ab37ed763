"""What a run will be given, source by source: counted exactly for mixes that are planned by lengths, else estimated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from streamsft.stream.estimating import estimated
from streamsft.stream.lanestate import LaneState
from streamsft.stream.loader import Loader
from streamsft.stream.measures import Measures
from streamsft.stream.mixture import Leaf
from streamsft.stream.plan import Plan
from streamsft.stream.skipping import Told, pattern_of, planner_behind, stream_step
from streamsft.stream.steps import Mixes
from streamsft.stream.stretches import checked_stretches
from streamsft.stream.totals import Curve, Totals
from streamsft.stream.walk import LaneWalk, Passed
from streamsft.types import Ints

__all__ = ["Course", "SourceForecast", "StreamForecast", "forecast_stream"]

_POINTS = 200  # of a course: as many as can be told apart on a page


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SourceForecast:
    """What a run will be given of one source.

    Attributes:
        name: the source's name.
        groups: names of the mixes it is in, outermost first.
        rows: rows that can be drawn; None where they are unknown until they are read.
        share: its share of draws (of tokens with ``unit: tokens``) as asked for at the first step.
        samples: draws; the fragments of a split row are one.
        tokens: tokens in packs.
        supervised: of these, tokens that are trained on.
        cut: tokens that truncation leaves out.
        cut_samples: draws that it leaves something out of.
        coverage: share of its rows that are given at least once; None where that is unknown.
        dropped: rows that are never drawn under this packing, by reason.
    """

    name: str
    groups: tuple[str, ...]
    rows: int | None
    share: float
    samples: int
    tokens: int
    supervised: int
    cut: int
    cut_samples: int
    coverage: float | None
    dropped: Mapping[str, int]

    @property
    def passes(self) -> float | None:
        """How often the source is gone through; None where its rows are unknown."""
        return None if self.rows is None else self.samples / self.rows

    @property
    def cut_share(self) -> float:
        """Share of its tokens that truncation leaves out."""
        return self.cut / max(1, self.tokens + self.cut)

    def to_json(self, steps: int) -> dict[str, Any]:
        """As JSON values, for a run of so many steps."""
        passes = self.passes
        return {
            "groups": list(self.groups),
            "rows": self.rows,
            "share_asked": self.share,
            "samples": self.samples,
            "tokens": self.tokens,
            "supervised_tokens": self.supervised,
            "passes": passes,
            "steps_per_pass": steps / passes if passes else None,
            "coverage": self.coverage,
            "cut_tokens": self.cut,
            "cut_samples": self.cut_samples,
            "cut_share": self.cut_share,
            "dropped": dict(self.dropped),
        }


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How a mix goes over a run; a list per source.

    Attributes:
        steps: steps of the stream, ascending.
        asked: share at each of the steps.
        samples: draws by the end of each of the steps; exact at the borders of windows, in proportion between.
        tokens: tokens by then, likewise.
    """

    steps: list[int]
    asked: dict[str, list[float]]
    samples: dict[str, list[float]]
    tokens: dict[str, list[float]]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StreamForecast:
    """What a run will be given.

    Attributes:
        steps: optimizer steps.
        packs: packs of all ranks.
        sequence_length: slots per pack.
        documents: documents in these packs.
        sources: by name.
        exact: whether it was counted; else it is estimated from the first draws.
        course: how it goes over the run.
    """

    steps: int
    packs: int
    sequence_length: int
    documents: int
    sources: Mapping[str, SourceForecast]
    exact: bool
    course: Course = field(repr=False)

    @property
    def scheduled(self) -> bool:
        """Whether the shares asked for change over the run."""
        return any(len(set(shares)) > 1 for shares in self.course.asked.values())

    @property
    def slots(self) -> int:
        """Slots of all packs."""
        return self.packs * self.sequence_length

    @property
    def tokens(self) -> int:
        """Tokens in all packs."""
        return sum(source.tokens for source in self.sources.values())

    @property
    def samples(self) -> int:
        """Draws."""
        return sum(source.samples for source in self.sources.values())

    @property
    def efficiency(self) -> float:
        """Share of the slots that hold a token."""
        return self.tokens / max(1, self.slots)


def forecast_stream(loader: Loader, steps: int, *, estimate: bool = False, told: Told | None = None) -> StreamForecast:
    """What the first `steps` steps of `loader` will be given, over all ranks and workers.

    Exact, and without reading token ids, where all sources are indexable. Masks of rows longer than a pack are read.

    Args:
        loader: any rank's; it is not iterated.
        steps: optimizer steps; those of `Loader.skip_steps` come on top, and are not counted.
        estimate: read the first draws and go on in proportion, as must be done with a streaming source.
        told: is told how far it has come, in packs.
    """
    topology = loader.topology
    plan = loader.packer.plan(topology.lanes)
    skipped = checked_stretches(loader.skip_steps)
    last = stream_step(steps, skipped)
    course_steps = np.unique(np.linspace(1, last, min(last, _POINTS)).round().astype(np.int64))
    if estimate or plan.streaming:
        columns, samples, tokens, documents = estimated(Mixes(plan), topology, steps, course_steps)
        coverage: list[float | None] = [None] * len(plan.leaves)
    else:
        totals, samples, tokens = _counted(plan, loader, last, course_steps, told)
        _take_back(totals, plan, loader, [step for step in _left_out(skipped) if step <= last])
        columns = (totals.samples, totals.tokens, totals.supervised, totals.cut, totals.cut_samples)
        documents = int(totals.documents.sum())
        coverage = list(totals.coverage.tolist())
    rows = zip(plan.leaves, *(column.tolist() for column in columns), coverage, strict=True)
    return StreamForecast(
        steps=steps,
        packs=steps * topology.global_batch_size,
        sequence_length=loader.packer.packing.sequence_length,
        documents=documents,
        sources={leaf.name: _source(leaf, *numbers) for leaf, *numbers in rows},
        exact=not (estimate or plan.streaming),
        course=_course(plan, course_steps, samples, tokens),
    )


def _counted(plan: Plan, loader: Loader, last: int, course_steps: Ints, told: Told | None) -> tuple[Totals, Any, Any]:
    """The totals of all lanes up to step `last` of the stream, and samples and tokens by the steps of the course."""
    assert plan.packing is not None
    measures = [Measures(leaf, plan.packing) for leaf in plan.leaves]
    totals = Totals(plan, measures)
    patterns = [pattern_of(loader.topology, lane, 0) for lane in range(plan.lanes)]
    ends = [pattern.before(last + 1) for pattern in patterns]
    course = np.zeros((len(course_steps), 2, len(plan.leaves)))
    done = 0
    for lane, (pattern, end) in enumerate(zip(patterns, ends, strict=True)):
        curve = Curve(plan, measures, pattern)

        def observe(passed: Passed, curve: Curve = curve, done: int = done) -> None:
            totals.passed(passed)
            curve.passed(passed)
            if told is not None:
                told(done + passed.start + int(passed.packs.sum()), sum(ends))

        walk = LaneWalk(plan, lane, LaneState.start(plan, lane), pattern, measures=measures)
        walk.to(end, observe)
        totals.planned(walk.window()[0])
        course += curve.at(course_steps)
        done += end
    return totals, course[:, 0], course[:, 1]


def _take_back(totals: Totals, plan: Plan, loader: Loader, steps: Sequence[int]) -> None:
    """Leave out what steps of the stream are given."""
    planner = None
    for step in steps:
        if planner is None or planner.step < step - 1:
            planner, _ = planner_behind(Mixes(plan), loader.topology, 0, {}, step - 1)
        totals.planned(planner.next().documents, -1)


def _left_out(skipped: Sequence[tuple[int, int]]) -> list[int]:
    return sorted({step for first, last in skipped for step in range(first, last + 1)})


def _source(
    leaf: Leaf, samples: int, tokens: int, supervised: int, cut: int, cut_samples: int, coverage: float | None
) -> SourceForecast:
    return SourceForecast(
        name=leaf.name,
        groups=leaf.groups,
        rows=None if leaf.streams else leaf.rows,
        share=leaf.share,
        samples=int(samples),
        tokens=int(tokens),
        supervised=int(supervised),
        cut=int(cut),
        cut_samples=int(cut_samples),
        coverage=coverage,
        dropped=dict(leaf.dropped),
    )


def _course(plan: Plan, steps: Ints, samples: Any, tokens: Any) -> Course:
    shares = [plan.mixture.weights.shares(step) for step in steps.tolist()]
    return Course(
        steps=steps.tolist(),
        asked={name: [at[name] for at in shares] for name in plan.names},
        samples={name: samples[:, at].tolist() for at, name in enumerate(plan.names)},
        tokens={name: tokens[:, at].tolist() for at, name in enumerate(plan.names)},
    )
