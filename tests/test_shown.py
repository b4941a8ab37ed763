"""Counts as tables show them: never wider than six characters, and never another number than they stand for."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from streamsft.shown import cause, counted, placed


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


def test_a_place_is_not_to_be_taken_for_a_line() -> None:
    assert placed("data/a.jsonl:7") == "data/a.jsonl, row 7"
    assert placed("C:/a.jsonl:0") == "C:/a.jsonl, row 0"
    assert placed("memory") == "memory"


def test_a_cause_is_told_once() -> None:
    with pytest.raises(FileNotFoundError) as raised:
        Path("nix").read_bytes()
    assert cause(raised.value) == "No such file or directory"
    assert cause(OSError("gone")) == "gone"
    assert cause(ValueError()) == "ValueError"
