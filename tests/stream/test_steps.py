"""Which packs make a step, and which of them a rank owns."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from streamsft.errors import ConfigError
from streamsft.stream.steps import Topology
from streamsft.types import Shard


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
