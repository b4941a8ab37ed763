"""A walk along a lane stands where the lane stands that gave each pack out, and passes the same draws."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from streamsft.stream.interleave import Interleave
from streamsft.stream.lane import Lane
from streamsft.stream.lanestate import LaneState
from streamsft.stream.measures import Measures
from streamsft.stream.packer import Packer
from streamsft.stream.skipping import pattern_of, planner_behind
from streamsft.stream.steps import Mixes, StepPlanner
from streamsft.stream.topology import Topology
from streamsft.stream.walk import LaneWalk, Passed
from streamsft.types import Shard
from tests.mixes import Mix, mixes

UNITS = st.sampled_from(["samples", "tokens"])
SCHEDULE: list[Any] = [{0: 1.0, 9: 0.0, 30: 4.0}, 1.0, {0: 0.0, 12: 3.0, "hold": True}]


def packer(mix: Mix, unit: Any = "samples", *, scheduled: bool = False) -> Packer:
    sources = mix.sources()
    weights: Any = mix.weights
    if scheduled:
        weights = [SCHEDULE[(at + 1) % 3] for at in range(len(sources))]
    made = Interleave(list(sources), weights, unit=unit, seed=mix.seed)
    return Packer(made, mix.sequence_length, lookahead=mix.lookahead, overflow=mix.overflow)


@settings(max_examples=15)
@given(
    mixes(),
    UNITS,
    st.booleans(),
    st.sampled_from([(4, 1, 1), (2, 1, 3), (6, 2, 2), (3, 3, 1)]),
    st.lists(st.integers(0, 45), min_size=1, max_size=2),
)
def test_a_planner_behind_a_step_plans_what_comes_next(
    mix: Mix, unit: str, scheduled: bool, lanes: tuple[int, int, int], targets: list[int]
) -> None:
    batch, per_step, groups = lanes
    topology = Topology(global_batch_size=batch, dp=Shard(), lanes_per_step=per_step, lane_groups=groups)
    plans = Mixes(packer(mix, unit, scheduled=scheduled).plan(topology.lanes))
    planner = StepPlanner(plans, topology, 0, {})
    states: dict[int, LaneState] = {}
    last: tuple[int, dict[int, LaneState]] = (0, {})
    for target in sorted(targets):
        while planner.step < target:
            planned = planner.next()
            states |= planned.lanes
        for begun, known in ((0, {}), last):
            found = planner_behind(plans, topology, begun, known, target)[0].next()
            again = StepPlanner(plans, topology, target, dict(states)).next()
            assert found.lanes == again.lanes
            for ours, theirs in zip(found.documents, again.documents, strict=True):
                assert ours.tolist() == theirs.tolist()
        last = (target, dict(states))


@settings(max_examples=15)
@given(mixes(), UNITS, st.integers(0, 200), st.integers(0, 60))
def test_a_walk_passes_the_draws_of_the_windows_and_what_they_take(mix: Mix, unit: str, packs: int, more: int) -> None:
    plan = packer(mix, unit).plan()
    measures = [Measures(leaf, mix.packer().packing) for leaf in plan.leaves]
    topology = Topology(global_batch_size=1, dp=Shard())
    walk = LaneWalk(plan, 0, LaneState.start(plan, 0), pattern_of(topology, 0, 0), measures=measures)
    passed: list[Passed] = []
    walk.to(packs, passed.append)
    lane = Lane(plan, 0)
    documents = lane.take(packs) if packs else walk.window()[0]
    assert walk.state == lane.state
    inside = documents.packs(0, packs - walk.window()[1])
    for at, leaf in enumerate(plan.leaves):
        stored = np.concatenate([one.stored[one.source == at] for one in passed] or [np.empty(0, np.int64)])
        whole = measures[at].of(stored)
        mine = inside.source == at
        assert whole.tokens.sum() == inside.length[mine].sum()
        assert whole.cut.sum() == inside.cut[mine].sum()
        assert sorted(set(stored.tolist())) == sorted(set(inside.stored[mine].tolist()))
        part = inside.take(mine)
        masks = leaf.indexed.read(part.stored)[1]
        labels = [mask[s + 1 : s + n].sum() for mask, s, n in zip(masks, part.start, part.length, strict=True)]
        assert whole.supervised.sum() == sum(labels)
        assert measures[at].documents(stored)[0].sum() == len(labels)
    walk.to(packs + more)
    if more:
        lane.take(more)
    assert walk.state == lane.state


@pytest.mark.parametrize("packs", [5, 0])
@pytest.mark.parametrize("lookahead", [0, 50])
def test_a_walk_goes_on_behind_an_edit_of_the_mix_within_a_window_or_at_its_border(lookahead: int, packs: int) -> None:
    mix = Mix(lengths=((2, 5, 9, 3) * 4, (2, 7, 1, 14, 30, 4), (2, 11)), lookahead=lookahead)
    before = packer(mix).plan()
    weights: Any = [1.0, {0: 3.0, 40: 0.5}, 0.0]
    after = Packer(Interleave(list(mix.sources()), weights, seed=mix.seed), 12, lookahead=lookahead).plan()
    lane = Lane(before, 0)
    lane.take(packs or lane.rest()[1])
    assert bool(lane.state.emitted) == bool(packs)
    topology = Topology(global_batch_size=5, dp=Shard())
    both = Mixes(after, before)
    start = replace(lane.state, before_edit=True)
    planner = StepPlanner(both, topology, 1, {0: start})
    for target in range(1, 60):
        found = planner_behind(both, topology, 1, {0: start}, target)[0].next()
        planned = planner.next()
        assert found.lanes == planned.lanes
        assert all(a.tolist() == b.tolist() for a, b in zip(found.documents, planned.documents, strict=True))
