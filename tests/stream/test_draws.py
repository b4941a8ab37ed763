"""Which source is drawn next: weights, their bounds, and what the order depends on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from streamsft.errors import ConfigError
from streamsft.order.keys import derive_key, hash64
from streamsft.stream.draws import Schedule
from streamsft.stream.interleave import Interleave
from streamsft.stream.weights import check_weights, normalized, rounded_share
from tests import laws
from tests.fakes import source

WINDOW = 1024
MILLION = 1_000_000


def _weights(count: int) -> list[float]:
    """Weights that span a factor of a hundred, one source having half of all."""
    others = 1 + 99 * hash64(derive_key(count, "weights"), np.arange(count - 1)) / 2.0**64
    return [float(others.sum()), *others.tolist()]


@pytest.mark.parametrize("count", [3, 20, 200])
def test_share_is_kept_at_every_window_border_of_a_million_draws(count: int) -> None:
    shares = normalized(_weights(count))
    schedule = Schedule(shares)
    due = schedule.phases(7, [f"s{number}" for number in range(count)], 0)
    drawn = np.zeros(count, np.int64)
    at_borders = []
    for _ in range(-(-MILLION // WINDOW)):
        window = schedule.draw(due, drawn, WINDOW)
        due, drawn = window.due, window.drawn
        at_borders.append(drawn)
        assert (due >= 0).all()
        assert (due <= schedule.stride).all()
    assert int(drawn.sum()) >= MILLION
    laws.weights_hold(np.array(at_borders), shares)


@pytest.mark.parametrize("count", [3, 20])
def test_any_ten_thousand_draws_are_within_half_a_point_of_the_share(count: int) -> None:
    weights = _weights(count)
    mix = Interleave([source(f"s{number:02d}", [2]) for number in range(count)], weights, seed=11, window=WINDOW)
    plan = mix.plan()
    due, drawn, parts = plan.first_due(0), np.zeros(count, np.int64), []
    for number in range(-(-MILLION // WINDOW)):
        window = plan.window(0, number, due, drawn)
        due, drawn = window.due, window.drawn
        parts.append(window.documents.source)
    draws = np.concatenate(parts)
    for number, share in enumerate(normalized(weights)):
        so_far = np.concatenate([[0], np.cumsum(draws == number)])
        in_stretch = so_far[10_000:] - so_far[:-10_000]
        assert np.abs(in_stretch / 10_000 - share).max() <= 0.005


@settings(max_examples=30)
@given(
    weights=st.lists(st.floats(0.01, 100), min_size=1, max_size=8),
    windows=st.lists(st.integers(1, 50), min_size=1, max_size=5),
    seed=st.integers(0, 2**64 - 1),
)
def test_draws_do_not_depend_on_where_windows_end(weights: list[float], windows: list[int], seed: int) -> None:
    schedule = Schedule(normalized(weights))
    start = schedule.phases(seed, [f"s{number}" for number in range(len(weights))], 0)
    none = np.zeros(len(weights), np.int64)
    whole = schedule.draw(start, none, sum(windows))
    due, drawn, found = start, none, []
    for count in windows:
        window = schedule.draw(due, drawn, count)
        due, drawn = window.due, window.drawn
        found += list(zip(window.source.tolist(), window.number.tolist(), strict=True))
    assert found == list(zip(whole.source.tolist(), whole.number.tolist(), strict=True))
    assert (due == whole.due).all()
    assert (drawn == whole.drawn).all()


@settings(max_examples=30)
@given(weights=st.lists(st.floats(0.01, 100), min_size=1, max_size=8), count=st.integers(1, 300))
def test_draws_follow_the_stride_scheduler_one_by_one(weights: list[float], count: int) -> None:
    schedule = Schedule(normalized(weights))
    due = schedule.phases(3, [f"s{number}" for number in range(len(weights))], 0)
    window = schedule.draw(due, np.zeros(len(weights), np.int64), count)
    times, expected = due.copy(), []
    for _ in range(count):
        now = int(np.argmin(times))
        expected.append(now)
        times[now] += schedule.stride[now]
    assert window.source.tolist() == expected


def test_rare_sources_do_not_come_first_on_every_lane() -> None:
    schedule = Schedule([0.99, 0.01])
    firsts = []
    for lane in range(64):
        window = schedule.draw(schedule.phases(5, ["often", "rare"], lane), np.zeros(2, np.int64), 400)
        firsts.append(int(np.flatnonzero(window.source == 1)[0]))
    assert len(set(firsts)) > 32
    assert min(firsts) < 20
    assert max(firsts) > 80


@given(
    weights=st.lists(st.just(0.0) | st.floats(1e-20, 1.0), min_size=1, max_size=9).filter(any),
    scale=st.integers(-900, 1023),
)
def test_shares_sum_to_one_at_any_scale_and_in_any_order(weights: list[float], scale: int) -> None:
    shares = normalized(weights)
    assert math.isclose(math.fsum(shares), 1.0, rel_tol=1e-12)
    assert normalized(weights[::-1]) == shares[::-1]
    assert normalized([math.ldexp(weight, scale) for weight in weights]) == shares


@given(share=st.floats(1e-8, 1.0))
def test_a_share_in_a_state_is_short_and_exact_to_ten_digits(share: float) -> None:
    assert math.isclose(rounded_share(share), share, rel_tol=5.0001e-10)
    assert len(repr(rounded_share(share))) <= 16
    assert rounded_share(rounded_share(share)) == rounded_share(share)


@pytest.mark.parametrize("bad", [-1, math.nan, math.inf, -math.inf, 10**400, True, "2", [1]])
def test_weight_that_is_no_finite_number_is_refused_by_name(bad: Any) -> None:
    with pytest.raises(ConfigError, match="weight of 'bad' is"):
        check_weights({"good": 1.0, "bad": bad})


def test_weights_are_given_for_all_or_for_none() -> None:
    with pytest.raises(ConfigError, match="'b' without a weight beside sources that have one"):
        check_weights({"a": 1.0, "b": None})
    check_weights({"a": None, "b": None})


def test_weights_that_are_all_zero_are_refused() -> None:
    with pytest.raises(ConfigError, match="every weight is 0"):
        check_weights({"a": 0.0, "b": 0})


def test_share_too_small_to_keep_is_refused() -> None:
    with pytest.raises(ConfigError, match="raise its weight, or set it to 0"):
        Schedule(normalized([1.0, 1e-9]))


def test_smallest_share_that_is_allowed_stays_exact() -> None:
    schedule = Schedule(normalized([1.0, 1.1e-8]))
    due = schedule.phases(1, ["a", "b"], 0)
    drawn = np.zeros(2, np.int64)
    for _ in range(50):
        window = schedule.draw(due, drawn, 4096)
        due, drawn = window.due, window.drawn
        assert (due >= 0).all()
    assert drawn.sum() == 50 * 4096
    assert drawn[1] <= 1
