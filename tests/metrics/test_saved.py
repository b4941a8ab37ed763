"""Metrics in checkpoints: a resumed run's totals are those of an uninterrupted one, on any number of ranks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from streamsft.comm import Comm, LocalComm, ThreadComm
from streamsft.errors import MetricError, StateError
from streamsft.metrics.aggregator import Aggregator
from streamsft.metrics.metric import Metric
from streamsft.metrics.reducers import Max, Mean, Sum
from streamsft.metrics.stats import SampleStats, SourceInfo
from tests.metrics.runs import METRICS, RUN_METRICS, SOURCES, aggregator, assert_same_record, batch, feed, turns

STEPS, LOG_EVERY = 8, 3


def run_steps(mine: Aggregator, comm: Comm, start: int, stop: int) -> dict[int, dict[str, float]]:
    """Steps start+1 … stop; each step's four batches are divided over the ranks."""
    records = {}
    for step in range(start + 1, stop + 1):
        feed(mine, [batch(4 * step + i, 6 + i) for i in range(4) if i % comm.size == comm.rank])
        if step % LOG_EVERY == 0:
            records[step] = mine.log()
    return records


@settings(max_examples=12)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=4))
def test_resuming_on_any_number_of_ranks_continues_the_records(legs: list[tuple[int, int]]) -> None:
    whole = aggregator(LocalComm())
    expected = run_steps(whole, LocalComm(), 0, STEPS)
    expected[STEPS + 1] = whole.log()
    state: dict[str, Any] | None = None
    records: dict[int, dict[str, float]] = {}
    start = 0
    legs = [*legs, (1, STEPS)]
    for size, steps in legs:
        stop = min(STEPS, start + steps)

        def body(comm: Comm, first: int = start, last: int = stop, text: str = json.dumps(state)) -> Any:
            mine = aggregator(comm)
            if text != "null":
                mine.load_state(json.loads(text))
            mine_records = run_steps(mine, comm, first, last)
            saved = mine.gather_state()
            if last == STEPS:
                mine_records[STEPS + 1] = mine.log()
            return mine_records, saved

        results = ThreadComm.run(size, body)
        assert all(r == results[0] for r in results), "records and state are the same on all ranks"
        records |= results[0][0]
        state, start = results[0][1], stop
    assert records.keys() == expected.keys()
    for step, record in expected.items():
        assert_same_record(records[step], record)


def test_a_state_that_was_just_loaded_is_saved_unchanged() -> None:
    mine, other = aggregator(LocalComm()), aggregator(LocalComm())
    run_steps(mine, LocalComm(), 0, 4)
    state = mine.gather_state()
    other.load_state(json.loads(json.dumps(state, allow_nan=False)))
    assert other.gather_state() == state
    assert mine.gather_state() == state, "taking the state changes nothing"


def test_new_sources_and_metrics_start_from_nothing_and_old_ones_are_left_out() -> None:
    mine = aggregator(LocalComm())
    feed(mine, [batch(0, 10)])
    state = mine.gather_state()
    other = Aggregator([*SOURCES, SourceInfo(name="new")], [Metric("size", turns, [Sum()])])
    other.load_state(state)
    record = other.log()
    assert record["data_new/tokens"] == 0
    assert record["data_mix/size"] == 0
    assert record["data_mix/tokens"] == batch(0, 10).columns.tokens.sum()
    assert not any("/turns" in key for key in record)


def test_a_metric_that_is_reduced_in_another_way_is_refused() -> None:
    mine = Aggregator(SOURCES, [Metric("turns", turns, [Mean()])])
    mine.update(batch(0, 5))
    other = Aggregator(SOURCES, [Metric("turns", turns, [Max()])])
    with pytest.raises(MetricError, match=r"sample turns: Mean\(\).*reduced differently.*sample turns: Max\(\)"):
        other.load_state(mine.gather_state())


def test_a_source_that_an_edit_removed_keeps_its_numbers() -> None:
    mine = aggregator(LocalComm())
    feed(mine, [batch(i, 50) for i in range(4)])
    expected = mine.log()
    expected |= {"train/steps": 0}
    state = json.loads(json.dumps(mine.gather_state()))

    def body(comm: Comm) -> tuple[dict[str, float], Any]:
        other = Aggregator(SOURCES[:2], METRICS, RUN_METRICS, comm=comm)
        other.load_state(state)
        return other.log(), other.gather_state()

    record, again = ThreadComm.run(2, body)[1]
    assert again == state
    assert record.pop("data_math/share_asked") == 0
    assert record.pop("data_mix/share_asked") == 0.5
    since_the_start = {key: value for key, value in record.items() if not key.endswith("_interval")}
    assert_same_record(since_the_start, {key: expected[key] for key in since_the_start})
    assert record["data_math/tokens"] > 0
    assert record["data_math/rejected"] == 3


def test_a_reason_that_is_no_longer_declared_keeps_its_count() -> None:
    def source(*reasons: str) -> SourceInfo:
        return SourceInfo(name="a", groups=("mix",), reasons=reasons)

    def refused(*given: tuple[int, str, int]) -> SampleStats:
        return batch(0, 0, refused=given)

    first, then = Aggregator([source("short", "bad_row")]), Aggregator([source("bad_row")])
    first.update(refused((0, "short", 3), (0, "bad_row", 1)))
    first.log()
    then.load_state(first.gather_state())
    then.update(refused((0, "bad_row", 2)))
    record = then.log()
    assert {key: value for key, value in record.items() if "data_mix/rejected" in key} == {
        "data_mix/rejected": 6,
        "data_mix/rejected_bad_row": 3,
        "data_mix/rejected_short": 3,
        "data_mix/rejected_interval": 2,
        "data_mix/rejected_bad_row_interval": 2,
        "data_mix/rejected_short_interval": 0,
    }


@pytest.mark.parametrize("damage", [{}, {"groups": [], "rows": "x"}, {"groups": 3, "rows": 1}, None])
def test_what_a_state_says_of_sources_is_checked(damage: Any) -> None:
    mine = aggregator(LocalComm())
    state = mine.gather_state()
    with pytest.raises(StateError, match="of source 'gone' is damaged"):
        mine.load_state({**state, "sources": {"gone": damage}})
    assert mine.gather_state() == state


def test_a_source_that_the_state_does_not_tell_of_is_named() -> None:
    mine = aggregator(LocalComm())
    mine.update(batch(0, 50))
    state = mine.gather_state()
    del state["sources"]["math"]
    with pytest.raises(StateError, match=r"has metrics of 'math'; the sources are now \['chat', 'code'\]"):
        Aggregator(SOURCES[:2], METRICS).load_state(state)


def test_another_version_or_a_damaged_state_is_refused_and_changes_nothing() -> None:
    mine = aggregator(LocalComm())
    mine.update(batch(0, 50))
    state = mine.gather_state()
    with pytest.raises(StateError, match="version 99"):
        mine.load_state({**state, "version": 99})
    damaged = json.loads(json.dumps(state))
    damaged["totals"]["samples: Tallies(9)"]["groups"]["math"] = [{"99": 1}, {}]
    with pytest.raises(StateError, match=r"samples: Tallies\(9\).*damaged"):
        mine.load_state(damaged)
    assert mine.gather_state() == state
