"""A planner of the steps behind any step, without planning the ones before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

from streamsft.stream.lane import LaneState
from streamsft.stream.measures import Measures
from streamsft.stream.steps import Mixes, StepPlanner, Topology
from streamsft.stream.walk import LaneWalk, Passed, Pattern
from streamsft.types import Shard

__all__ = ["Told", "pattern_of", "planner_behind"]

Told: TypeAlias = Callable[[int, int], None]
"""Is told how much of how much is done, in packs."""


def pattern_of(topology: Topology, lane: int, step: int) -> Pattern:
    """Which steps behind `step` take packs of a lane."""
    group = lane // topology.lanes_per_step
    return Pattern(
        first=step + 1 + (group - step) % topology.lane_groups,
        every=topology.lane_groups,
        packs=topology.global_batch_size // topology.lanes_per_step,
    )


def planner_behind(
    mixes: Mixes,
    topology: Topology,
    step: int,
    lanes: Mapping[int, LaneState],
    target: int,
    told: Told | None = None,
) -> StepPlanner:
    """A planner of all packs of the steps behind step `target` of the stream.

    Over indexable sources it takes a fraction of the time of planning the steps between. Streaming sources are read
    all the way.

    Args:
        mixes: what is drawn.
        topology: how steps are made; whichever rank it is of, all of their packs are planned.
        step: the step of the stream behind which `lanes` stand, at most `target`.
        lanes: state of the lanes; those left out are at their start.
        target: the step behind which to stand.
        told: is told how far it has come.
    """
    told = told or (lambda done, total: None)
    topology = replace(topology, dp=Shard())
    if mixes.streaming:
        planner = StepPlanner(mixes, topology, step, lanes)
        while planner.step < target:
            planner.next()
            told(planner.step - step, target - step)
        return planner
    patterns = {lane: pattern_of(topology, lane, step) for lane in range(topology.lanes)}
    total = sum(pattern.before(target + 1) for pattern in patterns.values())
    assert mixes.plan.packing is not None
    measures = [Measures(leaf, mixes.plan.packing) for leaf in mixes.plan.leaves]
    states: dict[int, LaneState] = {}
    done = 0

    def observe(passed: Passed) -> None:
        told(done + passed.start + int(passed.packs.sum()), total)

    for lane, pattern in patterns.items():
        state = lanes.get(lane) or LaneState.start(mixes.plan, lane)
        walk = LaneWalk(mixes.plan, lane, state, pattern, before=mixes.before, measures=measures)
        walk.to(pattern.before(target + 1), observe)
        states[lane] = walk.state
        done += walk.taken
    return StepPlanner(mixes, topology, target, states)
