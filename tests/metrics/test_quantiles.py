"""Quantiles: exact while few, within 1 % beyond, whatever the range makes of a value."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from streamsft.errors import MetricError
from streamsft.metrics.quantiles import Quantiles

POINTS = (0.0, 0.05, 0.5, 0.9, 0.95, 1.0)


def quantiles(reducer: Quantiles, values: np.ndarray) -> list[float]:
    state = reducer.zero(1)
    for part in np.array_split(values, 3):
        reducer.update(*state, np.zeros(len(part), np.int64), part.astype(np.float64))
    return list(reducer.result(state[0][0], state[1][0]).values())


def exactly(values: np.ndarray) -> list[float]:
    return [float(np.quantile(values, q, method="inverted_cdf")) for q in POINTS]


@settings(max_examples=40)
@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=64))
def test_up_to_the_declared_number_of_values_they_are_exact_in_or_out_of_the_range(values: list[float]) -> None:
    array = np.array(values)
    assert quantiles(Quantiles(1, 100, POINTS), array) == exactly(array)


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(65, 3000), st.sampled_from(["lognormal", "integers", "edges"]))
def test_beyond_they_are_within_one_percent(seed: int, count: int, kind: str) -> None:
    generator = np.random.default_rng(seed)
    values = {
        "lognormal": lambda: np.clip(generator.lognormal(6, 2, count), 1, 1e6),
        "integers": lambda: generator.integers(1, 2000, count).astype(float),
        "edges": lambda: 1.0 * (1.01 / 0.99) ** generator.integers(0, 600, count),
    }[kind]()
    assert quantiles(Quantiles(1, 1e6, POINTS), values) == pytest.approx(exactly(values), rel=0.01 * (1 + 1e-9))


@pytest.mark.parametrize("kind", ["lognormal", "constant", "bimodal"])
def test_after_merging_eight_ranks_lengths_have_numpys_quantiles(kind: str) -> None:
    generator = np.random.default_rng(5)
    short, long = generator.integers(20, 60, 30_000), generator.integers(3000, 9000, 30_000)
    lengths = {
        "lognormal": generator.lognormal(6, 1.2, 60_000).clip(1, 2**20).astype(np.int64),
        "constant": np.full(60_000, 731),
        "bimodal": generator.permutation(np.concatenate([short, long])),
    }[kind].astype(np.float64)
    points = (0.01, 0.05, 0.5, 0.95, 0.99)
    reducer = Quantiles(1, 2**20, points)
    whole = reducer.zero(1)
    for rank in range(8):
        part = lengths[rank::8]
        mine = reducer.zero(1)
        reducer.update(*mine, np.zeros(len(part), np.int64), part)
        reducer.merge(*whole, *mine)
    for point, value in zip(points, reducer.result(whole[0][0], whole[1][0]).values(), strict=True):
        exact = float(np.quantile(lengths, point, method="inverted_cdf"))
        assert value == pytest.approx(exact, rel=0.01 * (1 + 1e-9)), point
        low, high = (lengths < value / 1.01).mean(), (lengths <= value * 1.01).mean()
        assert low - 0.001 <= point <= high + 0.001, "the rank is right where there is a gap in the lengths too"


def test_zero_is_zero_and_other_values_outside_come_out_as_bounds() -> None:
    few = Quantiles(1, 100, (0.1, 0.3, 0.5, 0.7, 0.9), exact=0)
    values = np.repeat([-7.0, 0.0, 0.25, 10.0, 5000.0], 20)
    negative, zero, small, inside, large = quantiles(few, values)
    assert (negative, zero, small, large) == (-7.0, 0.0, 1.0, 5000.0)
    assert inside == pytest.approx(10, rel=0.01)


def test_results_never_leave_what_was_seen() -> None:
    assert quantiles(Quantiles(1, 1000, POINTS, exact=0), np.full(100, 500.0)) == [500.0] * len(POINTS)
    assert quantiles(Quantiles(1, 1000, POINTS, exact=0), np.full(100, 0.5)) == [0.5] * len(POINTS)


def test_infinite_values_are_counted() -> None:
    values = np.array([-math.inf] * 50 + [math.inf] * 50)
    assert quantiles(Quantiles(1, 10, (0.5, 0.95)), values) == [-math.inf, math.inf]


def test_a_rank_is_computed_in_decimal_not_in_binary() -> None:
    assert quantiles(Quantiles(1, 100, (0.07,)), np.arange(1.0, 101.0)[:100]) == pytest.approx([7.0], rel=0.01)
    assert quantiles(Quantiles(1, 100, (0.07,), exact=100), np.arange(1.0, 101.0)) == [7.0]


def test_the_median_of_two_ranks_is_that_of_the_merged_values() -> None:
    reducer = Quantiles(1, 1000, (0.5,))
    mine, theirs = reducer.zero(1), reducer.zero(1)
    reducer.update(*mine, np.zeros(3, np.int64), np.ones(3))
    reducer.update(*theirs, np.zeros(1, np.int64), np.array([100.0]))
    reducer.merge(*mine, *theirs)
    assert reducer.result(mine[0][0], mine[1][0]) == {"p50": 1.0}


def test_nan_is_refused() -> None:
    with pytest.raises(MetricError, match="NaN"):
        quantiles(Quantiles(1, 10), np.array([1.0, math.nan, 2.0]))


@pytest.mark.parametrize(
    "bad",
    [
        {"lo": 0, "hi": 1},
        {"lo": 2, "hi": 1},
        {"lo": 1, "hi": math.inf},
        {"lo": math.nan, "hi": 1},
        {"lo": 1, "hi": 2, "points": ()},
        {"lo": 1, "hi": 2, "points": (1.5,)},
        {"lo": 1, "hi": 2, "exact": -1},
    ],
)
def test_a_range_or_point_without_sense_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(MetricError, match="Quantiles"):
        Quantiles(**bad)


def test_points_are_named_in_percent() -> None:
    assert Quantiles(1, 2, (0, 0.5, 0.07, 0.999)).suffixes == ("p0", "p50", "p7", "p99.9")
