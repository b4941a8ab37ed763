"""Distributions: counts between edges, what is drawn of them, and how they travel."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from streamsft.comm import Comm, LocalComm, ThreadComm
from streamsft.errors import MetricError
from streamsft.metrics.aggregator import Aggregator
from streamsft.metrics.builtin import SHARES, TURNS
from streamsft.metrics.histograms import Buckets, Histogram
from streamsft.metrics.ledger import Entry, Layout, Ledger
from streamsft.metrics.metric import Metric
from streamsft.metrics.quantiles import Quantiles
from streamsft.metrics.reducers import Counts, Sum
from streamsft.metrics.stats import stretches
from tests.metrics.runs import RUN_METRICS, SOURCES, aggregator, batch, feed, turns


def state(reducer: Histogram | Quantiles, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    ints, floats = reducer.zero(1)
    reducer.update(ints, floats, np.zeros(len(values), np.int64), values.astype(np.float64))
    return ints[0], floats[0]


@settings(max_examples=60)
@given(st.lists(st.integers(0, 16), min_size=1, max_size=200))
def test_quantiles_of_whole_numbers_with_an_edge_each_are_exact(values: list[int]) -> None:
    array = np.array(values)
    found = Histogram(TURNS.edges, (0, 0.05, 0.5, 0.95, 1)).result(*state(TURNS, array))
    assert list(found.values()) == [np.quantile(array, q, method="inverted_cdf") for q in (0, 0.05, 0.5, 0.95, 1)]


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=1, max_size=200))
def test_quantiles_are_rounded_up_to_the_next_edge(pairs: list[tuple[int, int]]) -> None:
    shares = np.array([min(a, b) / b for a, b in pairs])
    for point, value in zip((50, 95), SHARES.result(*state(SHARES, shares)).values(), strict=True):
        exact = np.percentile(shares, point, method="inverted_cdf")
        assert value - 0.02 - 1e-12 <= exact <= value


@settings(max_examples=60)
@given(st.lists(st.floats(-1e3, 1e7) | st.integers(0, 5), max_size=200))
def test_every_value_is_in_the_bucket_that_holds_it(values: list[float]) -> None:
    reducer = Quantiles(1, 1e5)
    found = reducer.buckets(*state(reducer, np.array(values)))
    if not values:
        assert found is None
        return
    assert found is not None
    assert sum(found.counts) == len(values)
    assert found.counts[0]
    assert found.counts[-1]
    for low, high, count in zip(found.edges, found.edges[1:], found.counts, strict=False):
        inside = sum(low * (1 - 1e-5) < value <= high * (1 + 1e-5) for value in values)
        assert inside >= count or low <= 1, (low, high)
    assert len(found.edges) == len(found.counts) + 1


def test_values_outside_the_edges_count_in_the_outermost_buckets() -> None:
    reducer = Histogram((0, 1, 2))
    assert reducer.buckets(*state(reducer, np.array([-5.0, 0.0, 1.0, 1.5, 9.0]))) == Buckets((0, 1, 2), (3, 2))
    with pytest.raises(MetricError, match="NaN"):
        state(reducer, np.array([np.nan]))


@pytest.mark.parametrize("edges", [(), (1,), (1, 1), (2, 1), (0, float("inf"))])
def test_edges_that_do_not_ascend_are_refused(edges: tuple[float, ...]) -> None:
    with pytest.raises(MetricError, match="Histogram"):
        Histogram(edges)
    with pytest.raises(MetricError, match="points"):
        Histogram((0, 1), (2,))


def test_the_distributions_of_all_ranks_are_those_of_one_process_and_of_the_interval_alone() -> None:
    def body(comm: Comm) -> list[dict[str, Buckets]]:
        mine = aggregator(comm)
        found = []
        for step in range(2):
            feed(mine, [batch(10 * step + rank, 40) for rank in range(4) if rank % comm.size == comm.rank])
            mine.log()
            found.append(mine.histograms)
        return found

    whole = body(LocalComm())
    assert ThreadComm.run(2, body) == [whole, whole]
    assert {key.rpartition("/")[2] for key in whole[0]} == {"length", "share_supervised", "supervised_turns", "turns"}
    for step, found in enumerate(whole):
        assert sum(found["data_mix/length"].counts) == 160, step
        assert sum(found["data_talk/length"].counts) == sum(
            sum(found[f"data_{name}/length"].counts) for name in ("chat", "code")
        )


def test_metrics_of_ones_own_have_distributions_too() -> None:
    mine = Aggregator(SOURCES, [Metric("turns", turns, [Histogram((0, 10, 1e6)), Sum()])], RUN_METRICS, builtin=False)
    feed(mine, [batch(0, 30)])
    assert mine.log()["data_mix/turns_p50"] in (10, 1e6)
    assert set(mine.histograms) == {f"data_{name}/turns" for name in ("chat", "code", "math", "talk", "mix")}


def test_turns_are_the_stretches_of_labelled_tokens_of_each_document() -> None:
    documents = [[0, 1, 1, 0, 1], [0, 1], [0, 0, 0], [0, 1, 0, 1, 0, 1], [0]]
    labelled = np.concatenate([np.array(d, np.bool_) for d in documents])
    assert stretches(labelled, np.array([len(d) for d in documents])).tolist() == [2, 1, 0, 3, 0]


def test_counts_travel_in_half_the_space_and_arrive_whole() -> None:
    layout = Layout([Entry("a", Counts(("x", "y")), ("s", "t")), Entry("b", Sum(), ("s",)), Entry("c", TURNS, ("s",))])
    ledger = Ledger(layout)
    ledger.ints[:] = np.arange(1, layout.ints + 1)
    ledger.ints[3] = 2**32 - 1
    ledger.floats[:] = [0.1, -3e300]
    vector = ledger.vector()
    assert len(vector) == 1 + (layout.ints + 1) // 2 + layout.floats
    again = Ledger.merged(layout, vector[None])
    assert (again.ints == ledger.ints).all()
    assert (again.floats == ledger.floats).all()
    ledger.ints[3] = 2**32
    with pytest.raises(MetricError, match="log more often"):
        ledger.vector()
