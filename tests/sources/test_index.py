"""Counting supervised tokens by bits gives what counting them one by one gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from streamsft.sources.index import row_stats

rows_of_marks = st.lists(
    st.one_of(
        st.lists(st.booleans(), max_size=12),
        st.tuples(st.integers(0, 200), st.sets(st.integers(0, 199), max_size=3)).map(
            lambda drawn: [place in drawn[1] for place in range(drawn[0])]
        ),
    ),
    max_size=25,
)


@pytest.mark.parametrize("numpy_2", [True, False])
@settings(max_examples=150, deadline=None)
@given(rows=rows_of_marks)
def test_counts_and_first_places_are_those_of_a_loop(numpy_2: bool, rows: list[list[bool]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if not numpy_2:
            patch.delattr(np, "bitwise_count", raising=False)
        mask = np.array([mark for row in rows for mark in row], np.bool_)
        stats = row_stats(mask, np.array([len(row) for row in rows], np.int32))
    assert stats.supervised.tolist() == [sum(row[1:]) for row in rows]
    assert stats.first_supervised.tolist() == [
        next((place for place, mark in enumerate(row) if place and mark), len(row)) for row in rows
    ]
    assert stats.supervised.dtype == stats.first_supervised.dtype == np.int32
