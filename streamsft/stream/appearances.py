"""In which steps a row appears, planned from lengths alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streamsft.stream.documents import Documents
from streamsft.stream.lanestate import LaneState
from streamsft.stream.measures import Measures
from streamsft.stream.plan import Plan
from streamsft.stream.skipping import Told, pattern_of
from streamsft.stream.topology import Topology
from streamsft.stream.walk import LaneWalk, Passed

__all__ = ["Appearance", "appearances"]


class Appearance(NamedTuple):
    """One time that a row is given to a step."""

    step: int
    """Step of the stream."""
    pack: int
    """Number of the pack in the step, from 0, over all ranks."""
    pass_index: int
    """How often the source had been gone through before."""
    start: int
    """First token taken of the row; above 0 in later fragments of a split row only."""


def appearances(
    plan: Plan, topology: Topology, leaf: int, stored: int, last: int, told: Told | None = None
) -> list[Appearance]:
    """Every time that a stored row of a leaf is given to one of the first `last` steps of the stream, in order."""
    assert plan.packing is not None
    measures = [Measures(one, plan.packing) for one in plan.leaves]
    patterns = [pattern_of(topology, lane, 0) for lane in range(topology.lanes)]
    ends = [pattern.before(last + 1) for pattern in patterns]
    found: list[Appearance] = []

    def note(documents: Documents, first: int, lane: int) -> None:
        place = lane % topology.lanes_per_step * patterns[lane].packs
        for at in np.flatnonzero((documents.source == leaf) & (documents.stored == stored)).tolist():
            pack = first + int(documents.pack[at])
            step, within = int(patterns[lane].step(pack)), place + pack % patterns[lane].packs
            found.append(Appearance(step, within, int(documents.pass_index[at]), int(documents.start[at])))

    for lane, (pattern, end) in enumerate(zip(patterns, ends, strict=True)):
        walk = LaneWalk(plan, lane, LaneState.start(plan, lane), pattern, measures=measures)

        def observe(passed: Passed, walk: LaneWalk = walk, lane: int = lane) -> None:
            hits = np.flatnonzero((passed.source == leaf) & (passed.stored == stored)) // plan.draws
            for at in np.unique(hits).tolist():
                note(*walk.planned(passed, at), lane)
            if told is not None:
                told(sum(ends[:lane]) + passed.start + int(passed.packs.sum()), sum(ends))

        walk.to(end, observe)
        documents, packs = walk.window()
        note(documents, end - packs, lane)
    return sorted(found)
