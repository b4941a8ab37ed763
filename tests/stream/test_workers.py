"""Loader workers: real processes, the bytes they send, their errors, their death."""

from __future__ import annotations

import os
import signal
import threading
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from streamsft.errors import ConfigError, DataError, MetricError
from streamsft.metrics.metric import Metric
from streamsft.metrics.reducers import Mean
from streamsft.stream.loader import Loader
from streamsft.stream.materialize import RawBatch, error_to_buffers
from streamsft.stream.packer import Packer
from streamsft.stream.rawsteps import RawSteps
from streamsft.stream.steps import Mixes
from streamsft.stream.topology import Topology
from streamsft.types import Sample, Shard
from tests import laws
from tests.fakes import ListSource, source
from tests.mixes import Mix, mixes
from tests.passes import passes_behind
from tests.processes import context

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more processes than cores

MIX = Mix(lengths=((2, 5, 9, 3, 4, 6), (2, 7, 1, 14, 30, 4, 8, 8), (2, 3)), weights=None, overflow="split")


def _loader(mix: Mix = MIX, **options: Any) -> Loader:
    return Loader(mix.packer(), **{"global_batch_size": 4, "start_method": "fork", "background": False, **options})


def _tokens(sample: Sample) -> float:
    return float(len(sample))


def test_run_over_processes_of_any_number_is_one_run() -> None:
    """Legs of 1 process and no workers, 2 × 2, 4 × 1, 1 × 3; together three full passes, each row exactly once."""
    legs = [laws.Leg(1, 3), laws.Leg(2, 3, workers=2), laws.Leg(4, 4, workers=1), laws.Leg(1, 8, workers=3)]
    found = laws.elastic(lambda leg, dp: _loader(dp=dp, workers=leg.workers), legs)
    seen = [document for step in found for pack in step for document in pack]
    laws.tokens_conserved(seen, MIX.rows())
    whole = _loader()
    laws.first(whole, len(found))
    complete = passes_behind(whole)
    laws.exactly_once(seen, MIX.rows(), complete)
    assert all(passes >= 3 for passes in complete.values())


def test_workers_are_free_of_lanes_too() -> None:
    def make(leg: laws.Leg, dp: Shard) -> Loader:
        return _loader(dp=dp, workers=leg.workers, lanes_per_step=2, lane_groups=3)

    laws.elastic(make, [laws.Leg(1, 2, workers=2), laws.Leg(2, 3), laws.Leg(1, 4, workers=2)])


def test_workers_that_get_everything_pickled_make_the_same_batches_and_values() -> None:
    """They start from a server that has imported what they need; spawned ones are in tests/test_streaming_laws.py."""
    context()
    options: Any = {"metrics": [Metric("tokens", _tokens, [Mean()])]}
    plain, served = _loader(**options), _loader(**options, workers=2, start_method="forkserver")
    for left, right in islice(zip(plain, served, strict=False), 5):
        assert laws.samples(left) == laws.samples(right)
        assert left.lanes == right.lanes
        assert left.stats.values["tokens"].tolist() == right.stats.values["tokens"].tolist()
        assert left.stats.columns.first.tolist() == right.stats.columns.first.tolist()
    assert plain.state_dict() == served.state_dict()


@settings(max_examples=15)
@given(mix=mixes())
def test_batch_survives_its_way_as_bytes(mix: Mix) -> None:
    mixes = Mixes(mix.packer().plan())
    topology = Topology(global_batch_size=2, dp=Shard())
    metrics = [Metric("tokens", _tokens, [Mean()])]
    steps = RawSteps(mixes, topology, mix.sequence_length, metrics, 0, {})
    for raw in islice(steps.batches(Shard()), 3):
        back = RawBatch.from_bytes(b"".join(raw.to_buffers()), mixes)
        assert raw.ids.dtype == np.int32
        assert back.ids.tolist() == raw.ids.tolist()
        assert back.runs.tolist() == raw.runs.tolist()
        assert [np.array(part).tolist() for part in back.places] == [np.array(part).tolist() for part in raw.places]
        left, right = raw.documents, back.documents
        assert (right.packs, right.end) == (left.packs, left.end)
        for name, one, other in zip(left.table._fields, left.table, right.table, strict=True):
            assert one.tolist() == other.tolist(), name
        assert right.values["tokens"].tolist() == left.values["tokens"].tolist()
        assert all(part.ctypes.data % 8 == 0 for part in right.table)


@given(message=st.text(max_size=50))
def test_error_survives_its_way_as_bytes(message: str) -> None:
    with pytest.raises(MetricError) as caught:
        RawBatch.from_bytes(b"".join(error_to_buffers(MetricError(message))), Mixes(Mix().packer().plan()))
    assert str(caught.value) == message


class Failing(ListSource):
    """Fails at its row 7."""

    def __init__(self, error: Exception) -> None:
        super().__init__("s", [([row, 1], [0, 1]) for row in range(9)])
        self.error = error

    def read(self, index: Any) -> Any:
        if 7 in index:
            raise self.error
        return super().read(index)


@pytest.mark.parametrize("error", [DataError("source 's': row 7 is gone"), RuntimeError("no such device")])
def test_error_of_a_worker_comes_where_its_batch_would_have(error: Exception) -> None:
    def loader(workers: int) -> Loader:
        packer = Packer(Failing(error), 2, lookahead=9)
        return Loader(packer, global_batch_size=1, workers=workers, start_method="fork", background=False)

    counts = []
    for workers in (0, 2):
        tried = loader(workers)
        with pytest.raises(DataError, match=r"^source 's'.*(row 7 is gone|row 7: read\(\) failed: .*no such device)"):
            laws.first(tried, 9)
        counts.append(tried.step)
    assert counts[0] == counts[1] < 9


class Dying(ListSource):
    """Kills the process that reads it."""

    def read(self, index: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


def test_death_of_a_worker_is_told_with_what_to_do() -> None:
    packer = Packer(Dying("s", [([1, 2], [0, 1])]), 2, lookahead=4)
    loader = Loader(packer, global_batch_size=1, workers=1, start_method="fork")
    handler = signal.getsignal(signal.SIGCHLD)
    says = r"a loader worker died: worker 0 \(pid \d+\) read source 's' .* lower loader\.workers"
    with pytest.raises(DataError, match=says):
        next(iter(loader))
    assert signal.getsignal(signal.SIGCHLD) is handler, "a death would be told anywhere"


class Locked(ListSource):
    """Holds a lock, which no process can be given."""

    def __init__(self) -> None:
        super().__init__("s", [([1, 2], [0, 1])])
        self.lock = threading.Lock()


def test_source_that_no_process_can_be_given_is_named() -> None:
    loader = Loader(Packer(Locked(), 2, lookahead=4), global_batch_size=1, workers=1, start_method="spawn")
    with pytest.raises(ConfigError, match=r"source 's' cannot be sent to loader workers .*lock"):
        next(iter(loader))


def test_batches_from_workers_hold_writable_tensors() -> None:
    batch = next(iter(_loader(workers=1)))
    batch.input_ids[0, 0] = 3
    assert batch.input_ids.numpy().flags.writeable
    assert np.array_equal(batch.input_ids.numpy().shape, (4, MIX.sequence_length))


def test_source_rows_reach_a_worker_unchanged() -> None:
    packer = Packer(source("s", range(2, 30)), 32, lookahead=28)
    plain = Loader(packer, global_batch_size=2, background=False)
    forked = Loader(packer, global_batch_size=2, workers=2, start_method="fork")
    assert laws.first(plain, 6) == laws.first(forked, 6)
