"""What a run will be given, estimated from its first draws: for mixes of which nothing is known until it is read."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from streamsft.stream.measures import Measures
from streamsft.stream.plan import Plan
from streamsft.stream.steps import Mixes, StepPlanner
from streamsft.stream.topology import Topology
from streamsft.types import Floats, Ints

__all__ = ["estimated"]

_DRAWS = 4096  # documents that are read for the estimate
_GRID = 1000  # steps at which weights are looked up

_Columns: TypeAlias = tuple[Ints, Ints, Ints, Ints, Ints]


def estimated(mixes: Mixes, topology: Topology, steps: int, course_steps: Ints) -> tuple[_Columns, Floats, Floats, int]:
    """Samples, tokens, labels, cut tokens and cut samples of each leaf over a run; the first two by step; documents.

    What a draw of a source takes, and how full packs are, is taken from the first draws; how often each source is
    drawn, from the weights of each step. Of a source that is not among the first draws, a streaming one is taken to be
    like the others, and of another all lengths are known.

    Args:
        mixes: what is drawn; its streaming sources are read and tokenized as far as the first draws go.
        topology: how steps are made.
        steps: steps of the run.
        course_steps: steps for which samples and tokens up to them are wanted, ascending.
    """
    plan = mixes.plan
    means, full = _looked_at(mixes, topology)
    grid = np.unique(np.linspace(1, max(steps, int(course_steps[-1])), _GRID).round().astype(np.int64))
    names = plan.names
    shares = np.array([[plan.mixture.weights.shares(step)[name] for name in names] for step in grid.tolist()])
    tokens_a_step = topology.global_batch_size * full
    if plan.mixture.unit == "tokens":
        draws = tokens_a_step * shares / means[:, 1]
    else:
        draws = tokens_a_step * shares / (shares @ means[:, 1])[:, None]
    by_step = np.cumsum(draws * np.diff(grid, prepend=0)[:, None], axis=0)
    samples = np.stack([np.interp(course_steps, grid, column) for column in by_step.T], axis=1)
    total = np.array([np.interp(steps, grid, column) for column in by_step.T])
    whole = np.rint(total[:, None] * means).astype(np.int64)
    columns = (np.rint(total).astype(np.int64), whole[:, 1], whole[:, 2], whole[:, 3], whole[:, 4])
    return columns, samples, samples * means[:, 1], int(whole[:, 0].sum())


def _looked_at(mixes: Mixes, topology: Topology) -> tuple[Floats, float]:
    """Documents, tokens, labels, cut tokens and cut documents per draw of each leaf; and tokens per pack."""
    plan = mixes.plan
    planner = StepPlanner(mixes, topology, 0, {})
    sums = np.zeros((len(plan.leaves), 6))
    packs = 0
    while sums[:, 1].sum() < _DRAWS:
        step = planner.next()
        packs += step.packs
        documents = step.documents
        for at in np.unique(documents.source).tolist():
            mine = documents.take(documents.source == at)
            masks = planner.read(at, mine.stored)[1]
            parts = zip(masks, mine.start.tolist(), mine.length.tolist(), strict=True)
            labels = sum(int(np.count_nonzero(mask[start + 1 : start + length])) for mask, start, length in parts)
            cut = mine.cut
            sums[at] += (mine.first.sum(), len(cut), mine.length.sum(), labels, cut.sum(), np.count_nonzero(cut))
    drawn = np.maximum(sums[:, 0], 1)
    means = sums[:, 1:] / drawn[:, None]
    for at in np.flatnonzero(sums[:, 0] == 0).tolist():
        means[at] = (
            _of_all_rows(plan, at) if at not in plan.streaming else sums[:, 1:].sum(0) / max(1, sums[:, 0].sum())
        )
    return means, float(sums[:, 2].sum() / packs)


def _of_all_rows(plan: Plan, at: int) -> Floats:
    leaf = plan.leaves[at]
    assert plan.packing is not None
    measures = Measures(leaf, plan.packing)
    stored = np.arange(len(leaf.indexed)) if leaf.usable is None else leaf.usable
    taken = measures.of(stored)
    documents = measures.documents(stored)[0]
    cut = (taken.cut.sum(), np.count_nonzero(taken.cut))
    return np.array([documents.sum(), taken.tokens.sum(), taken.supervised.sum(), *cut]) / len(stored)
