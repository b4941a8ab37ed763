"""`Interleave`: what weights mean, what is refused before data is touched, and what the order does not depend on."""

from __future__ import annotations

import logging
import math
from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from streamsft.errors import ConfigError, EmptySourceError
from streamsft.stream.interleave import Interleave
from streamsft.stream.sourcestream import SourceStream
from streamsft.types import Sample
from tests import laws
from tests.fakes import ListSource, source


class Untouched:
    """A source that fails the test when anything but its name is asked for."""

    def __init__(self, name: str) -> None:
        self.name = name

    def _opened(self, *_: Any) -> Any:
        pytest.fail(f"source {self.name} was opened")

    __len__ = read = origin = _opened
    fingerprint = lengths = supervised = first_supervised = row_numbers = property(_opened)


def _draws(mix: Interleave, count: int) -> list[Sample]:
    return list(islice(mix, count))


def _counts(mix: Interleave, count: int) -> dict[str, int]:
    return Counter(sample.source for sample in _draws(mix, count))


def test_weights_three_to_one_draw_three_to_one() -> None:
    counts = _counts(Interleave([source("a", [2] * 5), source("b", [2] * 7)], [3, 1]), 4000)
    assert abs(counts["a"] - 3000) <= 2 + 2 * 0.75 * math.sqrt(2) + 16  # the last window is not whole
    assert counts["a"] + counts["b"] == 4000


def test_weights_hold_in_what_is_given_out() -> None:
    mix = Interleave([source(name, [2] * 9) for name in "abc"], [5, 2, 1], window=50)
    total, at_borders = Counter[str](), []
    for _ in range(40):
        total.update(sample.source for sample in islice(mix, 50))
        at_borders.append([total[name] for name in "abc"])
    laws.weights_hold(np.array(at_borders), [5 / 8, 2 / 8, 1 / 8])


def test_weight_counts_rows_whatever_their_length() -> None:
    mix = Interleave([source("short", [10] * 20), source("long", [90] * 20)], [1, 1])
    drawn = _draws(mix, 2048)
    assert abs(sum(sample.source == "short" for sample in drawn) - 1024) <= 3
    tokens = {name: sum(len(sample) for sample in drawn if sample.source == name) for name in ("short", "long")}
    assert abs(tokens["short"] / sum(tokens.values()) - 0.10) < 0.001


def test_without_weights_each_row_comes_equally_often() -> None:
    mix = Interleave([source("few", [2] * 30), source("many", [2] * 90)], window=60)
    rows = Counter((sample.source, sample.row) for sample in _draws(mix, 600))
    assert {*rows.values()} <= {4, 5, 6}
    assert len(rows) == 120


def test_weight_zero_is_never_drawn_nor_opened(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "streamsft")
    mix = Interleave([Untouched("off"), source("on", [2, 3])], [0, 1])
    assert _counts(mix, 50) == {"on": 50}
    assert caplog.messages == ["off: weight 0, so it is never drawn nor opened"]
    assert "off    0.00%  never drawn" in str(mix.info)
    inner = Interleave([Untouched("x"), Untouched("y")], [1, 1], name="inner")
    assert _counts(Interleave([inner, source("on", [2])], [0, 1]), 20) == {"on": 20}


@pytest.mark.parametrize(
    "weights", [[0, 0], [-1, 2], [math.nan, 1], [math.inf, 1], [True, 1], ["1", 1], [0.5], [1, 2, 3], [None, 1]]
)
def test_wrong_weights_are_refused_before_a_source_is_opened(weights: list[Any]) -> None:
    with pytest.raises(ConfigError, match="mix 'mix': "):
        Interleave([Untouched("a"), Untouched("b")], weights)


@pytest.mark.parametrize("scale", [1e-300, 1e-3, 7, 1e307])
def test_scale_of_the_weights_does_not_matter(scale: float) -> None:
    sources = [source("a", [2] * 5), source("b", [2] * 7)]
    scaled = Interleave(sources, [3 * scale, 1 * scale])
    assert laws.first(scaled, 60) == laws.first(Interleave(sources, [3, 1]), 60)
    assert scaled.fingerprint == Interleave(sources, [3, 1]).fingerprint


@settings(max_examples=20)
@given(order=st.permutations(range(4)), seed=st.integers(0, 2**40))
def test_order_of_the_children_does_not_matter(order: list[int], seed: int) -> None:
    sources, weights = [source(f"s{number}", [2] * (3 + number)) for number in range(4)], [4, 3, 2, 1]
    straight = Interleave(sources, weights, seed=seed)
    moved = Interleave([sources[at] for at in order], [weights[at] for at in order], seed=seed)
    assert laws.first(moved, 40) == laws.first(straight, 40)


def test_nested_weights_multiply() -> None:
    inner = Interleave([source("b", [2]), source("c", [2])], [3, 1], name="inner", seed=99)
    mix = Interleave([source("a", [2]), inner], [1, 1], seed=4)
    assert {leaf.name: leaf.share for leaf in mix.mixture(None).leaves} == {"a": 0.5, "b": 0.375, "c": 0.125}
    assert {leaf.name: leaf.groups for leaf in mix.mixture(None).leaves} == {
        "a": ("mix",), "b": ("mix", "inner"), "c": ("mix", "inner"),
    }  # fmt: skip
    flat = Interleave([source(name, [2]) for name in "abc"], [4, 3, 1], seed=4)
    assert laws.first(mix, 50) == laws.first(flat, 50)


def test_source_keeps_its_order_of_rows_in_any_mix() -> None:
    """The order of a source depends on its name and the seed, not on what it stands beside."""
    data = source("s", [2] * 20)
    alone = [sample.row for sample in islice(SourceStream(data, seed=6), 60)]
    beside = Interleave([data, source("other", [2] * 5)], [1, 3], seed=6, window=1)
    assert [sample.row for sample in _draws(beside, 300) if sample.source == "s"][:60] == alone


def test_sources_of_equal_rows_are_shuffled_unlike_each_other() -> None:
    orders = [[s.row for s in islice(SourceStream(source(name, [2] * 50), seed=6), 50)] for name in ("a", "b", "a1")]
    assert len({tuple(order) for order in orders}) == 3


def test_same_name_twice_is_refused_anywhere_in_the_tree() -> None:
    inner = Interleave([source("a", [2])], name="inner")
    for children in ([source("a", [2]), inner], [source("inner", [2]), inner], [source("mix", [2])]):
        with pytest.raises(ConfigError, match="stands twice in the tree"):
            Interleave(children)


@pytest.mark.parametrize("name", ["", "a/b", "a b", "ä"])
def test_name_of_other_characters_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="use letters, digits"):
        Interleave([source(name, [2])])
    with pytest.raises(ConfigError, match="use letters, digits"):
        Interleave([source("a", [2])], name=name)


@pytest.mark.parametrize("child", [[1, 2], iter([]), "path", None, 3])
def test_child_that_does_not_promise_to_be_endless_is_refused(child: Any) -> None:
    with pytest.raises(ConfigError, match="does not promise to be endless"):
        Interleave([child])


def test_mix_without_children_or_window_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no children"):
        Interleave([])
    with pytest.raises(ConfigError, match="window 0"):
        Interleave([source("a", [2])], window=0)


def test_empty_source_with_a_weight_is_refused_by_name() -> None:
    with pytest.raises(EmptySourceError, match="source 'void' has no row"):
        next(iter(Interleave([source("a", [2]), ListSource("void", [])], [1, 1])))


def test_printed_it_is_the_tree_with_shares() -> None:
    inner = Interleave([source("b", [2] * 3), source("c", [2, 1])], [3, 1], name="inner")
    mix = Interleave([source("a", [2] * 1500), inner], [1, 3], seed=5)
    assert str(mix.info).splitlines() == [
        "mix  seed 5",
        "├── a   25.00%  1,500 rows",
        "└── inner   75.00%",
        "    ├── b   56.25%  3 rows",
        "    └── c   18.75%  1 rows, 1 nothing_supervised",
    ]
