"""A planner of the steps behind any step, without planning the ones before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from streamsft.stream.lanestate import LaneState
from streamsft.stream.loader import Loader
from streamsft.stream.measures import Measures
from streamsft.stream.steps import Mixes, StepPlanner
from streamsft.stream.stretches import checked_stretches
from streamsft.stream.topology import Topology
from streamsft.stream.walk import LaneWalk, Passed, Pattern
from streamsft.types import Shard

__all__ = ["Told", "advance", "pattern_of", "planner_behind", "stream_step"]

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
) -> tuple[StepPlanner, dict[int, LaneState]]:
    """A planner of all packs of the steps behind step `target` of the stream, and the state of all lanes there.

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
        behind = {lane: lanes.get(lane) or LaneState.start(mixes.plan, lane) for lane in range(topology.lanes)}
        while planner.step < target:
            behind |= planner.next().lanes
            told(planner.step - step, target - step)
        return planner, behind
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
    return StepPlanner(mixes, topology, target, states), states


def stream_step(step: int, skipped: Sequence[tuple[int, int]], behind: tuple[int, int] = (0, 0)) -> int:
    """The step of the stream that an optimizer step is given, where stretches of the stream are left out.

    Args:
        step: the optimizer step.
        skipped: first and last step of the stream of each stretch.
        behind: an optimizer step at or before `step`, and the step of the stream that it was given.
    """
    known, at = behind
    for left_out in sorted({one for first, last in skipped for one in range(max(first, at + 1), last + 1)}):
        if left_out > at + step - known:
            break
        known -= 1
    return at + step - known


def advance(loader: Loader, step: int, told: Told | None = None) -> None:
    """Have `loader`, which has not been iterated, stand behind optimizer step `step` as if it had been up to there.

    It is a loader of all ranks' packs, and stands before that step.
    """
    target = stream_step(step, checked_stretches(loader.skip_steps), (loader.step, loader.data_step))
    planner, lanes = planner_behind(loader._mixes, loader.topology, loader.data_step, loader._lanes, target, told)
    loader._lanes = {number: lanes[number] for number in loader._lanes}
    loader._step, loader._data_step = step, planner.step
