"""Worker processes: each plans every step and reads the tokens of its own ones. The one place that uses torchdata."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, final

from torch.utils.data import IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from streamsft.comm import worker_shard
from streamsft.errors import ConfigError, DataError, StreamsftError
from streamsft.sources.lastread import LastRead, note
from streamsft.stream.iocounts import IoCounts
from streamsft.stream.lanestate import LaneState
from streamsft.stream.materialize import RawBatch, error_to_buffers, materialize
from streamsft.stream.reading import Valued
from streamsft.stream.shipping import Buffers, in_turn, portions, widen
from streamsft.stream.steps import Mixes, StepPlan, StepPlanner
from streamsft.stream.topology import Topology
from streamsft.text.streaming import check_portable
from streamsft.types import Bools, IdBuffer, Int32s, Ints, Shard

__all__ = ["RawSteps", "StartMethod", "check_picklable", "check_workers", "worker_batches"]

StartMethod = Literal["fork", "spawn", "forkserver"]

_READ_TOGETHER = 1024  # documents of several steps, which spares what is done once for them


@final
class RawSteps(IterableDataset[bytes]):
    """The steps of one rank from a given state on; endless.

    Args:
        mixes: what is drawn.
        topology: how steps are made of it.
        slots: the sequence length.
        metrics: user metrics, evaluated on each document.
        step: steps that lie behind.
        lanes: state of the lanes.
        skip: first and last step of stretches that are left out.
    """

    def __init__(
        self,
        mixes: Mixes,
        topology: Topology,
        slots: int,
        metrics: Sequence[Valued],
        step: int,
        lanes: Mapping[int, LaneState],
        skip: Sequence[tuple[int, int]] = (),
    ) -> None:
        super().__init__()
        self.last_read: LastRead | None = None
        self.mixes = mixes
        self.topology = topology
        self.slots = slots
        self.metrics = metrics
        self.step = step
        self.lanes = lanes
        self.skip = skip

    def batches(self, shard: Shard) -> Iterator[RawBatch]:
        """Every `shard.count`-th step, beginning with the one at `shard.index`; those to skip without packs."""
        planner = StepPlanner(self.mixes, self.topology, self.step, self.lanes)
        names = self.mixes.names
        io = IoCounts(self.mixes.leaves)
        packing = self.mixes.plan.packing
        align = 1 if packing is None else packing.align

        def read(number: int, stored: Ints) -> tuple[Sequence[Int32s], Sequence[Bools]]:
            note(names[number])
            return planner.read(number, stored)

        def read_ids(number: int, stored: Ints) -> Sequence[IdBuffer]:
            note(names[number])
            return planner.read_ids(number, stored)

        together: list[StepPlan] = []
        documents, enough = 0, 1  # the first step alone, for it is waited for
        for step in self._planned(planner, shard):
            skipped = bool(self.skip) and any(first <= step.step <= last for first, last in self.skip)
            if not skipped:
                together.append(step)
                documents += sum(stretch.size for stretch in step.stretches)
            if skipped or self.mixes.owned or documents >= enough:
                if together:
                    planner.announce(new=True)
                made = materialize(self.mixes.leaves, read, read_ids, together, self.slots, self.metrics, align)
                for at, raw in enumerate(made):
                    if not at:  # all of them have been read
                        planner.announce()
                        raw = raw.counting(io.since())
                    yield raw
                enough = min(2 * documents, _READ_TOGETHER)
                together, documents = [], 0
            if skipped:
                yield RawBatch.skipped(step)

    def _planned(self, planner: StepPlanner, shard: Shard) -> Iterator[StepPlan]:
        """The steps of `batches`, planned."""
        while True:
            for turn in range(shard.count):
                if turn == shard.index:
                    yield planner.next()
                elif self.topology.lane_groups % shard.count:
                    planner.next()
                else:  # the other workers' steps draw from other lanes
                    planner.skip()

    def __iter__(self) -> Iterator[bytes]:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # each worker has one core
        shard = worker_shard(Shard())
        if self.last_read is not None:
            self.last_read.begin(shard.index)
        yield from portions(self._buffers(shard), shard.index, one_by_one=self.mixes.owned)

    def _buffers(self, shard: Shard) -> Iterator[Buffers]:
        try:
            for raw in self.batches(shard):
                yield raw.to_buffers()
        except StreamsftError as error:
            yield error_to_buffers(error)


def worker_batches(
    steps: RawSteps, workers: int, start_method: StartMethod | None, prefetch: int
) -> Iterator[RawBatch]:
    """The batches of `steps` in order, made by `workers` processes.

    `RawSteps` deals steps to the workers in turn, worker 0 first.

    Args:
        steps: what to make.
        workers: number of processes.
        start_method: how they are started; None is Python's default on this system.
        prefetch: messages that each worker keeps ready, of a few batches each.

    Raises:
        StreamsftError: what a worker raised, where its batch would have come.
        ConfigError: a source cannot be sent to a process; names it.
        DataError: a worker died; says which, and what it read last.
    """
    steps.last_read = last_read = LastRead(steps.mixes.names, workers)
    with warnings.catch_warnings():
        # torchdata 0.11 calls what newer releases of torch deprecate
        warnings.filterwarnings("ignore", message=".*set_vital.*")
        loader = StatefulDataLoader(
            steps,
            batch_size=None,
            num_workers=workers,
            prefetch_factor=prefetch,
            multiprocessing_context=start_method,
            snapshot_every_n_steps=None,
        )
    try:
        with _own_child_handler():
            batches = iter(loader)
    except _PICKLING:
        for leaf in steps.mixes.leaves:
            if leaf.streams:
                check_portable(leaf.streamed)
        check_picklable("source", {leaf.name: leaf.source for leaf in steps.mixes.leaves})
        raise
    widen(batches)
    for data in in_turn(_received(batches, last_read), workers):
        yield RawBatch.from_bytes(data, steps.mixes)


def _received(messages: Iterator[bytes], last_read: LastRead) -> Iterator[bytes]:
    """What the workers send, until they have all ended."""
    while True:
        try:
            yield next(messages)
        except StopIteration:
            return
        except RuntimeError as error:
            if "DataLoader worker (pid" not in str(error):  # what a worker raised says "worker process"
                raise
            raise DataError(
                f"a loader worker died: {last_read.dead(str(error))} ({error}). Often the system stopped it for want "
                "of memory: lower loader.workers, then start the same command again to go on from the last checkpoint"
            ) from error


@contextmanager
def _own_child_handler() -> Iterator[None]:
    """Keep the handler of SIGCHLD that there is.

    torch sets one that raises wherever the main thread is when a worker dies, be it between a rank's collectives or in
    the middle of a checkpoint. Without it, torch finds within five seconds that the worker it waits for is dead.
    """
    if threading.current_thread() is not threading.main_thread():  # where none can be set
        yield
        return
    before = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL if before is None else before)


_PICKLING = (pickle.PicklingError, AttributeError, TypeError)  # what pickle raises for what it cannot write


def check_picklable(what: str, values: Mapping[str, Any]) -> None:
    """Refuse what no spawned process could be given.

    Raises:
        ConfigError: one of `values` cannot be pickled; names it.
    """
    for name, value in values.items():
        try:
            pickle.dumps(value)
        except _PICKLING as error:
            raise ConfigError(
                f"{what} {name!r} cannot be sent to loader workers ({error}); use functions and classes defined at the "
                "top of a module, open files and locks only where they are used, or set loader.workers to 0"
            ) from error


def check_workers(workers: int, start_method: str | None, prefetch: int = 1) -> None:
    """Refuse settings that no worker could be started with.

    Raises:
        ConfigError: `workers` is negative, `start_method` is unknown on this system, or `prefetch` below 1.
    """
    if not isinstance(prefetch, int) or prefetch < 1:
        raise ConfigError(f"loader.prefetch: {prefetch!r} is not a number of batches >= 1")
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 0:
        raise ConfigError(f"loader.workers: {workers!r} is not a number of processes >= 0")
    methods = multiprocessing.get_all_start_methods()
    if start_method is not None and start_method not in methods:
        raise ConfigError(f"loader.start_method: {start_method!r} is none of {', '.join(methods)}")
