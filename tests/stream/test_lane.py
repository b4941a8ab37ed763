"""`Lane`: a cursor over windows, and its one canonical state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from streamsft.errors import DataError, StateError
from streamsft.sources.streaming import StreamingSource
from streamsft.stream.documents import Documents
from streamsft.stream.interleave import Interleave
from streamsft.stream.lane import Lane
from streamsft.stream.lanestate import LaneState
from streamsft.stream.packer import Packer
from streamsft.stream.plan import Plan
from tests import laws
from tests.fakes import ListShards, Row, encode_rows, plain_rows, source
from tests.mixes import Mix, mixes

STATE = [3, 2, [5, 7], [0, 9]]


def _two_sources() -> Plan:
    return Interleave([source("a", [3]), source("b", [3])]).plan()


def _rows(documents: Documents) -> list[list[int]]:
    return [column.tolist() for column in documents]


@settings(max_examples=20)
@given(mix=mixes(), counts=st.lists(st.integers(1, 30), min_size=1, max_size=5))
def test_packs_taken_in_any_portions_are_the_same(mix: Mix, counts: list[int]) -> None:
    plan = mix.packer().plan()
    whole, parts, state = Lane(plan, 0), [], None
    for count in counts:
        lane = Lane(plan, 0, state)
        part = lane.take(count)
        parts.append(part._replace(pack=part.pack + sum(counts[: len(parts)])))
        state = LaneState.from_json(laws.as_json(lane.state.to_json()), plan, "lane 0")
    assert _rows(whole.take(sum(counts))) == _rows(Documents(*map(np.concatenate, zip(*parts, strict=True))))
    assert whole.state == state


def test_finished_window_is_written_as_the_start_of_the_next() -> None:
    plan = Mix().packer().plan()
    lane = Lane(plan, 0)
    _, packs = lane.rest()
    lane.advance(packs - 1)
    assert (lane.state.window, lane.state.emitted) == (0, packs - 1)
    lane.advance(1)
    assert (lane.state.window, lane.state.emitted) == (1, 0)
    assert sum(lane.state.drawn) == plan.draws
    assert lane.state == Lane(plan, 0, lane.state).state


def test_state_is_small_integers_after_a_million_windows() -> None:
    """Nothing in a lane's state grows but the digits of its counts."""
    plan = Mix().packer().plan()
    far = LaneState(window=10**6, due=(1, 2, 3), drawn=(10**9, 5 * 10**8, 25 * 10**7), emitted=0)
    lane = Lane(plan, 0, far)
    assert len(lane.take(50).source) >= 50
    assert lane.state.window > 10**6
    assert (np.array(lane.state.due) <= plan.schedule(0).stride).all()


def test_more_packs_given_out_than_the_window_holds_is_refused() -> None:
    plan = Mix().packer().plan()
    start = Lane(plan, 0).state
    lane = Lane(plan, 0, LaneState(window=0, due=start.due, drawn=start.drawn, emitted=99))
    with pytest.raises(StateError, match=r"lane 0: 99 packs of window 0 were given out, but it holds \d+"):
        lane.take(1)


@pytest.mark.parametrize(
    "value",
    [None, [], {}, "123", [3, 2], [*STATE, {"more": 1}], [*STATE, {}], [*STATE, {}, {}], [*STATE, {"before_edit": 1}],
     [3, 2, [5, 7]], [*STATE, [1, 1]], [3, 2, [5], [0]], [3, 2, 5, 5], [3, 2, "12", "34"], [3, 2, {}, [0, 9]],
     [3.0, *STATE[1:]], [True, *STATE[1:]], [3, -1, *STATE[2:]], [3, 2, [5, 7], [0, None]],
     [3, 2, [5, 7], [0, 9, 0, 0, 0]], [*STATE, {"steps": [1]}], [*STATE, {"steps": [1, -1]}],
     [*STATE, {"steps": 1}], [*STATE, 1]],
)  # fmt: skip
def test_damaged_state_is_refused_by_the_lane_it_is_for(value: Any) -> None:
    with pytest.raises(StateError, match="lane 4: "):
        LaneState.from_json(value, _two_sources(), "lane 4")


def test_state_comes_back_from_json() -> None:
    for state in (STATE, [*STATE, {"steps": [4, 5], "before_edit": True}]):
        assert LaneState.from_json(state, _two_sources(), "lane 0").to_json() == state


class Encoding:
    """Encodes rows of a shard in order, and counts; the row of the first token `broken` cannot be."""

    def __init__(self, broken: int = -1) -> None:
        self.rows = 0
        self.broken = broken

    def __call__(self, rows: Sequence[Row]) -> Any:
        if any(ids[0] == self.broken for ids, _, _ in rows):
            raise DataError(f"row {self.broken} is broken")
        self.rows += len(rows)
        return encode_rows(rows)

    def lane(self, state: LaneState | None = None, **options: Any) -> Lane:
        """A lane whose windows are of 32 rows and 16 packs."""
        stream = StreamingSource(name="s", reader=ListShards([plain_rows(200)]), encode=self, shuffle=False)
        return Lane(Packer(Interleave([stream], [1.0], **options), 6, lookahead=32).plan(), 0, state)


@pytest.mark.parametrize(("unit", "together"), [("samples", 2), ("tokens", 16)])
def test_rows_of_the_next_window_are_read_evenly_while_the_open_one_is_given_out(unit: Any, together: int) -> None:
    encoding = Encoding()
    lane = encoding.lane(unit=unit)
    read = []
    for _ in range(70):
        before = encoding.rows
        lane.take(1)
        read.append(encoding.rows - before)
    assert 32 <= read[0] < 32 + together, "more than the first window and what is encoded together"
    assert max(read[1:]) == together
    assert sum(read) <= 32 + 69 * 2 + together


def test_what_is_left_of_the_window_a_lane_resumes_in_is_what_reading_is_spread_over() -> None:
    whole = Encoding().lane()
    whole.take(12)
    encoding = Encoding()
    lane = encoding.lane(whole.state)
    read = []
    for _ in range(8):
        before = encoding.rows
        lane.take(1)
        read.append(encoding.rows - before)
        whole.take(1)
        assert lane.state == whole.state
    assert read == [32, 8, 8, 8, 8, 2, 2, 2]


@pytest.mark.parametrize("resumed", [0, 5, 16])
def test_row_that_cannot_be_read_is_told_when_its_window_begins_and_each_time(resumed: int) -> None:
    lane = Encoding(broken=40).lane()
    if resumed:
        lane.take(resumed)
        lane = Encoding(broken=40).lane(lane.state)
    for _ in range(16 - resumed):
        lane.take(1)
    for _ in range(3):
        with pytest.raises(DataError, match="row 40 is broken"):
            lane.take(1)
    assert (lane.state.window, lane.state.emitted) == (1, 0)
