"""Bins are counted as best-fit decreasing fills them, whether the bounds decide or not."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings, strategies as st

from streamsft.stream.bins import best_fit_bins
from streamsft.stream.packing import best_fit_decreasing
from tests.mixes import random_lengths


@settings(max_examples=200)
@given(st.integers(2, 40).flatmap(lambda limit: st.tuples(st.just(limit), st.lists(st.integers(0, limit), min_size=1))))
def test_the_count_is_that_of_the_packing(drawn: tuple[int, list[int]]) -> None:
    capacity, lengths = drawn
    documents = np.array([length for length in lengths if length], np.int64)
    expected = best_fit_decreasing(documents, capacity).max(initial=-1) + 1
    shuffled = np.array([lengths, lengths[::-1]], np.int64)
    assert best_fit_bins(shuffled, capacity).tolist() == [expected, expected]


def test_windows_of_chats_are_counted_at_every_capacity() -> None:
    windows = np.array([random_lengths(seed, 256) for seed in range(24)], np.int64)
    for capacity in (900, 1024, 4096, 50_000):
        expected = [int(best_fit_decreasing(row, capacity).max()) + 1 for row in windows]
        assert best_fit_bins(windows, capacity).tolist() == expected
