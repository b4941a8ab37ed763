"""`Plan`: windows of documents, and what they are a function of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from streamsft.stream.documents import Documents
from streamsft.stream.interleave import Interleave
from streamsft.stream.mixture import usable_rows
from streamsft.stream.packing import Overflow, Packing
from streamsft.stream.plan import Plan
from tests.fakes import ListSource, source
from tests.laws import Rows
from tests.mixes import Mix, mixes


class Unreadable(ListSource):
    """A source whose tokens cannot be read."""

    def read(self, index: Any) -> Any:
        raise AssertionError(f"planning read rows {index}")


def _plan(data: ListSource, packing: Packing, lanes: int = 1) -> Plan:
    return Plan(Interleave([data]).mixture(packing), seed=1, packing=packing, lanes=lanes)


def _windows(plan: Plan, count: int, lane: int = 0) -> list[Documents]:
    due, drawn, found = plan.first_due(lane), np.zeros(len(plan.leaves), np.int64), []
    for number in range(count):
        window = plan.window(lane, number, due, drawn)
        due, drawn = window.due, window.drawn
        found.append(window.documents)
    return found


@settings(max_examples=20)
@given(mix=mixes())
def test_rows_that_can_be_drawn_are_those_that_leave_a_label(mix: Mix) -> None:
    packing = Packing(sequence_length=mix.sequence_length, overflow=mix.overflow)
    for part in mix.rows():
        usable, dropped = usable_rows(part.source, packing)
        wanted = [stored for stored in range(len(part.source)) if part.documents(stored)]
        assert (list(range(len(part.source))) if usable is None else usable.tolist()) == wanted
        assert sum(dropped.values()) == len(part.source) - len(wanted)


@settings(max_examples=20)
@given(mix=mixes(), lanes=st.integers(1, 3))
def test_packs_are_numbered_in_order_and_never_overflow(mix: Mix, lanes: int) -> None:
    for lane in range(lanes):
        for documents in _windows(mix.packer().plan(lanes), 3, lane):
            assert (np.diff(documents.pack) >= 0).all()
            assert sorted(set(documents.pack.tolist())) == list(range(int(documents.pack[-1]) + 1))
            assert np.bincount(documents.pack, weights=documents.length).max() <= mix.sequence_length
            assert (documents.length > 0).all()


@settings(max_examples=10)
@given(mix=mixes())
def test_window_is_a_function_of_its_start_alone(mix: Mix) -> None:
    plan, again = mix.packer().plan(), mix.packer().plan()
    due, drawn = plan.first_due(0), np.zeros(len(plan.leaves), np.int64)
    second = plan.window(0, 0, due, drawn)
    expected = plan.window(0, 1, second.due, second.drawn)
    found = again.window(0, 1, second.due, second.drawn)
    for left, right in zip(expected.documents, found.documents, strict=True):
        assert left.tolist() == right.tolist()


@pytest.mark.parametrize("overflow", ["truncate", "drop"])
def test_planning_reads_no_tokens(overflow: Overflow) -> None:
    data = Unreadable("u", [(list(range(length)), [0] + [1] * (length - 1)) for length in (5, 9, 40)])
    plan = _plan(data, Packing(sequence_length=16, lookahead=50, overflow=overflow))
    assert len(_windows(plan, 2)[1].source) == 50


def test_lanes_draw_different_rows_of_a_pass() -> None:
    plan = _plan(source("s", [2] * 40), Packing(sequence_length=8, lookahead=10), lanes=4)
    rows = [set(_windows(plan, 1, lane)[0].row.tolist()) for lane in range(4)]
    assert set.union(*rows) == set(range(40))
    assert [len(part) for part in rows] == [10, 10, 10, 10]


def test_truncation_counts_what_it_cuts() -> None:
    (documents,) = _windows(_plan(source("s", [13, 11, 4]), Packing(sequence_length=10, lookahead=3)), 1)
    assert dict(zip(documents.stored.tolist(), documents.cut.tolist(), strict=True)) == {0: 3, 1: 1, 2: 0}


def test_rows_keep_their_numbers_in_the_input() -> None:
    data = ListSource("s", [([1, 2], [0, 1]), ([3, 4], [0, 1])], row_numbers=[3, 17])
    (documents,) = _windows(_plan(data, Packing(sequence_length=4, lookahead=4)), 1)
    assert set(documents.row.tolist()) == {3, 17}
    assert {seen.row for seen in Rows(data, 4).all} == {3, 17}


@settings(max_examples=20)
@given(mix=mixes(), count=st.integers(1, 4), lanes=st.integers(1, 3))
def test_windows_planned_together_are_those_planned_one_by_one(mix: Mix, count: int, lanes: int) -> None:
    plan = mix.packer().plan(lanes)
    assume(plan.alike)
    lane = lanes - 1
    due, drawn = plan.first_due(lane), np.zeros(len(plan.leaves), np.int64)
    for number, window in enumerate(plan.windows(lane, 0, due, drawn, count)):
        alone = plan.window(lane, number, due, drawn)
        assert [column.tolist() for column in window.documents] == [column.tolist() for column in alone.documents]
        assert list(window.borders) == list(alone.borders)
        due, drawn = window.due, window.drawn
        assert (due.tolist(), drawn.tolist()) == (alone.due.tolist(), alone.drawn.tolist())
