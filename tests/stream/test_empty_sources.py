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
