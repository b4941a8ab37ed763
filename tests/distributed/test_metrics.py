"""Metrics over real gloo processes: equal to one process over all samples, with one collective per log step."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from streamsft.comm import Comm, LocalComm
from streamsft.errors import MetricError
from streamsft.metrics.aggregator import Aggregator
from streamsft.metrics.metric import Metric
from streamsft.metrics.quantiles import Quantiles
from streamsft.metrics.reducers import Mean
from tests.distributed.launch import launch
from tests.metrics.runs import SOURCES, aggregator, assert_same_record, batch, feed, turns

RANKS, LOG_STEPS = 4, 3


def seen_by(rank: int, log_step: int) -> list[Any]:
    """Rank 0 sees one source, rank 1 two, rank 2 nothing at first, rank 3 all."""
    if rank == 2 and log_step == 0:
        return []
    return [batch(100 * log_step + 10 * rank + i, 150, [(0,), (1, 2), (2,), (0, 1, 2)][rank]) for i in range(3)]


def live(comm: Comm, state: str) -> dict[str, Any]:
    import torch.distributed as dist

    real, calls = dist.all_gather, []
    dist.all_gather = lambda *args, **kwargs: (calls.append(1), real(*args, **kwargs))[1]
    mine = aggregator(comm)
    mine.load_state(json.loads(state))
    records, collectives = [], []
    for log_step in range(LOG_STEPS):
        for virtual in range(comm.rank, RANKS, comm.size):
            feed(mine, seen_by(virtual, log_step))
        records.append(mine.log())
        collectives.append((len(calls), mine.collectives))
    feed(mine, [batch(7, 5)])
    saved = mine.gather_state()
    odd = Metric("turns", turns, [Mean() if comm.rank else Quantiles(1e-9, 1e9)])
    try:
        Aggregator(SOURCES, [odd], comm=comm).log()
    except MetricError as error:
        refused = str(error)
    return {"records": records, "collectives": collectives, "state": saved, "refused": refused}


def everything() -> list[dict[str, float]]:
    """The records of one process that sees what all ranks see."""
    mine = aggregator(LocalComm())
    records = []
    for log_step in range(LOG_STEPS):
        for rank in range(RANKS):
            feed(mine, seen_by(rank, log_step))
        records.append(mine.log())
    return records


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return launch(request.param, live, json.dumps(aggregator(LocalComm()).gather_state()))


def test_records_equal_those_of_one_process_over_all_samples(ranks: list[dict[str, Any]]) -> None:
    assert all(r["records"] == ranks[0]["records"] for r in ranks)
    for mine, whole in zip(ranks[0]["records"], everything(), strict=True):
        assert_same_record(mine, whole)


def test_quantiles_are_within_one_percent_of_the_samples_own(ranks: list[dict[str, Any]]) -> None:
    batches = [b for step in range(LOG_STEPS) for rank in range(RANKS) for b in seen_by(rank, step)]
    for index, name in enumerate(["chat", "code", "math"]):
        lengths = np.concatenate([b.columns.tokens[b.columns.source == index] for b in batches])
        for point in (50, 95):
            exact = np.percentile(lengths, point, method="inverted_cdf")
            assert ranks[0]["records"][-1][f"data_{name}/length_p{point}"] == pytest.approx(exact, rel=0.01)


def test_each_log_step_is_one_collective(ranks: list[dict[str, Any]]) -> None:
    expected = [(n, n) for n in range(1, LOG_STEPS + 1)]
    assert [r["collectives"] for r in ranks] == [expected] * len(ranks)


def test_the_saved_state_is_the_same_on_every_rank(ranks: list[dict[str, Any]]) -> None:
    assert all(r["state"] == ranks[0]["state"] for r in ranks)


def test_ranks_that_declare_different_metrics_all_raise(ranks: list[dict[str, Any]]) -> None:
    assert len({r["refused"] for r in ranks}) == 1
    assert "differ between ranks" in ranks[0]["refused"]
