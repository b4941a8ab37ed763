"""Sources that are read by row groups, as a mix, a lane and a loader see them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from streamsft.errors import ConfigError, StateError
from streamsft.stream.forecasting import forecast_stream
from streamsft.stream.interleave import Interleave
from streamsft.stream.lanestate import LaneState
from streamsft.stream.loader import Loader
from streamsft.stream.packer import Packer
from streamsft.stream.skipping import planner_behind
from streamsft.stream.sourcestream import SourceStream
from streamsft.stream.steps import Mixes, StepPlanner
from streamsft.stream.topology import Topology
from streamsft.types import Shard
from tests.fakes import GroupedList, ListSource, source
from tests.laws import Leg, as_json, elastic, first
from tests.mixes import Mix, mixes


def grouped(rows: int = 60, size: int = 5, name: str = "a") -> GroupedList:
    return GroupedList(source(name, [4] * rows), list(range(0, rows + 1, size)))


def loader(*sources: GroupedList, block: int = 2, **options: Any) -> Loader:
    streams = [SourceStream(one, shuffle_groups=block) for one in sources]
    return Loader(Packer(Interleave(streams), 8, lookahead=10), **{"background": False, **options})


def test_lanes_are_owned_by_default_and_come_from_the_batch_alone() -> None:
    for dp in (Shard(), Shard(1, 4)):
        topology = loader(grouped(), global_batch_size=12, dp=dp).topology
        assert (topology.lanes_per_step, topology.lane_groups) == (4, 4)


@pytest.mark.parametrize(("options", "message"), [
    ({"dp": Shard(0, 3)}, "dp size 3 does not divide loader.lanes_per_step 4"),
    ({"workers": 3}, "loader.workers 3 does not divide loader.lane_groups 4"),
])  # fmt: skip
def test_a_lane_has_one_owner(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        loader(grouped(), global_batch_size=12, **options)


def test_what_a_lane_is_said_to_read_next_is_what_it_reads() -> None:
    one = grouped()
    made = loader(one, global_batch_size=1, lanes_per_step=1, lane_groups=1)
    batches = iter(made)
    next(batches)
    for _ in range(20):
        told, reads = one.expected[0], len(one.reads)
        next(batches)
        read = {group for groups in one.reads[reads:] for group in groups}
        assert read <= {group for group, _ in told[: len(read) + 4]}
        assert [before for _, before in told] == sorted(before for _, before in told)


def test_planning_alone_tells_sources_nothing() -> None:
    one = grouped()
    made = loader(one, global_batch_size=4)
    forecast = forecast_stream(made, 30)
    assert forecast.exact
    assert forecast.sources["a"].coverage == 1.0
    planner_behind(made._mixes, made.topology, 0, {}, 20)[0].next()
    assert not one.expected
    assert not one.reads
    first(made, 3)
    assert one.expected
    assert one.reads


@settings(max_examples=8)
@given(mixes(), st.sampled_from([(4, 1, 1), (6, 2, 2)]), st.integers(0, 40))
def test_a_planner_behind_a_step_stands_where_the_lanes_stand(mix: Mix, lanes: tuple[int, int, int], step: int) -> None:
    batch, per_step, groups = lanes
    topology = Topology(global_batch_size=batch, dp=Shard(), lanes_per_step=per_step, lane_groups=groups)
    plans = Mixes(mix.packer_by_groups().plan(topology.lanes))
    planner = StepPlanner(plans, topology, 0, {})
    states: dict[int, LaneState] = {}
    while planner.step < step:
        states |= planner.next().lanes
    found, expected = planner_behind(plans, topology, 0, {}, step)[0].next(), planner.next()
    assert found.lanes == expected.lanes
    for ours, theirs in zip(found.documents, expected.documents, strict=True):
        assert ours.tolist() == theirs.tolist()
    again = StepPlanner(plans, topology, step, states).next()
    assert again.lanes == expected.lanes


def test_each_lane_reads_groups_of_its_own() -> None:
    parts = [grouped() for _ in range(3)]
    owners: dict[tuple[int, int], int] = {}
    for index, part in enumerate(parts):
        stream = SourceStream(part, shuffle_groups=2, shard=Shard(index, 3))
        for sample, _ in zip(stream, range(60), strict=False):
            group = (sample.pass_index, sample.row // 5)
            assert owners.setdefault(group, index) == index


def test_groups_without_a_row_to_train_on_are_left_out() -> None:
    rows: list[tuple[list[int], list[int]]] = [
        ([row, 1, 2], [0, 0, 1 if row // 4 in (1, 3) else 0]) for row in range(20)
    ]
    one = GroupedList(ListSource("a", rows), [0, 4, 8, 12, 16, 20])
    stream = SourceStream(one, shuffle_groups=1)
    drawn = [next(iter_).row for iter_ in [iter(stream)] for _ in range(16)]
    assert sorted(drawn[:8]) == sorted(drawn[8:]) == [4, 5, 6, 7, 12, 13, 14, 15]
    assert {group for read in one.reads for group in read} == {1, 3}


def test_another_layout_of_the_same_rows_is_another_stream() -> None:
    made = loader(grouped(size=5), global_batch_size=4)
    first(made, 3)
    state = as_json(made.state_dict())
    loader(grouped(size=5), global_batch_size=4).load_state_dict(state)
    for other in (loader(grouped(size=6), global_batch_size=4), loader(grouped(size=5), block=3, global_batch_size=4)):
        with pytest.raises(StateError, match="blocks of 2 row groups"):
            other.load_state_dict(state)


@pytest.mark.parametrize("groups", [0, True, 1.5])
def test_a_number_of_groups_is_at_least_one(groups: Any) -> None:
    with pytest.raises(ConfigError, match="is not a number of row groups >= 1"):
        SourceStream(grouped(), shuffle_groups=groups)


def test_what_has_no_groups_cannot_be_shuffled_by_them() -> None:
    with pytest.raises(ConfigError, match="has no row groups to shuffle by"):
        SourceStream(source("a", [3, 3]), shuffle_groups=2)
    with pytest.raises(ConfigError, match="no effect without shuffle"):
        SourceStream(grouped(), shuffle=False, shuffle_groups=2)


def test_a_run_moves_between_all_topologies_that_its_lanes_allow() -> None:
    def make(leg: Leg, dp: Shard) -> Loader:
        sources = grouped(rows=37), grouped(rows=23, size=3, name="b")
        return loader(
            *sources, global_batch_size=4, lanes_per_step=4, lane_groups=2, dp=dp, workers=leg.workers,
            background=leg.background,
        )  # fmt: skip

    elastic(make, [Leg(1, 3), Leg(2, 4), Leg(4, 2), Leg(1, 3, workers=2), Leg(2, 3, background=True), Leg(2, 2)])
