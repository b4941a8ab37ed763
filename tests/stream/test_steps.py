"""Which packs make a step, and which of them a rank owns."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from streamsft.errors import ConfigError
from streamsft.stream.loader import Loader
from streamsft.stream.topology import Topology
from streamsft.types import Shard
from tests.streams import Shards, StreamedMix


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


topologies = st.integers(1, 24).flatmap(
    lambda batch: st.tuples(
        st.just(batch), st.sampled_from(_divisors(batch)), st.sampled_from(_divisors(batch)), st.integers(1, 3)
    )
)


@given(values=topologies)
def test_ranks_own_every_pack_of_a_step_once_and_in_order(values: tuple[int, int, int, int]) -> None:
    batch, ranks, lanes, groups = values
    found = []
    for rank in range(ranks):
        topology = Topology(global_batch_size=batch, dp=Shard(rank, ranks), lanes_per_step=lanes, lane_groups=groups)
        assert topology.packs == batch // ranks
        mine = [(place, pack) for place in range(lanes) for pack in range(*topology.share(place))]
        assert len(mine) == topology.packs
        places = {place for place, _ in mine}
        assert topology.owned == [group * lanes + place for group in range(groups) for place in sorted(places)]
        found += mine
    assert found == [(place, pack) for place in range(lanes) for pack in range(batch // lanes)]


def test_groups_of_lanes_take_turns() -> None:
    topology = Topology(global_batch_size=4, dp=Shard(), lanes_per_step=2, lane_groups=3)
    assert [list(topology.group(step)) for step in range(4)] == [[0, 1], [2, 3], [4, 5], [0, 1]]


def test_ranks_that_do_not_divide_the_batch_are_refused_with_those_that_do() -> None:
    with pytest.raises(
        ConfigError, match=r"dp size 5 does not divide loader.global_batch_size 12; .* 1, 2, 3, 4, 6, 12"
    ):
        Topology(global_batch_size=12, dp=Shard(0, 5))
    with pytest.raises(ConfigError, match=r"lanes_per_step 8 does not divide .* 1, 2, 3, 4, 6, 12"):
        Topology(global_batch_size=12, dp=Shard(), lanes_per_step=8)


@pytest.mark.parametrize("key", ["global_batch_size", "lanes_per_step", "lane_groups"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "2", None])
def test_counts_below_one_are_refused_by_name(key: str, value: Any) -> None:
    values = {"global_batch_size": 12, "lanes_per_step": 1, "lane_groups": 1, key: value}
    with pytest.raises(ConfigError, match=f"loader.{key}: "):
        Topology(dp=Shard(), **values)


@pytest.mark.parametrize(
    ("ranks", "workers", "message"),
    [(3, 0, "dp size 3 does not divide loader.lanes_per_step 4, .* it may be one of 1, 2, 4"),
     (12, 0, "dp size 12 does not divide loader.lanes_per_step 4"),
     (2, 4, "loader.workers 4 does not divide loader.lane_groups 6, .* it may be one of 1, 2, 3, 6"),
     (1, 12, "loader.workers 12 does not divide loader.lane_groups 6")],
)  # fmt: skip
def test_topologies_in_which_two_processes_would_read_a_lane_are_refused(
    ranks: int, workers: int, message: str
) -> None:
    topology = Topology(global_batch_size=12, dp=Shard(0, ranks), lanes_per_step=4, lane_groups=6)
    with pytest.raises(ConfigError, match=message):
        topology.check_owners(workers)


@given(
    lanes=st.sampled_from([1, 2, 4, 6, 12]),
    groups=st.integers(1, 12),
    ranks=st.integers(1, 12),
    workers=st.integers(0, 12),
)
def test_each_lane_has_one_owner_wherever_that_is_allowed(lanes: int, groups: int, ranks: int, workers: int) -> None:
    allowed = 12 % ranks == 0 and lanes % ranks == 0 and groups % max(workers, 1) == 0
    owners: list[tuple[int, int, int]] = []
    for rank in range(ranks if 12 % ranks == 0 else 0):
        topology = Topology(global_batch_size=12, dp=Shard(rank, ranks), lanes_per_step=lanes, lane_groups=groups)
        if allowed:
            topology.check_owners(workers)
        else:
            with pytest.raises(ConfigError, match=r"it may be one of \d"):
                topology.check_owners(workers)
        for step in range(groups * max(workers, 1)):
            mine = set(topology.group(step)) & set(topology.owned)
            owners += [(lane, rank, step % max(workers, 1)) for lane in mine]
    if allowed:
        assert sorted(lane for lane, *_ in set(owners)) == list(range(lanes * groups))


def test_mix_with_a_streaming_source_checks_owners_and_one_without_does_not() -> None:
    streaming, indexed = StreamedMix(), StreamedMix(shards={"a": Shards(indexed=True)})
    for options in ({"dp": Shard(0, 4)}, {"workers": 3}):
        with pytest.raises(ConfigError, match="one process reads each lane of a source that streams"):
            streaming.loader(**options)
        indexed.loader(**options)


@pytest.mark.parametrize(("batch", "lanes"), [(16, 8), (12, 4), (6, 2), (3, 1)])
def test_lanes_follow_from_the_batch_alone_by_default(batch: int, lanes: int) -> None:
    options: Any = {"global_batch_size": batch, "lanes_per_step": None, "lane_groups": None}
    assert _lanes(StreamedMix().loader(**options)) == (lanes, 4)
    assert _lanes(StreamedMix(shards={"a": Shards(indexed=True)}).loader(**options)) == (1, 1)


def _lanes(loader: Loader) -> tuple[int, int]:
    return loader.topology.lanes_per_step, loader.topology.lane_groups
