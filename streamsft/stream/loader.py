"""`Loader`: the batches of one rank, step by step, with a state that says what was consumed."""

from __future__ import annotations

import queue
from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, final

from streamsft.comm import Comm, agree, current, gather_json
from streamsft.errors import StateError, StreamsftError
from streamsft.metrics.metric import checked_metrics
from streamsft.metrics.stats import SourceInfo
from streamsft.stream.background import in_background
from streamsft.stream.balance import Balance
from streamsft.stream.collate import Batch, collated
from streamsft.stream.ending import closed_at_exit
from streamsft.stream.faces import Info, whole
from streamsft.stream.handing import Endless, refuse_frameworks
from streamsft.stream.lanestate import LaneState
from streamsft.stream.packer import Packer, check_packer
from streamsft.stream.plan import Plan
from streamsft.stream.rawsteps import RawSteps
from streamsft.stream.reading import Valued
from streamsft.stream.state import (
    STATE_VERSION,
    begun_before_edit,
    check_edit,
    check_shape,
    check_state,
    checked_edits,
    checked_lanes,
    checked_step,
    describe_plan,
    merged,
)
from streamsft.stream.steps import Mixes
from streamsft.stream.stretches import checked_stretches
from streamsft.stream.topology import Topology
from streamsft.stream.workers import StartMethod, check_picklable, check_workers, worker_batches
from streamsft.types import Shard

__all__ = ["Loader"]

_FIELDS = ("step", "fingerprint", "lanes")
_OPTIONAL = ("data_step", "edits")


@final
class Loader(Endless):
    """The endless batches of one data-parallel rank.

    A step is `global_batch_size` packs over all ranks, whatever their number: rank r of n gets the r-th n-th of
    them, or with `balance` as many from all over it. Which packs make a step depends on nothing else, so a run may go
    on with another number of ranks or workers and sees the same steps. A batch and the state behind it are equal for
    any `workers` and `background`.

    Iterating again after a break goes on with the next step.

    Args:
        packer: where packs come from; its shard is the whole stream.
        global_batch_size: packs per optimizer step over all ranks; `dp.count` must divide it.
        dp: this rank among the data-parallel ranks.
        workers: processes that read tokens; 0 reads in this process.
        start_method: how worker processes start: ``fork``, ``spawn`` or ``forkserver``; None is Python's default.
        background: with 0 workers, read in a thread beside the training step.
        timeout: seconds without a sign of a worker after which others take its place; None waits.
        prefetch: batches kept ready; with workers portions of up to eight batches, per worker.
        lanes_per_step: independent streams (lanes) that a step draws from; kept when a run is resumed. By default 1;
            with a source that streams or is read by row groups gcd(`global_batch_size`, 8): `dp.count` divides it.
        lane_groups: groups of so many lanes that take turns; by default 1, with such a source 4: `workers` divides it.
        metrics: numbers to take of each sample (`streamsft.Metric`).
        pad_id: token id of padding.
        skip_steps: stretches of steps of the stream, first and last each, that are left out: training goes on with
            the next ones. May change from one resume to the next.
        tokenizer: a digest of the tokenizer that made the tokens, kept in the state and compared on loading.
        balance: have ranks make about as many ``tokens``, or as much work for ``attention``; see
            `streamsft.stream.balance`. For sources that are read by index; may change from one resume to the next.

    Raises:
        ConfigError: a value is out of range, or a metric cannot be sent to a worker process.
    """

    def __init__(
        self,
        packer: Packer,
        *,
        global_batch_size: int,
        dp: Shard | None = None,
        workers: int = 0,
        start_method: StartMethod | None = None,
        background: bool = True,
        timeout: float | None = 300.0,
        prefetch: int = 2,
        lanes_per_step: int | None = None,
        lane_groups: int | None = None,
        metrics: Sequence[Valued] = (),
        pad_id: int = 0,
        tokenizer: str = "",
        balance: Balance = "none",
        skip_steps: Sequence[tuple[int, int]] = (),
    ) -> None:
        check_workers(workers, start_method, prefetch, timeout)
        check_packer(packer)
        owned = any(leaf.owned for leaf in packer.mixture.leaves)
        self.packer = whole(packer, "Loader")
        dp = Shard() if dp is None else dp
        self.topology = Topology.of(global_batch_size, dp, lanes_per_step, lane_groups, balance, owned=owned)
        if owned:
            self.topology.check_owners(workers)
        self.workers = workers
        self.start_method = start_method
        self.background = background
        self.prefetch, self.timeout = prefetch, timeout
        self.metrics = checked_metrics(metrics, "Loader")
        self.pad_id = pad_id
        self.tokenizer = tokenizer
        if workers and self.metrics:
            check_picklable("metric", {metric.name: metric for metric in self.metrics})
        self._plan = packer.plan(self.topology.lanes)
        self._mixes = Mixes(self._plan)
        self._edits: list[dict[str, Any]] = []
        self.skip_steps = checked_stretches(skip_steps)
        self._step = self._data_step = 0
        self._lanes = {number: LaneState.start(self._plan, number) for number in self.topology.owned}
        self._ahead: queue.Queue[Batch | BaseException] | None = None
        self._iterations, self._mid_step = 0, False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ahead": None}  # a queue cannot be pickled; a new iteration makes its own

    @property
    def step(self) -> int:
        """Steps consumed since the stream's start, over all resumes."""
        return self._step

    @property
    def data_step(self) -> int:
        """Steps of the stream that lie behind, those that were skipped included."""
        return self._data_step

    @property
    def begun(self) -> bool:
        """Whether it has been iterated, so that no state can be loaded."""
        return self._iterations > 0

    @property
    def info(self) -> Info:
        """The pipeline; printed, it is a tree."""
        how = f"{self.workers} workers" if self.workers else "a background thread" if self.background else "in process"
        return Info("loader", f"{self.topology}, read by {how}", None, (self.packer.info,))

    @property
    def ready(self) -> int | None:
        """Batches that the background thread has made and nobody has taken; None without one."""
        return None if self._ahead is None else self._ahead.qsize()

    @property
    def sources(self) -> list[SourceInfo]:
        """What is known of each source, as `Batch.stats` numbers them: by name, then those that an edit removed."""
        return self._mixes.sources

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What defines the stream, as JSON: a state is loaded only where this is the same."""
        return self._described(self._plan)

    def _described(self, plan: Plan) -> dict[str, Any]:
        lanes = [self.topology.lanes_per_step, self.topology.lane_groups]
        return {**describe_plan(plan), "lanes": lanes, "tokenizer": self.tokenizer}

    def __iter__(self) -> Iterator[Batch]:
        refuse_frameworks()
        return self._begin(None)

    def micro_batches(self, micro_batch_size: int) -> Iterator[Batch]:
        """The same batches in parts of at most `micro_batch_size` packs, for frameworks that pull those.

        A step is consumed with its last part: whoever stops before that and iterates again gets all of its parts
        again. Between the parts of a step there is no state to take.

        Raises:
            ConfigError: `micro_batch_size` is below 1.
        """
        return self._begin(micro_batch_size)

    def _begin(self, micro_batch_size: int | None) -> Iterator[Batch]:
        self._iterations, self._mid_step = self._iterations + 1, False
        return closed_at_exit(self._consumed(self._iterations, micro_batch_size))

    def _consumed(self, iteration: int, micro_batch_size: int | None) -> Generator[Batch, None, None]:
        """The batches from here on, in parts. A batch counts as consumed before its last part is yielded."""
        for batch in self._batches():
            parts = [batch] if micro_batch_size is None else batch.split(micro_batch_size)
            step, data_step, lanes = batch.step, batch.data_step, batch.lanes
            del batch  # whoever is given the parts has them: their memory is used again once they are let go
            parts.reverse()
            while parts:
                if iteration != self._iterations:
                    raise StateError("Loader: another iteration began, so this one has ended; iterate once at a time")
                self._mid_step = len(parts) > 1
                if not self._mid_step:
                    self._step, self._data_step = step, data_step
                    self._lanes |= lanes
                yield parts.pop()

    def _batches(self) -> Iterator[Batch]:
        names, align = self._mixes.names, self.packer.packing.align
        finish = partial(collated, sources=names, pad_id=self.pad_id, step=self._step, align=align)
        slots, lanes = self.packer.packing.sequence_length, dict(self._lanes)
        steps = RawSteps(self._mixes, self.topology, slots, self.metrics, self._data_step, lanes, self.skip_steps)
        if self.workers:
            how = (self.workers, self.start_method, self.prefetch, self.timeout)
            yield from finish(worker_batches(steps, *how))
        elif self.background:
            self._ahead = queue.Queue(self.prefetch)
            yield from in_background(lambda: finish(steps.batches(Shard())), self._ahead)
        else:
            yield from finish(steps.batches(Shard()))

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands behind the last batch that was consumed: a small JSON object.

        It is complete as it is with one lane (the default); else use `gather_state`. Batches that were read
        ahead do not count.

        Raises:
            StateError: in the middle of a step that is pulled as micro-batches.
        """
        if self._mid_step:
            raise StateError(f"Loader: in the middle of step {self._step + 1}; state exists at step borders only")
        return {
            "version": STATE_VERSION,
            "step": self._step,
            **({"data_step": self._data_step} if self._data_step != self._step else {}),
            "fingerprint": self.fingerprint,
            **({"edits": self._edits} if self._edits else {}),
            "lanes": {str(number): state.to_json() for number, state in sorted(self._lanes.items())},
        }

    def gather_state(self, comm: Comm | None = None) -> dict[str, Any]:
        """The complete state, the same object on every rank. Collective: every rank calls it.

        Args:
            comm: the ranks; None is the default process group, or this process alone.

        Raises:
            StateError: on every rank, if the ranks stand at different steps or disagree about a lane.
        """
        comm = comm or current()
        state: dict[str, Any] = {}
        failure: StreamsftError | None = None
        try:
            state = self.state_dict()
        except StateError as error:
            failure = error
        agree(comm, failure)
        return merged(gather_json(comm, state), self.topology.lanes)

    def load_state_dict(self, state: Mapping[str, Any], before: Packer | None = None) -> None:
        """Go on where `state` was taken, on this rank's part of the following steps.

        Args:
            state: a complete state, from `gather_state`, or from `state_dict` if there is one lane.
            before: the packer that the state was taken with, if its mix has since been edited: sources added or
                removed, weights changed, nothing else. Windows that are open are finished under the old mix; sources
                that both mixes have go on where they stand. A state that was taken before all of these windows were
                finished needs `before` again.

        Raises:
            StateError: iteration has begun; the state is incomplete, or of another stream or format version. The
                message has each difference with both values.
        """
        if self.begun:
            raise StateError("Loader: state loaded after iteration began; load it into a fresh loader")
        old = None if before is None else check_packer(before, "before").plan(self.topology.lanes)
        edited = False
        check_shape(state, _FIELDS, _OPTIONAL)
        if old is not None and state["fingerprint"] != self.fingerprint:
            check_edit(self._described(old), self.fingerprint)
            check_state(state, _FIELDS, self._described(old), _OPTIONAL)
            edited = True
        else:
            check_state(state, _FIELDS, self.fingerprint, _OPTIONAL)
        lanes = checked_lanes(state, self.topology.lanes)
        step, edits = checked_step(state), checked_edits(state)
        mixes = Mixes(self._plan, old)
        if edited:
            lanes = begun_before_edit(lanes)
            edits.append({"step": step, "before": state["fingerprint"]})
        elif old is not None and edits:
            check_state({**state, "fingerprint": edits[-1]["before"]}, _FIELDS, self._described(old), _OPTIONAL)
        self._lanes = {
            number: LaneState.from_json(lanes[str(number)], mixes.of(lanes[str(number)]), f"lane {number}")
            for number in self.topology.owned
        }
        self._mixes, self._edits, self._step = mixes, edits, step
        self._data_step = checked_step({"step": state.get("data_step", step)})
