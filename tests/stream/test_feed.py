"""`Feed`: what a lane gets of a streaming source, in which order, and what ends it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from streamsft.errors import DataError, StateError
from streamsft.order.keys import derive_key, shuffled
from streamsft.sources.streaming import Encoded, Refused, StreamingSource
from streamsft.stream.blocks import FeedState
from streamsft.stream.feed import FedRow, Feed, read_ahead
from streamsft.stream.interleave import Interleave
from streamsft.stream.lane import Lane
from streamsft.stream.lanestate import LaneState
from streamsft.stream.loader import Loader
from streamsft.stream.packer import Packer
from streamsft.stream.packing import Packing
from streamsft.stream.steps import Mixes, StepPlanner
from streamsft.stream.topology import Topology
from streamsft.types import Shard
from tests import laws
from tests.fakes import ListShards, Row, encode_rows, plain_rows, streamed
from tests.streams import Shards, StreamedMix

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more processes than cores

NAME = "s"


def _shards(*counts: int) -> list[list[Row]]:
    return [plain_rows(count) for count in counts]


def _feed(stream: StreamingSource, lane: int = 0, lanes: int = 1, **options: Any) -> Feed:
    return Feed(stream, **{"seed": 7, "lane": lane, "lanes": lanes, "packing": None, **options})


def _rows(feed: Feed) -> Iterator[FedRow]:
    """The rows of a fresh cursor, one after the other."""
    number = 0
    while True:
        yield feed.rows([number])[0]
        number += 1
        feed.forget(number)


def _reader(stream: StreamingSource) -> ListShards:
    assert isinstance(stream.reader, ListShards)
    return stream.reader


@settings(max_examples=25)
@given(counts=st.lists(st.integers(1, 4), min_size=1, max_size=9), lanes=st.integers(1, 9), shuffle=st.booleans())
def test_shards_are_dealt_to_lanes_in_turn_from_pass_to_pass(counts: list[int], lanes: int, shuffle: bool) -> None:
    """The k-th shard of pass p goes to lane (offset + k) mod lanes, the offset going on from the pass before."""
    stream = streamed(NAME, _shards(*counts), shuffle=shuffle, shuffle_window=2)
    units = _reader(stream).units(lanes)
    dealt: dict[int, list[tuple[int, int]]] = {lane: [] for lane in range(lanes)}
    offset = 0
    for pass_index in range(4):
        order = shuffled(derive_key(7, NAME, "shards", pass_index), units).tolist() if shuffle else range(units)
        for place, unit in enumerate(order):
            dealt[(offset + place) % lanes].append((pass_index, unit))
        offset = (offset + units) % lanes
    for lane, expected in dealt.items():
        got: list[tuple[int, int]] = []
        for row in _rows(_feed(stream, lane, lanes)):
            if row.pass_index >= 4:
                break
            unit = _unit_of(_reader(stream), row.row, lanes)
            if (row.pass_index, unit) not in got:
                got.append((row.pass_index, unit))
        assert sorted(got) == sorted(expected)
        if not shuffle:
            assert got == expected


def _unit_of(reader: ListShards, row: int, lanes: int) -> int:
    """The unit that a row lies in."""
    for number, (shard, start, step) in enumerate(reader._units(lanes)):
        if row >> 32 == shard and row % 2**32 % step == start:
            return number
    raise AssertionError(f"row {row} lies in no unit")


@pytest.mark.parametrize("counts", [(3,), (1, 2), (1, 1, 1)])
def test_three_rows_feed_eight_lanes(counts: tuple[int, ...]) -> None:
    stream = streamed(NAME, _shards(*counts))
    passes = []
    for lane in range(8):
        rows = list(islice(_rows(_feed(stream, lane, 8)), 30))
        assert len({row.row for row in rows}) == 3, "a lane draws one row only"
        passes.append(Counter((row.pass_index, row.row) for row in rows))
    together = sum(passes, Counter())
    assert max(together.values()) == 1
    whole = min(max(number for number, _ in counted) for counted in passes)
    assert all(sum(number == one for number, _ in together) == 3 for one in range(whole))
    assert max(max(number for number, _ in counted) for counted in passes) - whole <= 8, "lanes lie far apart"


def test_hundred_rows_of_one_shard_are_read_by_stride() -> None:
    stream = streamed(NAME, _shards(100))
    parts = [
        [row.row for row in _rows_of_pass(_feed(stream, lane, 4), 0)] for lane in range(4)
    ]  # fmt: skip
    assert [len(part) for part in parts] == [25] * 4
    assert sorted(chain(*parts)) == list(range(100))


def _rows_of_pass(feed: Feed, number: int) -> Iterator[FedRow]:
    for row in _rows(feed):
        if row.pass_index > number:
            return
        if row.pass_index == number:
            yield row


def test_rows_are_shuffled_in_closed_blocks_and_anew_in_each_pass() -> None:
    stream = streamed(NAME, _shards(40), shuffle_window=8)
    first, second = ([row.row for row in _rows_of_pass(_feed(stream), number)] for number in range(2))
    assert first != second != list(range(40))
    for rows in (first, second):
        assert [sorted(rows[at : at + 8]) for at in range(0, 40, 8)] == [
            list(range(at, at + 8)) for at in range(0, 40, 8)
        ]
        assert all(rows[at : at + 8] != sorted(rows[at : at + 8]) for at in range(0, 40, 8))


def test_block_is_closed_early_by_its_bytes() -> None:
    """A row of 3 tokens counts 24 bytes, so that 3 rows make 50."""
    stream = streamed(NAME, _shards(12), shuffle_window=8, block_bytes=50)
    rows = [row.row for row in _rows_of_pass(_feed(stream), 0)]
    assert [sorted(rows[at : at + 3]) for at in range(0, 12, 3)] == [list(range(at, at + 3)) for at in range(0, 12, 3)]
    assert rows != sorted(rows)


def test_rows_come_in_the_order_of_the_data_without_a_shuffle() -> None:
    stream = streamed(NAME, _shards(5, 3), shuffle=False, shuffle_window=2)
    rows = [(row.pass_index, row.row) for row in islice(_rows(_feed(stream)), 16)]
    data = [*range(5), *(2**32 + row for row in range(3))]
    assert rows == [(number, row) for number in range(2) for row in data]


@settings(max_examples=30)
@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    lanes=st.integers(1, 4),
    window=st.integers(1, 7),
    segments=st.lists(st.integers(0, 9), min_size=1, max_size=6),
)
def test_any_number_of_resumes_in_a_row_loses_and_repeats_nothing(
    counts: list[int], lanes: int, window: int, segments: list[int]
) -> None:
    shards = [[(ids, mask, "odd" if row % 3 == 2 else "") for row, (ids, mask, _) in enumerate(plain_rows(count))]
              for count in counts]  # fmt: skip
    make = lambda: streamed(NAME, shards, shuffle_window=window)  # noqa: E731
    expected = [row.row for row in islice(_rows(_feed(make(), lanes - 1, lanes)), sum(segments) + 1)]
    found: list[int] = []
    state: Any = FeedState().to_json()
    for length in segments:
        feed = _feed(make(), lanes - 1, lanes, number=len(found), state=FeedState.from_json(state))
        found += [row.row for row in feed.rows(range(len(found), len(found) + length))]
        state = json.loads(json.dumps(feed.state(len(found)).to_json()))
    assert found == expected[: len(found)]


def test_resuming_reads_no_more_than_the_open_block() -> None:
    stream = streamed(NAME, _shards(10_000), shuffle_window=50)
    feed = _feed(stream)
    feed.rows(range(9_020))
    state = feed.state(9_020)
    fresh = streamed(NAME, _shards(10_000), shuffle_window=50)
    again = _feed(fresh, number=9_020, state=state)
    again.rows([9_020])
    assert _reader(fresh).rows_read <= 50
    assert again.rows([9_020])[0].row == feed.rows([9_020])[0].row


def test_position_behind_the_end_of_a_block_is_refused() -> None:
    with pytest.raises(StateError, match="lane 0: 5 rows of a block of 4 were taken; the data has changed"):
        _feed(streamed(NAME, _shards(4)), state=FeedState(0, 0, None, 5))


def test_refused_rows_are_counted_where_the_next_one_is() -> None:
    rows = plain_rows(6)
    reasons = ["", "dull", "dull", "odd", "", ""]
    shard = [(ids, mask, reason) for (ids, mask, _), reason in zip(rows, reasons, strict=True)]
    got = list(islice(_rows(_feed(streamed(NAME, [shard], shuffle=False))), 4))
    assert [(row.row, dict(row.refused)) for row in got] == [(0, {}), (4, {"dull": 2, "odd": 1}), (5, {}), (0, {})]


@pytest.mark.parametrize(
    ("overflow", "refused"),
    [("truncate", {"nothing_supervised": 1}), ("drop", {"too_long": 1, "nothing_supervised": 1}), ("split", {})],
)
def test_rows_that_leave_nothing_under_the_packing_are_refused(overflow: Any, refused: dict[str, int]) -> None:
    late = (list(range(9)), [0] * 8 + [1], "")
    none = ([1, 2], [1, 0], "")
    shard: list[Row] = [late, *plain_rows(1)] if overflow != "drop" else [late, none, *plain_rows(1)]
    feed = _feed(
        streamed(NAME, [shard], shuffle=False), packing=Packing(sequence_length=4, lookahead=1, overflow=overflow)
    )
    assert dict(feed.rows([0])[0].refused) == refused


def test_row_that_is_too_long_is_named() -> None:
    packing = Packing(sequence_length=4, overflow="error")
    feed = _feed(streamed(NAME, [[*plain_rows(1), (list(range(9)), [1] * 9, "")]], shuffle=False), packing=packing)
    with pytest.raises(DataError, match=r"source 's', 0.list, row 1: 9 tokens do not fit a pack of 4 slots; raise"):
        feed.rows([1])


def test_source_of_two_rows_keeps_its_share_beside_a_large_one() -> None:
    """50 % to a tenth of a point over 200,000 draws on 8 lanes, with no more rows held than windows and blocks."""
    few = streamed("few", [plain_rows(2)])
    many = streamed("many", [plain_rows(1)[:1] * 5_000 for _ in range(10)], shuffle_window=100)
    plan = Packer(Interleave([few, many], [1.0, 1.0], seed=3), 64, lookahead=1000).plan(8)
    lanes = [Lane(plan, number) for number in range(8)]
    held = 0
    for _ in range(25):
        for lane in lanes:
            _, packs = lane.rest()
            lane.advance(packs)
            held = max(held, sum(len(feed._rows) + len(feed._raw) for feed in lane._feeds.values()))
    drawn = [sum(counts) for counts in zip(*(lane.state.drawn for lane in lanes), strict=True)]
    assert sum(drawn) == 200_000
    assert abs(drawn[0] / sum(drawn) - 0.5) <= 0.001
    assert held <= 1000 + 8 + 100 + 2, "more than a window and a block are kept"
    assert _reader(few).most_open <= 8
    assert _reader(many).most_open <= 8
    passes = [lane.state.feeds[0].pass_index for lane in lanes]
    assert max(passes) - min(passes) <= 8, "lanes lie far apart"


@pytest.mark.parametrize(("sources", "lanes"), [(1, 4), (1, 512), (5, 32), (20, 4)])
def test_state_of_many_lanes_is_small_far_into_a_run(sources: int, lanes: int) -> None:
    """Positions as a file of JSON Lines has them, after a hundred windows and passes."""
    children = [streamed(f"corpus-{number:02d}", _shards(40)) for number in range(sources)]
    loader = Loader(
        Packer(Interleave(children, [1 + 0.37 * number for number in range(sources)], seed=7), 64, lookahead=9),
        global_batch_size=lanes, lanes_per_step=lanes // 4, lane_groups=4, background=False, tokenizer="01234567" * 4,
    )  # fmt: skip
    assert sum(len(batch) for batch in islice(loader, 4)) == 4 * lanes
    laws.state_is_small_json(loader.state_dict(), sources * lanes)
    far = laws.as_json(loader.state_dict())
    place = FeedState(12, 345, [73_400_320, 90_000], 999)
    one = LaneState(
        window=12_345, due=(2**32 * sources,) * sources, drawn=(12_345_678 // sources,) * sources, emitted=123,
        feeds=dict.fromkeys(range(sources), place),
    )  # fmt: skip
    far["lanes"] = {number: one.to_json() for number in far["lanes"]}
    laws.state_is_small_json(laws.as_json(far), sources * lanes)


@pytest.mark.parametrize("position", [None, 0, 7, "x", [], [5], [5, 6], [None, [1, 2]], {"like": 1}])
def test_position_comes_back_from_json(position: Any) -> None:
    for state in (FeedState(position=position), FeedState(1, 2, position, 3)):
        assert FeedState.from_json(laws.as_json({"feed": state.to_json()})["feed"]) == state


@pytest.mark.parametrize(
    "value", [[], [0, 0], [0, 0, None], [0, -1, 0], [0, 0, True], [0, 0, 0, None], [0, 0, 0, [1, 2]]]
)
def test_position_in_another_form_is_refused(value: list[Any]) -> None:
    stream = streamed(NAME, _shards(9)).stream()
    state = stream.state_dict()
    with pytest.raises(StateError, match="s: the state's position is "):
        next(iter(_loaded(streamed(NAME, _shards(9)).stream(), {**state, "position": {"feed": value}})))


def _loaded(stream: Any, state: dict[str, Any]) -> Any:
    stream.load_state_dict(state)
    return stream


def test_worker_opens_no_lane_of_another_one() -> None:
    mix = StreamedMix(shards={"a": Shards(lengths=((2, 3, 4),) * 16, refused=0)}, weights=(1.0,))
    begun = mix.loader(global_batch_size=4, lanes_per_step=4, lane_groups=4)
    laws.first(begun, 7)
    packer = mix.packer()
    topology = Topology(global_batch_size=4, dp=Shard(), lanes_per_step=4, lane_groups=4)
    planner = StepPlanner(Mixes(packer.plan(16)), topology, 7, begun._lanes)
    reader = _reader(packer.mixture.leaves[0].streamed)
    assert reader.begun == []
    planner.skip()
    planner.next()
    assert sorted(planner._lanes) == list(topology.group(8))


def test_rows_are_encoded_only_when_they_are_drawn() -> None:
    calls: list[int] = []

    def encode(rows: Sequence[Any]) -> list[Encoded | Refused]:
        calls.append(len(rows))
        return encode_rows(rows)

    stream = StreamingSource(name=NAME, reader=ListShards(_shards(100)), encode=encode, shuffle_window=50)
    _feed(stream).rows(range(7))
    assert calls == [7]


def test_some_rows_are_encoded_together_where_one_is_asked_for_and_none_of_another_block() -> None:
    calls: list[int] = []

    def encode(rows: Sequence[Any]) -> list[Encoded | Refused]:
        calls.append(len(rows))
        return encode_rows(rows)

    source = StreamingSource(name=NAME, reader=ListShards(_shards(100)), encode=encode, shuffle_window=40)
    expected = [row.row for row in islice(_rows(_feed(source)), 90)]
    calls.clear()
    samples = list(islice(source.stream(seed=7), 90))
    assert [sample.row for sample in samples] == expected
    assert calls == [1, 16, 16, 7] * 2 + [1, 16]


@pytest.mark.parametrize("broken", [0, 9, 25])
def test_rows_before_one_that_cannot_be_encoded_are_given_out(broken: int) -> None:
    def encode(rows: Sequence[Any]) -> list[Encoded | Refused]:
        if any(ids[0] == broken for ids, _, _ in rows):
            raise DataError(f"row {broken} is broken")
        return encode_rows(rows)

    source = StreamingSource(name=NAME, reader=ListShards(_shards(30)), encode=encode, shuffle=False)
    given: list[int] = []
    with pytest.raises(DataError, match=f"row {broken} is broken"):
        given.extend(sample.row for sample in source.stream())
    assert given == list(range(broken))


def test_reading_that_fails_goes_on_where_it_failed() -> None:
    """Nothing is left out behind a failure, whether of a block or of an encoding."""
    trouble = [DataError("not now")] * 3

    class Shards(ListShards):
        def read(self, unit: int, lanes: int, position: Any) -> Iterator[Any]:
            for row in super().read(unit, lanes, position):
                if row.number % 8 == 5 and trouble:
                    raise trouble.pop()
                yield row

    source = StreamingSource(name=NAME, reader=Shards(_shards(20)), encode=encode_rows, shuffle_window=4)
    feed = _feed(source)
    for _ in range(3):
        with pytest.raises(DataError, match="not now"):
            feed.rows(range(12))
    expected = _feed(streamed(NAME, _shards(20), shuffle_window=4)).rows(range(12))
    assert [row.row for row in feed.rows(range(12))] == [row.row for row in expected]
    read_ahead([(feed, 30)])
    assert len(feed._rows) == 31


class Counting:
    """An encoder that keeps how many rows each call had, and raises at a row that begins with one token."""

    def __init__(self, failing: int = -1) -> None:
        self.calls: list[int] = []
        self.failing = failing

    def __call__(self, rows: Sequence[Row]) -> Sequence[Encoded | Refused]:
        self.calls.append(len(rows))
        if any(ids[0] == self.failing for ids, _, _ in rows):
            raise DataError("that row")
        return encode_rows(rows)


def test_feeds_of_a_source_are_read_ahead_in_calls_of_many_rows() -> None:
    encode = Counting()
    source = StreamingSource(name=NAME, reader=ListShards(_shards(*[50] * 4)), encode=encode, shuffle_window=8)
    feeds = [_feed(source, lane, 4) for lane in range(4)]
    read_ahead([(feed, 5) for feed in feeds])
    assert encode.calls == [24]
    read_ahead([(feed, 5) for feed in feeds])  # is there already
    read_ahead([(feeds[0], 11), (feeds[1], 6)])
    assert encode.calls[:2] == [24, 3]  # up to the end of a block
    alone = [_feed(streamed(NAME, _shards(*[50] * 4), shuffle_window=8), lane, 4) for lane in range(4)]
    for feed, other in zip(feeds, alone, strict=True):
        assert [row.row for row in feed.rows(range(20))] == [row.row for row in other.rows(range(20))]


def test_a_row_that_cannot_be_encoded_stops_its_feed_alone_until_it_is_needed() -> None:
    shards: list[list[Row]] = [[([n, n + 1], [0, 1], "") for n in range(first, first + 20)] for first in (0, 20)]
    whole = [_feed(streamed(NAME, shards, shuffle_window=4), lane, 2) for lane in range(2)]
    rows = [[int(row.input_ids[0]) for row in feed.rows(range(9))] for feed in whole]
    encode = Counting(failing=rows[0][6])
    source = StreamingSource(name=NAME, reader=ListShards(shards), encode=encode, shuffle_window=4)
    feeds = [_feed(source, lane, 2) for lane in range(2)]
    read_ahead([(feed, 8) for feed in feeds])
    assert [int(row.input_ids[0]) for row in feeds[1].rows(range(9))] == rows[1]
    assert [int(row.input_ids[0]) for row in feeds[0].rows(range(4))] == rows[0][:4]
    with pytest.raises(DataError, match="that row"):
        feeds[0].rows([8])


def test_encoder_must_give_a_result_for_each_row() -> None:
    source = StreamingSource(name=NAME, reader=ListShards(_shards(5)), encode=lambda rows: encode_rows(rows[1:]))
    with pytest.raises(DataError, match="source 's': encode gave 2 results for 3 rows; it must give one for each"):
        _feed(source).rows([2])
