"""Counts as tables show them: never wider than six characters, and never another number than they stand for."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from streamsft.shown import counted


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"), (7.4, "7"), (99_999, "99,999"), (99_999.5, "100k"), (999_499, "999k"), (999_500, "1.00M"),
        (9_995_000, "10.0M"), (12_345_678, "12.3M"), (999_500_000, "1.00G"), (1e12, "1.00T"), (999.4e12, "999T"),
        (1e15, "1.00P"), (1e18, "1e+18"),
    ],
)  # fmt: skip
def test_large_counts_have_three_digits_and_a_unit(value: float, shown: str) -> None:
    assert counted(value) == shown


@given(st.integers(0, 10**17))
def test_a_count_is_short_and_within_half_a_percent(value: int) -> None:
    shown = counted(value)
    assert len(shown) <= 6
    factor = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}.get(shown[-1], 1)
    assert float(shown.rstrip("kMGTP").replace(",", "")) * factor == pytest.approx(value, rel=0.0051)
