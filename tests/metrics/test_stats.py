"""The statistics of batches can be joined and shipped."""

from __future__ import annotations

import pickle

from streamsft.comm import LocalComm
from streamsft.metrics.stats import SampleStats
from tests.metrics.runs import aggregator, assert_same_record, batch


def test_joined_batches_count_like_the_batches() -> None:
    parts = [batch(i, i) for i in range(4)]
    joined = SampleStats.join(parts)
    assert len(joined) == 6
    one, many = aggregator(LocalComm()), aggregator(LocalComm())
    one.update(joined)
    for part in parts:
        many.update(part)
    assert_same_record(many.log(), one.log())


def test_statistics_are_small_and_picklable() -> None:
    stats = batch(0, 100)
    again = pickle.loads(pickle.dumps(stats))
    assert again.tokens.tolist() == stats.tokens.tolist()
    assert len(pickle.dumps(stats)) < 100 * 72
