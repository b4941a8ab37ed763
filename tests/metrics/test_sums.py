"""Sums of floats: exact far beyond float64, whatever the order."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from streamsft.metrics.sums import add_pair, group_sums, squares

finite = st.floats(-1e100, 1e100)


@settings(max_examples=60)
@given(st.lists(finite, max_size=200))
def test_a_group_sum_is_the_exact_sum(values: list[float]) -> None:
    array = np.array(values, np.float64)
    high, low = group_sums(np.zeros(len(values), np.int64), array, 1)
    exact = sum(map(Fraction, values), Fraction(0))
    error = abs(Fraction(float(high[0])) + Fraction(float(low[0])) - exact)
    assert error <= Fraction(max(map(abs, values), default=0.0)) * Fraction(2) ** -80


@settings(max_examples=60)
@given(st.lists(finite, max_size=60))
def test_adding_one_by_one_gives_the_exactly_rounded_sum(values: list[float]) -> None:
    high, low = np.zeros(1), np.zeros(1)
    for value in values:
        add_pair(high, low, np.array([value]), np.zeros(1))
    assert high[0] == pytest.approx(math.fsum(values), rel=1e-15, abs=1e-25 * max(map(abs, values), default=0.0))


def test_groups_do_not_mix() -> None:
    high, low = group_sums(np.array([2, 0, 2]), np.array([0.1, 5.0, 0.2]), 4)
    assert (high + low).tolist() == [5.0, 0.0, 0.1 + 0.2, 0.0]


@settings(max_examples=60)
@given(st.floats(-1e100, 1e100).filter(lambda x: abs(x) > 1e-100))
def test_a_square_is_exact(value: float) -> None:
    square, rest = squares(np.array([value]))
    assert Fraction(float(square[0])) + Fraction(float(rest[0])) == Fraction(value) ** 2


@pytest.mark.parametrize(
    ("values", "total"), [([math.inf, 1.0], math.inf), ([math.inf, -math.inf], math.nan), ([1e308, 1e308], math.inf)]
)
def test_what_is_not_finite_stays_so_and_raises_nothing(values: list[float], total: float) -> None:
    high, low = np.zeros(1), np.zeros(1)
    for value in values:
        with np.errstate(all="raise"):
            add_pair(high, low, *group_sums(np.zeros(1, np.int64), np.array([value]), 1))
    np.testing.assert_equal(high[0], total)
    assert low[0] == 0.0
