"""`MicroSteps`: micro-batches for loops that fetch ahead, with the state behind what was trained on."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Mapping
from typing import Any, final

from streamsft.comm import Comm, agree, agreeing, current, gather_json, part_of
from streamsft.errors import ConfigError, StateError, StreamsftError
from streamsft.metrics.aggregator import Aggregator
from streamsft.stream.collate import Batch
from streamsft.stream.handing import refuse_begun
from streamsft.stream.loader import Loader
from streamsft.stream.state import merged
from streamsft.training.stepping import exchange

__all__ = ["MicroSteps", "check_ranks", "derived_accumulation", "made_aggregator"]


@final
class MicroSteps:
    """The endless micro-batches of one rank, and how far the loop that takes them has come.

    Iterating hands out micro-batches; `consumed` says that one is now trained on. Those that were handed out and
    not consumed, as loops that fetch ahead leave them, are handed out again by the next iteration, and are not in
    `state`. It has neither a length nor a ``state_dict``, so that frameworks save and load nothing by themselves.

    A step is read whole before its first micro-batch is handed out, and all ranks then exchange its supervised
    tokens: one collective per step.

    Args:
        loader: this rank's batches, not yet iterated.
        micro_batch_size: most packs per micro-batch.
        metrics: is given the numbers of what is consumed; its state travels with the stream's.
        comm: the ranks; None is the default process group, or this process alone.

    Raises:
        ConfigError: `micro_batch_size` is below 1, or the loader was iterated.
    """

    def __init__(
        self,
        loader: Loader,
        micro_batch_size: int | None = None,
        *,
        metrics: Aggregator | None = None,
        comm: Comm | None = None,
    ) -> None:
        packs = loader.topology.packs
        self.micro_batch_size = packs if micro_batch_size is None else micro_batch_size
        if self.micro_batch_size < 1:
            raise ConfigError(f"micro_batch_size: {micro_batch_size} packs; give at least 1")
        refuse_begun(loader)
        self.loader = loader
        self.metrics = metrics
        self.parts = -(-packs // self.micro_batch_size)
        self._comm = comm or current()
        self._replicas = max(1, self._comm.size // loader.topology.dp.count)
        self._source: Iterator[Batch] | None = None
        self._begun = False
        self._untold: list[Batch] = []
        self._trained = 0
        self._trained_before: int | None = 0
        self._queue: deque[Batch] = deque()
        self._handed = self._iterations = 0
        self._step, self._data_step, self._part = loader.step, loader.data_step, self.parts
        self._borders: dict[int, dict[str, Any]] = {}
        self._tokens: dict[int, int] = {}

    @property
    def step(self) -> int:
        """The step that was last trained on, or is being trained on; that of the stream, counted from 1."""
        return self._step

    @property
    def at_border(self) -> bool:
        """Whether all micro-batches of `step` are consumed."""
        return self._part == self.parts

    def __iter__(self) -> Iterator[Batch]:
        if not self.at_border:
            raise StateError(
                f"the loop began anew behind micro-batch {self._part} of {self.parts} of step {self._step}; let it "
                f"stop at the end of a step, that is after a multiple of {self.parts} micro-batches"
            )
        self._iterations, self._handed = self._iterations + 1, 0
        return self._handing_out(self._iterations)

    def _handing_out(self, iteration: int) -> Iterator[Batch]:
        while True:
            if iteration != self._iterations:
                raise StateError(
                    "another iteration over the stream began, so this one has ended; iterate once at a time"
                )
            if self._handed == len(self._queue):
                self._pull()
            self._handed += 1
            yield self._queue[self._handed - 1]

    def _pull(self) -> None:
        """Read one step; if any rank cannot, all raise. Collective."""
        if self._source is None:
            self._borders[self.loader.step] = self.loader.state_dict()
            self._source, self._begun = self.loader.micro_batches(self.micro_batch_size), True
        try:
            parts = [next(self._source) for _ in range(self.parts)]
        except Exception as error:
            exchange(self._comm, 0, 0, error)
            raise
        step = self.loader.step
        self._queue.extend(parts)
        self._borders[step] = self.loader.state_dict()
        self._tokens[step] = self._summed(sum(part.supervised_tokens for part in parts))

    def _summed(self, count: int) -> int:
        """The sum of `count` over ranks, of which those that get the same batches count once. Collective."""
        return exchange(self._comm, count, 0)[0] // self._replicas

    def consumed(self, batch: Batch) -> None:
        """Note that `batch`, the oldest that was handed out, is trained on.

        Raises:
            StateError: it is another one.
        """
        if not self._handed or batch.step != self._queue[0].step:
            raise StateError(
                f"step {batch.step} is trained on out of turn; take micro-batches in the order they come in"
            )
        if self.at_border:
            self._take_in()
        part = self._queue.popleft()
        self._handed -= 1
        self._part = 1 if self.at_border else self._part + 1
        self._step, self._data_step = part.step, part.data_step
        self._untold.append(part)
        for old in [step for step in self._borders if step < self._step - 1]:
            self._borders.pop(old)
            self._tokens.pop(old, None)

    def _take_in(self) -> None:
        """Give the metrics the numbers of a finished step."""
        for part in self._untold:
            self._trained += int(part.documents.table.length.sum())
            if self.metrics is not None:
                self.metrics.update(part.stats)
        self._untold.clear()

    def total_tokens(self, batch: Batch) -> int:
        """Supervised tokens of the step of `batch` over all its micro-batches and all ranks."""
        return self._tokens[batch.step]

    def scale(self, batch: Batch) -> float:
        """What makes a sum of token losses the step's mean, where frameworks divide by micro-batches and by ranks."""
        return self.parts * self.loader.topology.dp.count / max(1, self.total_tokens(batch))

    def record(self) -> dict[str, float]:
        """The metrics of the steps that are finished; {} without an aggregator. Collective."""
        if self.metrics is None:
            return {}
        if self.at_border:
            self._take_in()
        return self.metrics.log(self.loader.packer.shares(self._data_step))

    def trained_tokens(self) -> int | None:
        """Tokens of the finished steps on all ranks, padding not included, over all resumes. Collective.

        None where a checkpoint on the way does not say it.
        """
        if self.at_border:
            self._take_in()
        here = self._summed(self._trained)
        return None if self._trained_before is None else self._trained_before + here

    def state(self, *, finished: bool = True) -> dict[str, Any]:
        """The stream's and the metrics' state behind the last finished step, as JSON, the same on every rank.

        In the middle of a step that is the one before: who goes on from there makes the whole step again, which is
        what weights need that have not had its optimizer step. Collective.

        Args:
            finished: whether the optimizer step was made, if all micro-batches of a step are consumed.

        Raises:
            StateError: on every rank, if ranks stand at different steps or the loader was iterated elsewhere.
        """
        step = self._step if self.at_border and finished else self._step - 1
        failure: StreamsftError | None = None
        if self._begun and step not in self._borders:
            failure = StateError(f"the state behind step {step} is not known; take micro-batches from one place only")
        agree(self._comm, failure)
        if step == self._step:
            self._take_in()
        here = self._summed(self._trained)
        mine = self._borders[step] if self._begun else self.loader.state_dict()
        return {
            "loader": merged(gather_json(self._comm, mine), self.loader.topology.lanes),
            "metrics": None if self.metrics is None else self.metrics.gather_state(),
            "tokens": None if self._trained_before is None else self._trained_before + here,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken, before the first iteration. Collective.

        Raises:
            StateError: on every rank; see `Loader.load_state_dict`.
        """
        with agreeing(self._comm):
            if self._begun:
                raise StateError("state loaded after iteration began; load it into a fresh loader")
            self.loader.load_state_dict(state["loader"])
            if self.metrics is not None and state["metrics"] is not None:
                self.metrics.load_state(state["metrics"])
            self._step, self._data_step = self.loader.step, self.loader.data_step
            self._trained_before = state.get("tokens")

    def rest(self) -> None:
        """Stop the loader's threads or workers, if the loop ended at a border and fetched nothing ahead.

        Iterating again starts them anew.
        """
        if self.at_border and not self._queue and isinstance(self._source, Generator):
            self._source.close()
            self._source = None


def made_aggregator(loader: Loader, metrics: Aggregator | bool, comm: Comm) -> Aggregator | None:
    """The aggregator asked for: one's own, the built-in metrics with those of `loader`, or none.

    Raises:
        ConfigError: `loader` is no loader.
    """
    if not isinstance(loader, Loader):
        raise ConfigError(f"loader: {type(loader).__name__} is no Loader; give streamsft.Loader(packer, …)")
    if isinstance(metrics, Aggregator):
        return metrics
    return Aggregator(loader.sources, loader.metrics, comm=_sharing_out(loader, comm)) if metrics else None


def _sharing_out(loader: Loader, comm: Comm) -> Comm:
    """Of the ranks of `comm` those that get other batches than this one, and itself, so that each counts once."""
    replicas = comm.size // loader.topology.dp.count
    return comm if replicas < 2 else part_of(comm, range(comm.rank % replicas, comm.size, replicas))


def check_ranks(loader: Loader, rank: int, ranks: int, replicas: int = 1) -> None:
    """Refuse a loader that is for another number of ranks than train, or for another rank.

    Args:
        loader: as given to the framework.
        rank: this process among all.
        ranks: all processes.
        replicas: neighbouring ranks that share a data-parallel coordinate.

    Raises:
        ConfigError: with the shard that the loader should have.
    """
    dp, wanted = loader.topology.dp, (rank // replicas, ranks // replicas)
    if (dp.index, dp.count) != wanted:
        raise ConfigError(
            f"Loader: dp is Shard({dp.index}, {dp.count}), but this is data-parallel rank {wanted[0]} of {wanted[1]}; "
            f"give dp=Shard({wanted[0]}, {wanted[1]}), or ranks would train on the same packs or leave some out"
        )


def derived_accumulation(name: str, asked: int, steps: MicroSteps) -> int:
    """How many micro-batches a step is accumulated over.

    Args:
        name: how the framework calls it.
        asked: what its user set; 1 is the default.
        steps: knows the number.

    Raises:
        ConfigError: `asked` is another number.
    """
    if asked not in (1, steps.parts):
        packs = steps.loader.topology.packs
        raise ConfigError(
            f"{name} is {asked}, but the {packs} packs that a rank has of a step are {steps.parts} micro-batches of "
            f"{steps.micro_batch_size}; leave it out, or give {steps.parts}"
        )
    return steps.parts
