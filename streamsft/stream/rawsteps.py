"""`RawSteps`: what a rank, or each of its workers, makes of the steps from some state on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import final

from torch.utils.data import IterableDataset

from streamsft.comm import worker_shard
from streamsft.errors import StreamsftError
from streamsft.sources.lastread import LastRead, note
from streamsft.sources.rowids import RowIds
from streamsft.stream.iocounts import IoCounts
from streamsft.stream.lanestate import LaneState
from streamsft.stream.materialize import RawBatch, error_to_buffers, materialize
from streamsft.stream.reading import Valued
from streamsft.stream.shipping import Buffers, portions
from streamsft.stream.steps import Mixes, StepPlan, StepPlanner
from streamsft.stream.topology import Topology
from streamsft.types import Bools, Int32s, Ints, Shard

__all__ = ["RawSteps"]

# Documents of several steps are read together, which spares what is done once for them; rows that have to be copied
# then take 20 MB of ids and masks.
_READ_TOGETHER = 4096
_SLOTS_TOGETHER = 1 << 22


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

    def behind(self, step: int, lanes: Mapping[int, LaneState], last_read: LastRead) -> RawSteps:
        """The steps behind `step`, for workers that note in `last_read` what they read."""
        mixes, topology, slots, metrics, skip = self.mixes, self.topology, self.slots, self.metrics, self.skip
        steps = RawSteps(mixes, topology, slots, metrics, step, dict(lanes), skip)
        steps.last_read = last_read
        return steps

    def where(self, number: int, row: int) -> str:
        """Where a row that was noted of a source came from, as ``file:row``."""
        leaf = self.mixes.leaves[number]
        return leaf.streamed.reader.where(row) if leaf.streams else leaf.indexed.origin(row)

    def batches(self, shard: Shard) -> Iterator[RawBatch]:
        """Every `shard.count`-th step, beginning with the one at `shard.index`; those to skip without packs."""
        planner = StepPlanner(self.mixes, self.topology, self.step, self.lanes)
        names = self.mixes.names
        io = IoCounts(self.mixes.leaves)
        packing = self.mixes.plan.packing
        align = 1 if packing is None else packing.align

        def read(number: int, stored: Ints) -> tuple[Sequence[Int32s], Sequence[Bools]]:
            if not self.mixes.leaves[number].streams:  # rows of the others have been read, and noted by `Feed`
                note(names[number], int(stored[0]), len(stored))
            return planner.read(number, stored)

        def read_ids(number: int, stored: Ints) -> RowIds:
            note(names[number], int(stored[0]), len(stored))
            return planner.read_ids(number, stored)

        together: list[StepPlan] = []
        documents, enough = 0, 1  # the first step alone, for it is waited for
        most = max(1, _SLOTS_TOGETHER // (self.topology.packs * self.slots))
        for step in self._planned(planner, shard):
            skipped = bool(self.skip) and any(first <= step.step <= last for first, last in self.skip)
            if not skipped:
                together.append(step)
                documents += sum(stretch.size for stretch in step.stretches)
            if skipped or self.mixes.owned or documents >= enough or len(together) >= most:
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
        if self.last_read is not None:  # in a worker process
            self.last_read.begin(shard.index)
        yield from portions(self._buffers(shard), shard.index, one_by_one=self.mixes.owned)

    def _buffers(self, shard: Shard) -> Iterator[Buffers]:
        try:
            for raw in self.batches(shard):
                yield raw.to_buffers()
        except StreamsftError as error:
            yield error_to_buffers(error)
