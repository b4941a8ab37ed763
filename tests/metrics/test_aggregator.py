"""The aggregator: one collective per log step, equal to one process that saw everything."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from streamsft.comm import Comm, LocalComm, ThreadComm
from streamsft.errors import MetricError
from streamsft.metrics.aggregator import Aggregator
from streamsft.metrics.exchange import FRAME
from streamsft.metrics.metric import Metric
from streamsft.metrics.quantiles import Quantiles
from streamsft.metrics.reducers import Max, Mean, Min, Sum
from streamsft.metrics.stats import SampleColumns, SampleStats, SourceInfo
from tests.metrics.runs import METRICS, RUN_METRICS, SOURCES, aggregator, assert_same_record, batch, feed, turns


class CountingComm:
    """Counts the collectives that go through it."""

    def __init__(self, comm: Comm) -> None:
        self.comm, self.rank, self.size, self.calls = comm, comm.rank, comm.size, 0

    def all_gather(self, array: NDArray[Any]) -> NDArray[Any]:
        self.calls += 1
        return self.comm.all_gather(array)

    def barrier(self) -> None:
        raise AssertionError("a log step needs no barrier")


@settings(max_examples=25)
@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(0, 2)), max_size=12),
    st.integers(1, 4),
)
def test_any_division_over_ranks_gives_the_record_of_one_process(
    size: int, plan: list[tuple[int, int, int]], log_every: int
) -> None:
    whole = aggregator(LocalComm())
    steps = [plan[i : i + log_every] for i in range(0, len(plan), log_every)] or [[]]

    def body(comm: Comm) -> list[dict[str, float]]:
        mine = aggregator(comm)
        records = []
        for step in steps:
            # A rank gets some of the batches, perhaps none, and a batch only some of the sources.
            feed(mine, [batch(i, n, range(s + 1)) for i, (r, n, s) in enumerate(step) if n and r % size == comm.rank])
            records.append(mine.log())
        return records

    expected = []
    for step in steps:
        feed(whole, [batch(i, n, range(s + 1)) for i, (_, n, s) in enumerate(step) if n])
        expected.append(whole.log())
    ranks = ThreadComm.run(size, body)
    assert all(r == ranks[0] for r in ranks)
    for mine, record in zip(ranks[0], expected, strict=True):
        assert_same_record(mine, record)


def test_a_log_step_is_one_collective_whatever_was_seen() -> None:
    def body(thread: ThreadComm) -> list[int]:
        comm = CountingComm(thread)
        mine = aggregator(comm)
        counts = []
        for step in range(4):
            if step % 2 == comm.rank:
                feed(mine, [batch(step, 10)])
            mine.log()
            counts.append(comm.calls)
        mine.gather_state()
        return [*counts, comm.calls, mine.collectives]

    assert ThreadComm.run(2, body) == [[1, 2, 3, 4, 5, 5]] * 2


class EqualRanks:
    """Many ranks that have all seen the same; notes the bytes that each has sent."""

    def __init__(self, size: int) -> None:
        self.rank, self.size, self.sent = 0, size, list[int]()

    def all_gather(self, array: NDArray[Any]) -> NDArray[Any]:
        self.sent.append(array.nbytes)
        return np.repeat(array[None], self.size, axis=0)

    def barrier(self) -> None:
        raise AssertionError("a log step needs no barrier")


@pytest.mark.parametrize("sources", [3, 80])
def test_a_record_of_more_ranks_than_are_merged_at_a_time_is_that_of_one_process(sources: int) -> None:
    ranks = 20
    infos = [SourceInfo(name=f"s{i:02d}", weight=1 / sources, rows=1) for i in range(sources)]
    mine, alone = Aggregator(infos, comm=(comm := EqualRanks(ranks))), Aggregator(infos)
    size = len(mine._pending.vector())
    assert (size > FRAME) is (sources > 3)
    for turn in range(2):
        columns = batch(turn, 40).columns._replace(source=np.arange(40, dtype=np.int32) % sources)
        stats = SampleStats(columns, packs=1, slots=4096, values={})
        mine.update(stats)
        for _ in range(ranks):
            alone.update(stats)
        assert_same_record(mine.log(), alone.log())
    assert comm.sent == [8 * FRAME, 8 * min(size, FRAME)]


def test_a_log_step_of_a_thousand_ranks_is_one_collective_of_128_mib_at_most() -> None:
    sources = [SourceInfo(name=f"s{i:02d}", weight=1 / 40, rows=1) for i in range(40)]
    mine = Aggregator(sources, comm=(comm := EqualRanks(1024)))
    mine.update(SampleStats(batch(0, 40).columns, packs=1, slots=4096, values={}))
    assert len(mine._pending.vector()) < FRAME
    mine.log()
    mine.log()
    assert [1024 * sent for sent in comm.sent] == [2**27, 2**27]


def test_many_sources_cost_one_collective_of_a_frame_unless_what_came_fits_no_frame() -> None:
    sources = [SourceInfo(name=f"s{i:02d}", weight=1 / 80, rows=1) for i in range(80)]
    metric = Metric("noise", turns, [Quantiles(1e-6, 10, exact=1024)])

    def noise(rank: int, rows: int) -> SampleStats:
        rng = np.random.default_rng([rank, rows])
        columns = SampleStats.join([batch(rank, 5, [59])] * (rows // 5)).columns
        columns = columns._replace(source=rng.integers(0, 80, rows).astype(np.int32))
        return SampleStats(columns, packs=2, slots=8192, values={"noise": rng.random(rows)})

    def body(comm: ThreadComm) -> tuple[list[int], list[dict[str, float]]]:
        mine = Aggregator(sources, [metric], comm=(counting := CountingComm(comm)))
        assert len(mine._pending.vector()) > FRAME
        records, calls = [], []
        for rows in (50, 40_000, 5, 0):
            if rows and (comm.rank == 0 or rows != 5):
                mine.update(noise(comm.rank, rows))
            records.append(mine.log())
            calls.append(counting.calls)
        return calls, records

    ranks = ThreadComm.run(2, body)
    assert ranks[0] == ranks[1]
    assert ranks[0][0] == [1, 3, 4, 5]  # 320 kB of numbers that nothing makes smaller come with the second
    alone = Aggregator(sources, [metric])
    for rows, record in zip((50, 40_000, 5, 0), ranks[0][1], strict=True):
        for rank in range(2):
            if rows and (rank == 0 or rows != 5):
                alone.update(noise(rank, rows))
        assert_same_record(record, alone.log())


@pytest.mark.parametrize("other", [Max(), Quantiles(1e-9, 1e9)], ids=["same size", "larger"])
def test_ranks_that_declare_different_metrics_all_raise(other: Max | Quantiles) -> None:
    def body(comm: Comm) -> str:
        mine = Aggregator(SOURCES, [Metric("turns", turns, [other if comm.rank == 1 else Min()])], comm=comm)
        with pytest.raises(MetricError, match="differ between ranks") as caught:
            mine.log()
        return str(caught.value)

    messages = ThreadComm.run(3, body)
    assert len(set(messages)) == 1
    assert "rank 0 has 'sample turns: Min()" in messages[0]
    assert f"rank 1 has 'sample turns: {type(other).__name__}(" in messages[0]


def test_a_loss_is_the_mean_over_all_tokens_not_of_means() -> None:
    def body(comm: Comm) -> float:
        mine = Aggregator([], run_metrics=RUN_METRICS, comm=comm)
        for loss in [1.0] * 5 if comm.rank == 0 else [7.0]:
            mine.observe("train/loss", loss)
        return mine.log()["train/loss"]

    assert ThreadComm.run(2, body) == [2.0, 2.0]


def test_the_built_in_numbers_of_a_small_run() -> None:
    stats = SampleStats(
        SampleColumns(
            source=np.array([0, 1, 1, 2], np.int32),  # chat, code, code, math: sorted by name
            tokens=np.array([10, 20, 5, 65]),
            supervised=np.array([4, 8, 2, 20]),
            turns=np.array([1, 3, 1, 5]),
            cut=np.array([0, 0, 0, 35]),
            first=np.array([True, True, False, True]),
            pass_index=np.array([0, 3, 3, 1]),
        ),
        packs=2,
        slots=128,
    )
    mine = Aggregator(SOURCES)
    mine.update(stats)
    record = mine.log()
    expected = {
        "data/samples": 3,
        "data/tokens": 100,
        "data/supervised_tokens": 34,
        "data/packs": 2,
        "data/packing_efficiency": 100 / 128,
        "data_chat/passes": 1 / 20,
        "data_chat/rejected": 4,
        "data_chat/dropped": 10,
        "data_chat/dropped_too_long": 7,
        "data_talk/dropped_nothing_supervised": 3,
        "data_code/samples": 1,
        "data_code/passes": 3,
        "data_code/length_mean": 12.5,
        "data_code/length_max": 20,
        "data_code/length_p50": 5,
        "data_math/truncated": 1,
        "data_math/truncated_tokens": 35,
        "data_math/share_samples": 1 / 3,
        "data_math/share_tokens": 0.65,
        "data_math/share_asked": 0.5,
        "data_math/rejected_template_error": 1,
        "data_talk/samples": 2,
        "data_talk/tokens": 35,
        "data_talk/share_asked": 0.5,
        "data_talk/length_p50": 10,
        "data_mix/rejected_bad_role": 6,
        "data_mix/share_tokens": 1.0,
        "data_mix/tokens_interval": 100,
    }
    assert {key: record[key] for key in expected} == pytest.approx(expected, rel=1e-12)
    assert "data_mix/passes" not in record, "the rows of one of its sources are unknown"


def test_numbers_since_the_last_log_step_are_told_from_those_since_the_start() -> None:
    mine = aggregator(LocalComm())
    feed(mine, [batch(0, 20)])
    first = mine.log()
    feed(mine, [batch(1, 30)])
    second = mine.log()
    assert second["data/tokens"] == first["data/tokens"] + second["data/tokens_interval"]
    assert second["data_mix/turns_sum"] == pytest.approx(
        first["data_mix/turns_sum"] + second["data_mix/turns_sum_interval"], rel=1e-12
    )
    assert second["train/steps"] == 1
    assert second["train/steps_total"] == 2
    quiet = mine.log()
    assert quiet["data/tokens_interval"] == 0
    assert quiet["data_mix/turns_mean"] == second["data_mix/turns_mean"]
    assert not {"data_mix/turns_mean_interval", "train/loss", "data/packing_efficiency_interval"} & quiet.keys()


def test_a_loss_that_is_not_finite_spoils_its_interval_only() -> None:
    mine = Aggregator([], run_metrics=RUN_METRICS)
    mine.observe("train/loss", float("nan"))
    assert np.isnan(mine.log()["train/loss"])
    mine.observe("train/loss", 2.0)
    assert mine.log()["train/loss"] == 2.0
    json.dumps(mine.gather_state(), allow_nan=False)


def test_built_in_metrics_can_be_left_out_and_the_prefix_changed() -> None:
    mine = Aggregator(SOURCES, METRICS[:1], builtin=False, prefix="d_")
    mine.update(batch(0, 5))
    record = mine.log()
    assert "d_mix/turns_mean" in record
    assert all("/turns_" in key for key in record)


def test_the_last_batch_may_be_empty_of_documents() -> None:
    mine = aggregator(LocalComm())
    mine.update(batch(0, 0))
    assert mine.log()["data/packs"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metrics": [Metric("x", turns, [Sum()]), Metric("x", turns, [Mean()])]}, "'x' is there twice"),
        ({"metrics": [Metric("tokens", turns, [Sum()])]}, "data_chat/tokens' is there twice"),
        ({"metrics": [Metric("a", turns, [Sum(), Mean()]), Metric("a_mean", turns, [Sum()])]}, "a_mean"),
        ({"metrics": [Metric("a", turns, [Sum()]), Metric("a_interval", turns, [Sum()])]}, "a_interval"),
        ({"run_metrics": {"data/tokens": Sum()}}, "data/tokens"),
        ({"sources": [*SOURCES, SourceInfo(name="talk")]}, "mix node 'talk' is there twice"),
        ({"metrics": [Metric("rejected_held_out", turns, [Sum()])]}, "data_chat/rejected_held_out' is there twice"),
        ({"metrics": [Metric("rejected_other", turns, [Sum()])]}, "data_chat/rejected_other' is there twice"),
    ],
)
def test_two_numbers_under_one_name_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(MetricError, match=message):
        Aggregator(**{"sources": SOURCES, **arguments})


def test_what_is_not_declared_is_refused() -> None:
    mine = aggregator(LocalComm())
    with pytest.raises(MetricError, match="'train/los' is not declared; declared are"):
        mine.observe("train/los", 1.0)
    with pytest.raises(MetricError, match="only Mean takes weights"):
        mine.observe("train/steps", 1.0, weight=2.0)
    with pytest.raises(MetricError, match="'turns': the batch has no values"):
        mine.update(_without_values(batch(0, 3)))
    with pytest.raises(MetricError, match="source index 3, but there are 3 sources"):
        mine.update(batch(0, 3, [3]))


def _without_values(stats: SampleStats) -> SampleStats:
    stats.values.clear()
    return stats
