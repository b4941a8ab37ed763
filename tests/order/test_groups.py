"""The order by row groups: complete, by blocks, random inside them, and sought rather than replayed."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from streamsft.errors import ConfigError, StateError
from streamsft.order.groups import GroupOrder
from tests.order.chi_square import z_score


def make(sizes: list[int], block: int, seed: int = 0) -> GroupOrder:
    return GroupOrder(seed=seed, name="s", bounds=np.cumsum([0, *sizes]), block=block)


def drawn(order: GroupOrder, lane: int, lanes: int, passes: int) -> list[tuple[int, int]]:
    """(pass, row) of all draws of a lane in its first passes."""
    found: list[tuple[int, int]] = []
    code = 0
    while order.pass_of(lane, lanes, code) < passes:
        pass_index, row = order.located(lane, lanes, code + np.arange(7))
        found += zip(pass_index.tolist(), row.tolist(), strict=True)
        code = order.settled(lane, lanes, code + 7)
    return [one for one in found if one[0] < passes]


sizes = st.lists(st.integers(1, 9), min_size=1, max_size=20)


@settings(max_examples=40)
@given(sizes=sizes, block=st.integers(1, 6), lanes=st.integers(1, 7), seed=st.integers(0, 99))
def test_lanes_draw_each_row_once_per_pass_together(sizes: list[int], block: int, lanes: int, seed: int) -> None:
    order = make(sizes, block, seed)
    found = [one for lane in range(lanes) for one in drawn(order, lane, lanes, 3)]
    assert sorted(found) == [(p, row) for p in range(3) for row in range(sum(sizes))]


@settings(max_examples=40)
@given(sizes=sizes, block=st.integers(1, 6), lanes=st.integers(1, 4), steps=st.lists(st.integers(0, 30), max_size=9))
def test_a_place_is_one_number_however_it_was_reached(
    sizes: list[int], block: int, lanes: int, steps: list[int]
) -> None:
    order = make(sizes, block)
    code = 0
    for step in steps:
        behind = order.settled(0, lanes, code + step)
        assert order.settled(0, lanes, behind) == behind
        ahead = code + step + np.arange(20)
        for there, here in zip(
            order.located(0, lanes, ahead), order.located(0, lanes, behind + np.arange(20)), strict=True
        ):
            assert np.array_equal(there, here)
        code = behind


@settings(max_examples=30)
@given(sizes=sizes, lanes=st.integers(1, 4))
def test_blocks_of_one_group_are_read_group_after_group(sizes: list[int], lanes: int) -> None:
    order = make(sizes, 1)
    rows = np.array([row for _, row in drawn(order, 0, lanes, 2)], np.int64)
    groups = np.searchsorted(order.bounds, rows, "right") - 1
    changes = np.flatnonzero(np.diff(groups)) + 1
    for part in np.split(groups, changes):
        assert len(part) % sizes[part[0]] == 0, "a group is left and returned to"


@settings(max_examples=30)
@given(sizes=sizes, block=st.integers(1, 5), lanes=st.integers(1, 4))
def test_what_comes_is_foretold(sizes: list[int], block: int, lanes: int) -> None:
    order = make(sizes, block)
    code = order.settled(0, lanes, 11)
    foretold = list(islice(order.upcoming(0, lanes, code), 12))
    need = [before for _, before in foretold]
    assert need == sorted(need)
    rows = order.located(0, lanes, code + np.arange(need[-1] + 1))[1]
    groups = np.searchsorted(order.bounds, rows, "right") - 1
    for at, group in enumerate(groups.tolist()):
        assert group in {one.group for one in foretold if one.rows_before <= at}


def test_the_order_inside_a_block_is_random() -> None:
    order = make([16] * 8, 8)
    places = np.stack([order.located(0, 1, (passed * 8 << 31) + np.arange(128))[1] for passed in range(600)])
    first = np.bincount(places[:, :16].reshape(-1), minlength=128)
    steps = np.bincount((np.diff(places, axis=1) % 128).reshape(-1), minlength=128)[1:]
    where = np.bincount((places[:, ::2] // 16 * 8 + np.arange(64) // 8).reshape(-1), minlength=64)
    for counts in (first, steps, where):
        assert abs(z_score(counts)) < 4


def test_passes_and_names_have_orders_of_their_own() -> None:
    order = make([1] * 50, 4)
    first, second = (order.located(0, 1, (p * 50 << 31) + np.arange(4))[1].tolist() for p in (0, 1))
    other = GroupOrder(seed=0, name="t", bounds=order.bounds, block=4).located(0, 1, np.arange(4))[1].tolist()
    assert len({tuple(first), tuple(second), tuple(other)}) == 3


def test_lanes_keep_step_whatever_the_number_of_groups() -> None:
    order = make([3] * 5, 2)
    passes = [order.pass_of(lane, 4, order.settled(lane, 4, 3000)) for lane in range(4)]
    assert max(passes) - min(passes) <= 1


def test_a_place_that_is_none_is_refused() -> None:
    with pytest.raises(StateError, match="not where a block begins"):
        make([2, 2, 2, 2], 2).located(0, 1, np.array([1 << 31]))


def test_more_rows_than_can_be_counted_are_refused() -> None:
    with pytest.raises(ConfigError, match="lower shuffle_groups"):
        make([1 << 28], 16)


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=200),
    lanes=st.integers(1, 40),
    asked=st.lists(st.tuples(st.integers(0, 39), st.integers(0, 900)), min_size=20, max_size=60),
)
def test_what_was_asked_before_changes_nothing(sizes: list[int], lanes: int, asked: list[tuple[int, int]]) -> None:
    order = make(sizes, 3)
    for number, ahead in asked:
        lane, fresh = number % lanes, make(sizes, 3)
        codes = ahead + np.arange(5)
        for mine, theirs in zip(order.located(lane, lanes, codes), fresh.located(lane, lanes, codes), strict=True):
            assert np.array_equal(mine, theirs)
        code = order.settled(lane, lanes, ahead)
        assert code == fresh.settled(lane, lanes, ahead)
        assert list(islice(order.upcoming(lane, lanes, code), 9)) == list(islice(fresh.upcoming(lane, lanes, code), 9))
