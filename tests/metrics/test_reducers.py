"""Reducers: merging any split of the values in any order gives what one pass gives."""

from __future__ import annotations

import math
import statistics
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from streamsft.errors import ConfigError, MetricError
from streamsft.metrics.histograms import Histogram
from streamsft.metrics.quantiles import Quantiles
from streamsft.metrics.reducers import Counts, Max, Mean, Min, Reducer, Std, Sum
from tests.metrics.states import GROUPS, one_pass, per_group, results, split_and_merged

EXACT = [
    Min(),
    Max(),
    Counts(("a", "b")),
    Histogram((-5, 0, 1, 40)),
    Quantiles(1, 1000, exact=8),
    Quantiles(0.5, 2, (0, 0.25, 1), exact=0),
]
FLOAT = [Sum(), Mean(), Std()]
rows = st.lists(st.tuples(st.integers(0, GROUPS - 1), st.floats(-1e6, 1e6) | st.integers(-3, 50)), max_size=60)


def unzip(pairs: list[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [g for g, _ in pairs], [float(v) for _, v in pairs]


@pytest.mark.parametrize("reducer", EXACT, ids=repr)
@settings(max_examples=40)
@given(rows, st.data())
def test_any_split_merged_in_any_order_is_exactly_one_pass(
    reducer: Reducer, pairs: list[tuple[int, float]], data: st.DataObject
) -> None:
    group, values = unzip(pairs)
    assert split_and_merged(reducer, group, values, data) == results(reducer, one_pass(reducer, group, values))


@pytest.mark.parametrize("reducer", FLOAT, ids=repr)
@settings(max_examples=40)
@given(rows, st.data())
def test_float_sums_agree_to_1e_12_however_split(
    reducer: Reducer, pairs: list[tuple[int, float]], data: st.DataObject
) -> None:
    group, values = unzip(pairs)
    merged = split_and_merged(reducer, group, values, data)
    for mine, whole in zip(merged, results(reducer, one_pass(reducer, group, values)), strict=True):
        assert mine == pytest.approx(whole, rel=1e-12, abs=1e-12)


@settings(max_examples=40)
@given(rows)
def test_the_numbers_are_those_of_the_values(pairs: list[tuple[int, float]]) -> None:
    group, values = unzip(pairs)
    for k, mine in enumerate(per_group(group, values)):
        numbers: dict[str, float] = {}
        for reducer in (Sum(), Mean(), Min(), Max(), Std()):
            numbers |= results(reducer, one_pass(reducer, group, values))[k]
        expected = {"sum": math.fsum(mine)}
        if mine:
            expected |= {"mean": math.fsum(mine) / len(mine), "min": min(mine), "max": max(mine)}
            expected |= {"std": statistics.pstdev(mine)}
        assert numbers == pytest.approx(expected, rel=1e-12, abs=1e-20)


def test_a_small_spread_around_a_large_mean_is_not_lost() -> None:
    values = [1e9 + x for x in (0.25, 0.5, 0.75)]
    assert results(Std(), one_pass(Std(), [0] * 3, values))[0]["std"] == pytest.approx(math.sqrt(0.125 / 3), rel=1e-12)


def test_a_weighted_mean_divides_once() -> None:
    mean = Mean()
    state = mean.zero(1)
    mean.update(*state, np.zeros(2, np.int64), np.array([1.0, 7.0]), np.array([5.0, 1.0]))
    assert mean.result(state[0][0], state[1][0]) == {"mean": 2.0}


def test_nothing_seen_means_no_number() -> None:
    for reducer in (Mean(), Min(), Max(), Std(), Quantiles(1, 10)):
        assert results(reducer, one_pass(reducer, [], [])) == [{}] * GROUPS
    assert results(Sum(), one_pass(Sum(), [], []))[0] == {"sum": 0.0}


def test_extremes_are_merged_not_averaged() -> None:
    assert results(Max(), one_pass(Max(), [0, 0], [3, 9]))[0] == {"max": 9}
    assert results(Min(), one_pass(Min(), [0, 0], [1, 2]))[0] == {"min": 1}
    assert results(Max(), one_pass(Max(), [0], [-math.inf]))[0] == {"max": -math.inf}


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, GROUPS - 1), st.integers(-1, 4)), max_size=40))
def test_categories_are_counted_and_the_rest_is_other(pairs: list[tuple[int, int]]) -> None:
    group, values = unzip([(g, float(v)) for g, v in pairs])
    counted = results(Counts(("a", "b", "c")), one_pass(Counts(("a", "b", "c")), group, values))
    for mine, numbers in zip(per_group(group, values), counted, strict=True):
        seen = Counter({-1: "other", 0: "a", 1: "b", 2: "c"}.get(int(v), "other") for v in mine)
        assert numbers == {name: seen[name] for name in ("a", "b", "c", "other")}


@pytest.mark.parametrize("categories", [(), ("a", "a"), ("other",)])
def test_categories_are_distinct_and_never_called_other(categories: tuple[str, ...]) -> None:
    with pytest.raises(MetricError, match="Counts"):
        Counts(categories)


def test_a_category_name_can_be_part_of_a_key() -> None:
    with pytest.raises(ConfigError, match="category name 'a/b'"):
        Counts(("a/b",))
