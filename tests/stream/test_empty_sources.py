"""Streaming sources that give nothing, and those that give very little."""

from __future__ import annotations

from typing import Any

import pytest

from streamsft.comm import ThreadComm
from streamsft.errors import EmptySourceError
from streamsft.sources.streaming import StreamingSource
from streamsft.stream.feed import Feed
from streamsft.stream.interleave import Interleave
from streamsft.stream.loader import Loader
from streamsft.stream.packer import Packer
from streamsft.types import Shard
from tests import laws
from tests.fakes import plain_rows, source, streamed

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more processes than cores


def _feed(stream: StreamingSource, lane: int = 0, lanes: int = 1) -> Feed:
    return Feed(stream, seed=7, lane=lane, lanes=lanes, packing=None)


EMPTY = [plain_rows(5, refused="too_dull"), plain_rows(2, refused="too_odd")]


def _rejecting_mix() -> Packer:
    mix = Interleave([source("fine", [3, 4]), streamed("barren", EMPTY)], [5.0, 1.0])
    return Packer(mix, 16, lookahead=20)


@pytest.mark.parametrize("lanes", [1, 2, 8])
def test_source_without_a_row_that_can_be_drawn_raises_with_its_reasons(lanes: int) -> None:
    for lane in range(lanes):
        with pytest.raises(EmptySourceError, match=f"source 'barren' gave lane {lane} no row.*too_dull.*too_odd"):
            _feed(streamed("barren", EMPTY), lane, lanes).rows([0])


def test_source_without_any_row_raises() -> None:
    with pytest.raises(EmptySourceError, match="source 'void' has no data to read"):
        _feed(streamed("void", [[]]))


@pytest.mark.parametrize("options", [{}, {"background": False}, {"workers": 2, "start_method": "fork"}])
def test_empty_source_of_a_mixture_is_named_wherever_it_is_read(options: dict[str, Any]) -> None:
    loader = Loader(_rejecting_mix(), global_batch_size=4, lanes_per_step=2, lane_groups=2, **options)
    with pytest.raises(EmptySourceError, match="source 'barren' gave lane"):
        laws.first(loader, 200)


def test_empty_source_is_named_on_every_rank() -> None:
    def run(comm: ThreadComm) -> str:
        loader = Loader(_rejecting_mix(), global_batch_size=4, lanes_per_step=4, dp=Shard(comm.rank, comm.size))
        with pytest.raises(EmptySourceError) as caught:
            laws.first(loader, 200)
        comm.barrier()
        return str(caught.value)

    assert all("source 'barren' gave lane" in message for message in ThreadComm.run(4, run))


def test_one_good_row_among_many_is_found_by_every_lane() -> None:
    shards = [plain_rows(3, refused="odd") for _ in range(8)]
    shards[5][1] = plain_rows(1)[0]
    for lane in range(8):
        rows = _feed(streamed("s", shards), lane, 8).rows(range(4))
        assert {row.row for row in rows} == {(5 << 32) + 1}


def test_few_good_rows_among_thousands_on_many_lanes_are_no_empty_source() -> None:
    """A lane's random part of as many passes as there are lanes misses the one good row once in three times."""
    shards = [plain_rows(1, refused="odd") * 40 for _ in range(64)]
    shards[5][7] = plain_rows(1)[0]
    missed = 0
    for lane in range(0, 64, 5):
        (row,) = _feed(streamed("s", shards, shuffle_window=50), lane, 64).rows([0])
        assert row.row == (5 << 32) + 7
        missed += row.pass_index >= 64
    assert missed, "no lane has searched the whole source"


def test_lane_that_is_dealt_the_same_bad_rows_again_and_again_says_so() -> None:
    """Unshuffled, two files on two lanes: the second lane gets the second file alone."""
    stream = streamed("s", [plain_rows(3), plain_rows(3, refused="odd")], shuffle=False)
    assert [row.row for row in _feed(stream, 0, 2).rows(range(4))] == [0, 1, 2, 0]
    with pytest.raises(EmptySourceError, match="source 's' gave lane 1 no row that could be drawn in 2 passes: 6 odd"):
        _feed(stream, 1, 2).rows([0])


def test_rest_of_a_pass_without_a_good_row_is_not_taken_for_the_whole() -> None:
    stream = streamed("s", [[*plain_rows(1), *plain_rows(3, refused="odd")]], shuffle=False, shuffle_window=1)
    first = _feed(stream)
    first.rows([0])
    again = Feed(stream, seed=7, lane=0, lanes=1, packing=None, number=1, state=first.state(1))
    assert [(row.row, row.pass_index, row.refused) for row in again.rows([1])] == [(0, 1, {"odd": 3})]
