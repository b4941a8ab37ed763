"""Weights: by tokens, and by training step."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from streamsft.errors import ConfigError
from streamsft.stream.interleave import Interleave
from streamsft.stream.loader import Loader
from streamsft.stream.packer import Packer
from streamsft.stream.weights import Weight, WeightSchedule, WeightTree, check_weights, normalized, parsed, value_at
from tests import laws
from tests.fakes import ListSource, Row, source, streamed
from tests.mixes import random_lengths
from tests.streams import StreamedMix

MEANS = {"brief": 60, "middling": 300, "lengthy": 1500}
LIMIT = 4096


def _lengths(mean: int) -> list[int]:
    """Log-normal lengths of a mean."""
    return random_lengths(mean, 200, median=mean * np.exp(-0.18), spread=0.6, longest=12 * mean)


def _row(number: int, length: int) -> Row:
    return [number, *[7] * (length - 1)], [0, *[1] * (length - 1)], ""


def _sources(kinds: str) -> list[Any]:
    """The three sources, streaming (s) or read by index (i)."""
    made: list[Any] = []
    for (name, mean), kind in zip(MEANS.items(), kinds, strict=True):
        rows = [_row(number, length) for number, length in enumerate(_lengths(mean))]
        if kind == "s":
            made.append(streamed(name, [rows[at::5] for at in range(5)], shuffle_window=50))
        else:
            made.append(ListSource(name, [(ids, mask) for ids, mask, _ in rows]))
    return made


def _consumed(loader: Loader, packs: int) -> list[Counter[str]]:
    """Tokens of each source, step by step."""
    steps = []
    for batch in itertools.islice(loader, packs // loader.topology.global_batch_size):
        tokens: Counter[str] = Counter()
        for at, name in enumerate(batch.sources):
            tokens[name] = int(batch.stats.columns.tokens[batch.stats.columns.source == at].sum())
        steps.append(tokens)
    return steps


def _loader(kinds: str, weights: list[Any], lanes: tuple[int, int], lookahead: int | None = None) -> Loader:
    mix = Interleave(_sources(kinds), weights, unit="tokens", seed=5)
    return Loader(
        Packer(mix, LIMIT, lookahead=lookahead), global_batch_size=16, lanes_per_step=lanes[0], lane_groups=lanes[1],
        background=False,
    )  # fmt: skip


@pytest.mark.parametrize(("kinds", "lanes"), [("sis", (1, 1)), ("sis", (4, 4)), ("iii", (4, 4))])
def test_token_shares_are_within_half_a_point_over_two_thousand_packs(kinds: str, lanes: tuple[int, int]) -> None:
    consumed = sum(_consumed(_loader(kinds, [1, 1, 1], lanes), 2000), Counter())
    for name in MEANS:
        assert abs(consumed[name] / consumed.total() - 1 / 3) <= 0.005


@pytest.mark.parametrize(("lanes", "lookahead"), [((1, 1), None), ((4, 4), 64)])
def test_shares_under_a_schedule_are_within_a_point_of_its_integral(
    lanes: tuple[int, int], lookahead: int | None
) -> None:
    """A window keeps the weights it began with: here it spans 2 steps of one lane, and 8 of one in 16."""
    weights: list[Any] = [{0: 1.0, 125: 0.2}, 1.0, {10: 0.5, 60: 2.0, "hold": True}]
    steps = _consumed(_loader("sis", weights, lanes, lookahead), 2000)
    consumed = np.array([[tokens[name] for name in MEANS] for tokens in steps])
    asked = np.array([[value_at(parsed(weight, ""), step) for weight in weights] for step in range(1, 126)])
    integral = (asked / asked.sum(axis=1, keepdims=True) * consumed.sum(axis=1, keepdims=True)).sum(axis=0)
    assert np.abs(consumed.sum(axis=0) - integral).max() / consumed.sum() <= 0.01


def test_truncated_rows_count_as_much_as_is_kept() -> None:
    long, short = source("long", [100, 90]), source("short", [10, 9])
    for kinds in ((long, short), (streamed("long", [_rows(long)]), streamed("short", [_rows(short)]))):
        mix = Interleave(list(kinds), [1.0, 1.0], unit="tokens")
        consumed = sum(
            _consumed(Loader(Packer(mix, 20, lookahead=16), global_batch_size=1, background=False), 400), Counter()
        )
        assert abs(consumed["long"] / consumed.total() - 0.5) < 0.01


def _rows(one: ListSource) -> list[Row]:
    return [(ids.tolist(), mask.tolist(), "") for ids, mask in zip(one.ids, one.masks, strict=True)]


weight = st.one_of(
    st.floats(0.05, 9.0),
    st.sampled_from([{0: 1.0, 9: 0.1}, {0: 0.0, 4: 1.0}, {3: 2.0, 5: 0.0}, {2: 1.0, 4: 5.0, "hold": True}]),
)


@settings(max_examples=8)
@given(
    weights=st.tuples(st.floats(0.1, 9.0), weight, weight),
    unit=st.sampled_from(["samples", "tokens"]),
    lanes=st.sampled_from([(1, 1), (2, 2)]),
    segments=st.lists(st.integers(0, 5), min_size=2, max_size=4),
)
def test_weights_by_step_resume_exactly(
    weights: tuple[Any, ...], unit: Any, lanes: tuple[int, int], segments: list[int]
) -> None:
    mix = StreamedMix(weights=weights, unit=unit)
    laws.resumes_exactly(lambda: mix.loader(lanes_per_step=lanes[0], lane_groups=lanes[1]), 12, segments)


def test_source_is_drawn_from_the_window_at_whose_step_its_weight_rises() -> None:
    mix = Interleave([source("a", [3] * 9), source("b", [3] * 9)], [1.0, {0: 0, 10: 0, 11: 1}], seed=1)
    loader = Loader(Packer(mix, 6, lookahead=8), global_batch_size=2, background=False)
    drawn = [{name for pack in batch.rows for name, *_ in pack} for batch in itertools.islice(loader, 20)]
    assert all(names == {"a"} for names in drawn[:10])
    assert all("b" in names for names in drawn[14:])


def test_source_is_no_longer_drawn_when_its_weight_is_zero() -> None:
    mix = Interleave([source("a", [3] * 9), source("b", [3] * 9)], [1.0, {0: 1, 10: 0}], seed=1)
    loader = Loader(Packer(mix, 6, lookahead=8), global_batch_size=2, background=False)
    drawn = [{name for pack in batch.rows for name, *_ in pack} for batch in itertools.islice(loader, 20)]
    assert all("b" in set().union(*drawn[at : at + 2]) for at in range(6))
    assert all(names == {"a"} for names in drawn[13:])


def test_weights_by_step_need_steps() -> None:
    mix = Interleave([source("a", [3]), source("b", [3])], [1.0, {0: 1, 10: 0}])
    for stage in (mix, Packer(mix, 6)):
        with pytest.raises(ConfigError, match="weights by step need a Loader, which counts steps"):
            next(iter(stage))


@pytest.mark.parametrize(
    ("schedule", "at"),
    [({0: 1.0, 10: 0.0}, {0: 1.0, 1: 0.9, 5: 0.5, 10: 0.0, 99: 0.0}),
     ({5: 2.0}, {0: 2.0, 5: 2.0, 6: 2.0}),
     ({10: 4, 4: 1}, {0: 1.0, 4: 1.0, 7: 2.5, 10: 4.0}),
     ({0: 1.0, 10: 3.0, "hold": True}, {0: 1.0, 9: 1.0, 10: 3.0, 11: 3.0}),
     ({0: 1.0, 10: 3.0, "hold": False}, {5: 2.0})],
)  # fmt: skip
def test_weight_goes_from_point_to_point(schedule: Any, at: dict[int, float]) -> None:
    weight = parsed(schedule, "w")
    assert {step: value_at(weight, step) for step in at} == pytest.approx(at)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [({}, "without a step"), ({"hold": True}, "without a step"), ({-1: 1.0}, "-1 is not a training step"),
     ({1.5: 1.0}, "1.5 is not a training step"), ({"a": 1.0}, "'a' is not a training step"),
     ({True: 1.0}, "True is not a training step"), ({0: -1}, "is -1; give a finite number"), ({0: "1"}, "'1'; give"),
     ({0: float("nan")}, "finite"), ({0: 1.0, "hold": 1}, "hold is 1; give true or false"), ("1", "'1'; give a number"),
     (True, "True; give a number"), (float("inf"), "finite")],
)  # fmt: skip
def test_wrong_weight_is_refused_by_its_place(schedule: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"mix 'm': weight of 'a'.*{message}"):
        check_weights({"a": schedule, "b": 1.0}, "mix 'm'")


def test_step_at_which_nothing_could_be_drawn_is_named() -> None:
    with pytest.raises(ConfigError, match="every weight is 0 at step 20, so nothing could be drawn"):
        check_weights({"a": {0: 1, 20: 0}, "b": {0: 0, 10: 1, 15: 0}})
    check_weights({"a": {0: 1, 20: 0}, "b": {0: 0, 20: 1}})


def test_weight_that_vanishes_beside_another_is_refused() -> None:
    with pytest.raises(ConfigError, match="weight 1e-300 is nothing beside 1e\\+300: raise it, or set it to 0"):
        normalized([1e300, 1e-300])
    assert normalized([1e300, 1e300, 0.0]) == [0.5, 0.5, 0.0]


@given(step=st.integers(0, 30))
def test_nested_schedules_multiply(step: int) -> None:
    outer: Weight = WeightSchedule(((0, 1.0), (20, 3.0)))
    inner = WeightTree("inner", ((WeightTree("b"), 1.0), (WeightTree("c"), WeightSchedule(((10, 1.0), (20, 3.0))))))
    tree = WeightTree("mix", ((WeightTree("a"), 1.0), (inner, outer)))
    shares, below = tree.shares(step), value_at(outer, step)
    part = value_at(inner.children[1][1], step)
    assert shares == pytest.approx(
        {"a": 1 / (1 + below), "b": below / (1 + below) / (1 + part), "c": below / (1 + below) * part / (1 + part)}
    )
    assert tree.schedules() == {"inner": [[[0, 1.0], [20, 3.0]], "linear"], "c": [[[10, 1.0], [20, 3.0]], "linear"]}
