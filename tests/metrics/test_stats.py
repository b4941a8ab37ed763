"""The statistics of batches can be joined and shipped."""

from __future__ import annotations

import pickle

import numpy as np

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
    assert again.columns.tokens.tolist() == stats.columns.tokens.tolist()
    assert len(pickle.dumps(stats)) < 100 * 72


def test_batches_cut_out_of_what_is_known_join_to_what_they_are_cut_out_of() -> None:
    known, other = batch(0, 9).columns, batch(1, 5).columns
    parts = [
        (known, slice(0, 2)),
        (known, slice(2, 6)),
        (known, slice(7, 9)),
        (other, slice(1, 3)),
        (known, slice(6, 7)),
    ]
    joined = SampleStats.join([SampleStats(table, chosen, packs=1, slots=8) for table, chosen in parts])
    assert (len(joined), joined.packs, joined.slots) == (11, 5, 40)
    for column, mine, others in zip(joined.columns, known, other, strict=True):
        expected = [mine[0:2], mine[2:6], mine[7:9], others[1:3], mine[6:7]]
        assert column.tolist() == np.concatenate(expected).tolist()
        assert column.dtype == mine.dtype
