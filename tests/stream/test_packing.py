"""Packing by lengths alone: fits, order, efficiency, bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from streamsft.errors import ConfigError
from streamsft.stream.packing import Packing, best_fit_decreasing, next_fit, pack_lengths
from tests.mixes import random_lengths


def _ints(values: list[int]) -> Any:
    return np.array(values, np.int64)


def _best_fit_one_by_one(lengths: list[int], capacity: int) -> list[int]:
    rooms: list[int] = []
    chosen = [0] * len(lengths)
    for at in sorted(range(len(lengths)), key=lambda at: -lengths[at]):
        fitting = [number for number, room in enumerate(rooms) if room and room >= lengths[at]]
        if not fitting:
            fitting = [len(rooms)]
            rooms.append(capacity)
        chosen[at] = min(fitting, key=lambda number: (rooms[number], number))
        rooms[chosen[at]] -= lengths[at]
    return chosen


def _next_fit_one_by_one(lengths: list[int], capacity: int) -> list[int]:
    chosen: list[int] = []
    pack, filled = 0, 0
    for length in lengths:
        if filled + length > capacity:
            pack, filled = pack + 1, 0
        filled += length
        chosen.append(pack)
    return chosen


lengths_within = st.integers(1, 60).flatmap(
    lambda capacity: st.tuples(st.lists(st.integers(0, capacity), max_size=60), st.just(capacity))
)


@given(case=lengths_within)
def test_best_fit_puts_each_into_the_fullest_bin_with_room(case: tuple[list[int], int]) -> None:
    lengths, capacity = case
    assert best_fit_decreasing(_ints(lengths), capacity).tolist() == _best_fit_one_by_one(lengths, capacity)


@given(case=lengths_within)
def test_next_fit_opens_a_bin_when_one_does_not_fit(case: tuple[list[int], int]) -> None:
    lengths, capacity = case
    assert next_fit(_ints(lengths), capacity).tolist() == _next_fit_one_by_one(lengths, capacity)


@given(case=lengths_within, lookahead=st.none() | st.integers(0, 20))
def test_packs_never_overflow_and_are_numbered_without_gaps(case: tuple[list[int], int], lookahead: int | None) -> None:
    lengths, capacity = case
    capacity = max(2, capacity)
    packs = pack_lengths(lengths, capacity, lookahead)
    assert len(packs) == len(lengths)
    if lengths:
        assert np.bincount(packs, weights=lengths).max() <= capacity
        assert sorted(set(packs.tolist())) == list(range(int(packs.max()) + 1))


@given(case=lengths_within, lookahead=st.integers(1, 20))
def test_documents_of_two_windows_share_no_pack(case: tuple[list[int], int], lookahead: int) -> None:
    lengths, capacity = case
    packs = pack_lengths(lengths, max(2, capacity), lookahead)
    windows = np.arange(len(lengths)) // lookahead
    assert all(len(set(windows[packs == pack].tolist())) == 1 for pack in set(packs.tolist()))


def test_exact_fits_fit() -> None:
    assert pack_lengths([10, 6, 4, 10], 10).tolist() == [0, 2, 2, 1]
    assert pack_lengths([5, 5, 5, 5], 10, 0).tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("slots", [512, 1024, 2048, 4096])
def test_best_fit_wastes_less_than_one_percent_where_next_fit_wastes_a_tenth(slots: int) -> None:
    lengths = random_lengths(slots, 1024 * 10, median=160, spread=0.9, longest=slots)
    best, following = pack_lengths(lengths, slots, 1024), pack_lengths(lengths, slots, 0)
    filled = sum(lengths) / slots
    assert filled / (best.max() + 1) > 0.99
    assert filled / (following.max() + 1) < 0.97


@pytest.mark.parametrize(
    ("lengths", "message"),
    [([3, 11], r"lengths\[1\] = 11 does not fit"), ([-1], r"lengths\[0\] = -1"), ([1.5], "not a list of integers"),
     ([[1, 2]], "not a list of integers"), (["3"], "not a list of integers")],
)  # fmt: skip
def test_lengths_that_cannot_be_packed_are_refused(lengths: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pack_lengths(lengths, 10)


@pytest.mark.parametrize(
    ("values", "key"),
    [({"sequence_length": 1}, "sequence_length"), ({"sequence_length": "8"}, "sequence_length"),
     ({"sequence_length": 8, "lookahead": -1}, "lookahead"), ({"sequence_length": 8, "lookahead": 2.5}, "lookahead"),
     ({"sequence_length": 8, "overflow": "cut"}, "overflow")],
)  # fmt: skip
def test_settings_out_of_range_are_refused_by_name(values: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}:"):
        Packing(**values)


def test_window_grows_with_the_pack_and_next_fit_has_one_of_its_own() -> None:
    assert Packing(sequence_length=512).window == 1024
    assert Packing(sequence_length=8192).window == 2048
    assert Packing(sequence_length=8192, lookahead=0).window == 1024
    assert Packing(sequence_length=512, lookahead=7).window == 7
