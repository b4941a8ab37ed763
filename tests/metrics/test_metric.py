"""A user's metric: measured on each sample, named predictably, wrong values reported with their row."""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from streamsft.errors import ConfigError, MetricError
from streamsft.metrics.aggregator import Aggregator
from streamsft.metrics.metric import Metric, measure
from streamsft.metrics.quantiles import Quantiles
from streamsft.metrics.reducers import Counts, Max, Mean, Sum
from streamsft.types import Floats, Ints, Sample
from tests.metrics.runs import SOURCES, batch, language, turns


def sample(length: int = 3, row: int = 7) -> Sample:
    return Sample(
        input_ids=np.zeros(length, np.int32), loss_mask=np.ones(length, bool), source="math", row=row, pass_index=2
    )


def test_every_metric_is_measured_on_every_sample() -> None:
    metrics = [Metric("turns", turns, [Mean()]), Metric("language", language, [Counts(("c", "python"))])]
    values = measure(metrics, [sample(3, 1), sample(5, 2)])
    assert {name: v.tolist() for name, v in values.items()} == {"turns": [3.0, 5.0], "language": [1.0, 2.0]}
    assert all(v.dtype == np.float64 for v in values.values())


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "many"])
def test_a_value_that_is_no_finite_number_is_reported_with_its_row(value: Any) -> None:
    metric = Metric("turns", lambda _: value, [Mean()])
    with pytest.raises(MetricError, match=r"metric 'turns': .* on source 'math', row 7, pass 2 is not a finite"):
        metric.measure(sample())


def test_a_category_must_be_a_name() -> None:
    with pytest.raises(MetricError, match="row 7, pass 2 is not the name of a category"):
        Metric("kind", lambda _: 1.0, [Counts(("a",))]).measure(sample())


def test_what_a_value_function_raises_comes_with_the_row() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        Metric("ratio", lambda s: 1 / (len(s) - 3), [Mean()]).measure(sample())
    assert caught.value.__notes__ == ["metric 'ratio': its value function failed on source 'math', row 7, pass 2"]


def test_one_number_goes_by_the_name_alone_and_several_by_name_and_suffix() -> None:
    assert list(Metric("turns", turns, [Max()]).keys.values()) == ["turns"]
    assert list(Metric("turns", turns, [Max(), Quantiles(1, 9)]).keys.values()) == [
        "turns_max",
        "turns_p50",
        "turns_p95",
    ]
    assert list(Metric("kind", language, [Counts(("c",))]).keys.values()) == ["kind_c", "kind_other"]


@pytest.mark.parametrize(
    ("reducers", "message"),
    [([], "one or more"), ([Sum(), Sum()], "each once"), ([Counts(("a",)), Sum()], "make two metrics")],
)
def test_reducers_are_given_and_go_together(reducers: list[Any], message: str) -> None:
    with pytest.raises(MetricError, match=message):
        Metric("x", turns, reducers)


def test_two_results_of_one_name_are_refused() -> None:
    with pytest.raises(MetricError, match="called the same"):
        Aggregator(SOURCES, [Metric("x", turns, [Quantiles(1, 9), Quantiles(1, 99)])])


def test_names_can_be_parts_of_keys() -> None:
    with pytest.raises(ConfigError, match="metric name 'a/b'"):
        Metric("a/b", turns, [Sum()])


def test_metrics_travel_to_worker_processes() -> None:
    metric = Metric("turns", turns, [Mean(), Quantiles(1, 9)])
    assert pickle.loads(pickle.dumps(metric)) == metric


@dataclass(frozen=True)
class Longest:
    """A reducer written by a user: the largest value and how often it came."""

    ints: int = 1
    floats: int = 1
    suffixes: tuple[str, ...] = ("longest", "times")
    layout: str = "Longest()"

    def zero(self, groups: int) -> tuple[Ints, Floats]:
        return np.zeros((groups, 1), np.int64), np.full((groups, 1), -np.inf)

    def update(self, ints: Ints, floats: Floats, group: Ints, values: Floats) -> None:
        for g, value in zip(group, values, strict=True):
            self.merge(ints[g : g + 1], floats[g : g + 1], np.ones((1, 1), np.int64), np.full((1, 1), value))

    def merge(self, ints: Ints, floats: Floats, other_ints: Ints, other_floats: Floats) -> None:
        ints[:] = np.where(other_floats < floats, 0, other_ints) + np.where(floats < other_floats, 0, ints)
        np.maximum(floats, other_floats, out=floats)

    def result(self, ints: Ints, floats: Floats) -> dict[str, float]:
        return {"longest": float(floats[0]), "times": int(ints[0])} if ints[0] else {}


def test_a_reducer_of_ones_own_needs_nothing_but_the_protocol() -> None:
    mine = Aggregator(SOURCES, [Metric("turns", turns, [Longest()])])
    for seed in range(3):
        stats = batch(seed, 20)
        stats.values["turns"] = np.minimum(stats.values["turns"].round(), 30)
        mine.update(stats)
    other = Aggregator(SOURCES, [Metric("turns", turns, [Longest()])])
    other.load_state(mine.gather_state())
    record = mine.log()
    assert record["data_mix/turns_longest"] == 30
    assert record["data_mix/turns_times"] == sum(record[f"data_{s.name}/turns_times"] for s in SOURCES) > 3
    assert other.log() == record
