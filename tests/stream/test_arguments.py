"""What is no list, stage, state or number where one is needed is told by name, not by a raw error of Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from streamsft.errors import ConfigError, MetricError, StateError, StreamsftError
from streamsft.metrics.aggregator import Aggregator
from streamsft.metrics.metric import Metric
from streamsft.metrics.reducers import Mean
from streamsft.stream.interleave import Interleave
from streamsft.stream.loader import Loader
from streamsft.stream.packer import Packer
from streamsft.stream.state import STATE_VERSION
from streamsft.types import Shard
from tests.fakes import ListSource, source

SOURCE = source("a", [4, 5, 6])


class Half:
    """A source of a user's who has not finished it."""

    name = "half"

    def __len__(self) -> int:
        return 3


class HalfReducer:
    ints = 0
    floats = 1
    layout = "half"


def length(sample: Any) -> float:
    return float(len(sample))


def loader(packer: Any = None, **options: Any) -> Loader:
    return Loader(packer or Packer(SOURCE, 8, lookahead=4), **{"global_batch_size": 2, "background": False, **options})


def load(**changes: Any) -> Callable[[], object]:
    return lambda: loader().load_state_dict({**loader().state_dict(), **changes})


METRIC = Metric("length", length, [Mean()])
LACKS = "lacks fingerprint, lengths, supervised, first_supervised, row_numbers, read, origin"


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: Interleave([Half()]), ConfigError, LACKS),
        (lambda: Packer(Half(), 8), ConfigError, LACKS),
        (lambda: Interleave(SOURCE), ConfigError, "give a list of sources"),
        (lambda: Interleave({"a": SOURCE}), ConfigError, "give a list of sources"),
        (lambda: Interleave([SOURCE], 2), ConfigError, "weights are a list"),
        (lambda: Interleave([SOURCE], {"a": 2}), ConfigError, "weights are a list"),
        (lambda: loader(Interleave([SOURCE])), ConfigError, "Loader: Interleave is no Packer"),
        (lambda: loader(SOURCE), ConfigError, "Loader: ListSource is no Packer"),
        (lambda: loader(dp=(0, 2)), ConfigError, r"dp: \(0, 2\) is no Shard"),
        (lambda: loader(lanes_per_step=0), ConfigError, "loader.lanes_per_step: 0 is not an integer of at least 1"),
        (lambda: loader(skip_steps=[3]), ConfigError, "3 is not a first and a last step"),
        (lambda: loader(metrics=METRIC), MetricError, "give a list of metrics"),
        (lambda: loader(metrics=[length]), MetricError, "is no Metric: it lacks name, measure"),
        (lambda: Aggregator([], METRIC), MetricError, "give a list of metrics"),
        (lambda: Shard("0", 2), ConfigError, "whole numbers"),
        (lambda: next(iter(loader())).split("2"), ConfigError, "micro_batch_size: '2' packs"),
        (lambda: Metric("x", length, Mean()), MetricError, r"give a list of reducers, such as \[Mean\(\)\]"),
        (lambda: Metric("x", length, None), MetricError, "give a list of reducers"),
        (lambda: Metric("x", length, "mean"), MetricError, "give a list of reducers"),
        (lambda: Metric("x", length, [Mean]), MetricError, r"Mean is a class; give an object of it: Mean\(\)"),
        (lambda: Metric("x", length, ["mean"]), MetricError, "'mean' is no reducer: it lacks ints"),
        (lambda: Metric("x", length, [HalfReducer()]), MetricError, "it lacks suffixes, zero, update, merge, result"),
        (lambda: Metric("x", "length", [Mean()]), MetricError, "'length' is no function"),
        (lambda: loader().load_state_dict({}), StateError, "not the state of a stream: it is empty; give what"),
        (lambda: loader().load_state_dict({"model": 1}), StateError, "not the state of a stream: it holds model"),
        (lambda: loader().load_state_dict([]), StateError, "list instead of a JSON object"),
        (lambda: loader().load_state_dict({"version": STATE_VERSION}), StateError, "without step, fingerprint, lanes"),
        (lambda: Packer(SOURCE, 8).load_state_dict({}), StateError, "it is empty"),
        (lambda: loader().load_state_dict([], before=Packer(SOURCE, 8)), StateError, "list instead of a JSON object"),
        (lambda: loader().load_state_dict({}, before=3), ConfigError, "before: int is no Packer"),
        (load(edits=3), StateError, "the state's edits are 3"),
        (load(edits=[{}]), StateError, "the state's edits are"),
        (load(fingerprint=None), StateError, "belongs to another stream"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_told_by_name(call: Any, kind: type[StreamsftError], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()


def test_representations_are_short() -> None:
    rows = [([row] + [1] * 499, [0] + [1] * 499) for row in range(50)]
    packer = Packer(ListSource("long", rows), 4096, lookahead=64)
    batch = next(iter(loader(packer, global_batch_size=8)))
    pack = next(iter(packer))
    assert repr(batch) == "Batch(step 1, 8 x 4,096 slots, 64 documents, 31,936 supervised tokens)"
    assert repr(pack) == "Pack(8 samples, 4,000 of 4,096 slots filled)"
    assert repr(batch.stats) == "SampleStats(64 documents in 8 packs of 32,768 slots in all)"
    sample = pack.samples[0]
    assert repr(sample) == f"Sample(long:{sample.row}, pass {sample.pass_index}, 500 tokens, 499 supervised)"
