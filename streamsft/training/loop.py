"""The reference training loop: counted in steps, stopped and resumed at any of them."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, final

import torch

from streamsft.comm import Comm, agreeing, current
from streamsft.errors import ConfigError
from streamsft.metrics.aggregator import Aggregator
from streamsft.metrics.sinks import Sink
from streamsft.stream.collate import Batch
from streamsft.stream.handing import refuse_begun
from streamsft.stream.loader import Loader
from streamsft.training.edits import Rebuild, resume_loader
from streamsft.training.evaluating import Evaluation, evaluate
from streamsft.training.model import model_kind, prepare_model
from streamsft.training.objective import CrossEntropy, Dpo, check_pairs
from streamsft.training.opening import Start, opened
from streamsft.training.outputs import Outputs, opened_outputs
from streamsft.training.preference import frozen_reference
from streamsft.training.settings import TrainResult, TrainSettings
from streamsft.training.sharding import place_model
from streamsft.training.signals import StopSignals, signal_name
from streamsft.training.snapshot import Parts, open_saver, restore, save, seed_generators
from streamsft.training.stepping import StepOutcome, Stepper, exchange, make_optimizer

__all__ = ["train"]

_log = logging.getLogger(__name__)


def train(
    loader: Loader,
    model: torch.nn.Module | str = "none",
    *,
    settings: TrainSettings,
    aggregator: Aggregator | Callable[[], Aggregator],
    sinks: Callable[[], Sequence[Sink]] | Sequence[Sink] = (),
    comm: Comm | None = None,
    fresh: bool = False,
    vocabulary: int | None = None,
    config_record: Mapping[str, Any] | None = None,
    mix_record: Mapping[str, Any] | None = None,
    accept_changes: bool = False,
    rebuild: Rebuild | None = None,
    evaluation: Evaluation | None = None,
) -> TrainResult:
    """Train for `settings.steps` steps, going on from the newest checkpoint of `settings.run_dir` if it has one.

    Collective: every rank calls it with its own loader. Under ``torchrun`` join the process group first
    (`streamsft.comm.connect`). A run that is killed at any moment and called again consumes what it would have
    consumed, and on the same number of ranks ends with the same bits in its weights (on CPU).

    Args:
        loader: this rank's batches, not yet iterated.
        model: ``tiny``, ``none``, what `AutoModelForCausalLM.from_pretrained` takes, or a module that is called with
            `Batch.model_inputs()` and returns logits, or an object with `logits`.
        settings: see `TrainSettings`.
        aggregator: gathers the metrics of `loader`'s sources; declares `RUN_METRICS` when a model is trained (with
            ``loss: dpo`` `DPO_METRICS`), else `DATA_METRICS` if these are wanted. Given as a function, it is made when
            the loader has its state, and with it the sources of open windows that an edit has removed.
        sinks: where the records go; used on rank 0 alone, and closed at the end. Those that open files in the run
            directory are given as a function, which is called when the directory is ready.
        comm: the ranks; the default process group or this process alone.
        fresh: move an earlier run in the directory aside and start at step 1.
        vocabulary: number of token ids, for ``tiny`` and to check other models against.
        config_record: written to `config.json` in the run directory, for people to read.
        mix_record: what the mix is built from, as JSON; kept in checkpoints for `rebuild`.
        accept_changes: go on although sources were added, removed, changed or weighted otherwise, and note that.
        rebuild: builds the packer of an earlier mix from its record, to finish the windows that are open of it.
        evaluation: samples to find the model's loss on, and how often; it is part of the record of its step.

    Raises:
        ConfigError: the loader was iterated, there is an evaluation and no model, or the loss is for other samples.
        RunError: the run directory holds a run of another stream or model, is in use, or cannot be written; or
            training cannot go on. All ranks raise.
        StateError: the mix is edited although windows are open of the mix before the last edit. All ranks raise.
    """
    comm = comm if comm is not None else current()
    if evaluation is not None and model == "none":
        raise ConfigError("evaluation: there is no model to evaluate (model: none); leave the evaluation out")
    refuse_begun(loader)
    if model != "none":
        check_pairs((leaf.source for leaf in loader.packer.mixture.leaves), settings.loss)
    with ExitStack() as stack:
        start = stack.enter_context(
            opened(
                settings,
                loader.fingerprint,
                config_record=config_record,
                fresh=fresh,
                accept_changes=accept_changes,
                comm=comm,
                mix=(mix_record or {}).get("mix"),
            )
        )
        before = resume_loader(loader, start.stored, rebuild, comm) if start.stored is not None else None
        with agreeing(comm):
            gathering = aggregator if isinstance(aggregator, Aggregator) else aggregator()
        parts = _prepare(loader, model, gathering, settings, start, vocabulary, comm)
        parts.mix, parts.mix_before = mix_record, before
        outputs = stack.enter_context(opened_outputs(settings, start.step, sinks, comm))
        run = _Run(parts, settings, comm, outputs, model_kind(model), evaluation)
        return replace(run.leg(start.step), moved_to=start.moved_to)


def _prepare(
    loader: Loader,
    model: torch.nn.Module | str,
    aggregator: Aggregator,
    settings: TrainSettings,
    start: Start,
    vocabulary: int | None,
    comm: Comm,
) -> Parts:
    """Return the run's parts in the state that `start` asks for; collective."""
    length = loader.packer.packing.sequence_length
    like: dict[str, Any] = {"vocabulary": vocabulary, "sequence_length": length, "seed": settings.seed}
    reference = None
    if settings.loss == "dpo" and model != "none":  # before the weights of a checkpoint are put into a module
        reference = frozen_reference(model, **like, comm=comm)
    with agreeing(comm):
        net = prepare_model(model, **like, stored=start.stored)
    if net is not None:
        place_model(net, comm, divided=settings.parallel == "fsdp", new=start.stored is None)
    optimizer = make_optimizer(net, settings) if net is not None else None
    parts = Parts(loader=loader, aggregator=aggregator, model=net, optimizer=optimizer, reference=reference)
    if start.stored is not None:
        restore(parts, start.stored, seed=settings.seed, comm=comm)
        if comm.rank == 0:
            _log.info("going on from step %s in %s", start.step, settings.run_dir)
    else:
        seed_generators(settings.seed, step=0, rank=comm.rank)
    return parts


@contextmanager
def _iterating(loader: Loader) -> Iterator[Iterator[Batch]]:
    """Iterate, and stop the loader's threads or workers at the end."""
    batches = iter(loader)
    try:
        yield batches
    finally:
        if isinstance(batches, Generator):
            batches.close()


@final
class _Run:
    """One leg of a run: from the step it goes on from to the last, or to a signal."""

    def __init__(
        self,
        parts: Parts,
        settings: TrainSettings,
        comm: Comm,
        outputs: Outputs,
        kind: str,
        evaluation: Evaluation | None,
    ) -> None:
        self._parts = parts
        self._settings = settings
        self._comm = comm
        self._outputs = outputs
        self._kind = kind
        self._evaluation = evaluation
        self._stepper: Stepper | None = None
        if parts.model is not None and parts.optimizer is not None:
            objective = CrossEntropy() if parts.reference is None else Dpo(parts.reference, settings.beta)
            self._stepper = Stepper(parts.model, parts.optimizer, settings, comm, objective)
        divided = parts.model is not None and settings.parallel == "fsdp"
        self._saver = open_saver(comm, background=settings.async_save) if divided else None
        self._losses: list[float] = []
        self._logged = (0.0, 0)

    def leg(self, start: int) -> TrainResult:
        """Make the steps after `start`; collective."""
        step, stop = start, 0
        if start < self._settings.steps:
            self._logged = (time.monotonic(), start)
            with StopSignals() as signals, self._saver or nullcontext(), _iterating(self._parts.loader) as batches:
                while not stop and step < self._settings.steps:
                    asked, ready = time.perf_counter(), self._parts.loader.ready
                    batch = self._next(batches)
                    self._observe_wait(time.perf_counter() - asked, ready)
                    step = batch.step
                    stop = self._step(batch, signals)
        return TrainResult(
            steps=step,
            run_dir=self._settings.run_dir,
            asked=self._settings.steps,
            resumed_from=start,
            first_loss=self._losses[0] if self._losses else None,
            last_loss=self._losses[-1] if self._losses else None,
            stopped_by=signal_name(stop) if stop else "steps",
            skipped_steps=self._parts.skipped_steps,
        )

    def _next(self, batches: Iterator[Batch]) -> Batch:
        """This rank's next batch; if any rank has none, all raise, none of them waiting for another."""
        try:
            return next(batches)
        except Exception as error:
            exchange(self._comm, 0, 0, error)
            raise

    def _step(self, batch: Batch, signals: StopSignals) -> int:
        """Make one step with all that belongs to it, and return the signal that ends the run, or 0."""
        settings, step = self._settings, batch.step
        outcome = None
        if self._stepper is not None:
            outcome = self._stepper.step(batch, signals.number)
            stop = outcome.stop
            self._observe(outcome, step)
        else:
            _, stop = exchange(self._comm, 0, signals.number)
        if self._outputs.audit is not None:
            self._outputs.audit.write(batch)
        self._parts.aggregator.update(batch.stats)
        last = step >= settings.steps
        evaluated = self._evaluate(step, last)
        if last or step % settings.log_every == 0:
            self._log(batch, outcome, evaluated)
        elif evaluated:
            self._outputs.record(step, evaluated)
        if last or stop or step % settings.save_every == 0:
            self._save(step)
        return 0 if last else stop

    def _observe_wait(self, seconds: float, ready: int | None) -> None:
        declared = self._parts.aggregator.run_metrics
        for name, value in (("train/data_wait_seconds", seconds), ("train/prefetch_depth", ready)):
            if value is not None and name in declared:
                self._parts.aggregator.observe(name, value)

    def _observe(self, outcome: StepOutcome, step: int) -> None:
        if outcome.count:
            for name, total in {"train/loss": outcome.loss_sum, **outcome.further_sums}.items():
                self._parts.aggregator.observe(name, total / outcome.count, outcome.count)
        if not outcome.total_count:
            if not self._parts.skipped_steps:
                _log.warning("step %s has no supervised token on any rank: the weights stay as they are", step)
            self._parts.skipped_steps += 1

    def _evaluate(self, step: int, last: bool) -> dict[str, float]:
        """What an evaluation behind the step gives, if it is time for one; collective."""
        evaluation, model = self._evaluation, self._parts.model
        if evaluation is None or model is None or not evaluation.due(step, last):
            return {}
        began = time.monotonic()
        record = evaluate(model, evaluation.sets, comm=self._comm)
        if not math.isfinite(record["eval/loss"]):
            _log.warning("step %s: the loss of the evaluation is %s", step, record["eval/loss"])
        self._logged = (self._logged[0] + time.monotonic() - began, self._logged[1])  # training's own speed is recorded
        return record

    def _log(self, batch: Batch, outcome: StepOutcome | None, evaluated: Mapping[str, float]) -> None:
        """Write one record of everything; one collective."""
        aggregator, step = self._parts.aggregator, batch.step
        record = aggregator.log(self._parts.loader.packer.shares(batch.data_step))
        since, from_step = self._logged
        seconds = max(time.monotonic() - since, 1e-9)
        record["train/steps_per_second"] = (step - from_step) / seconds
        for name in ("slots", "supervised_tokens"):
            if (count := record.get(f"{aggregator.root}/{name}_interval")) is not None:
                record[f"train/{name}_per_second"] = count / seconds
        if outcome is not None:
            record["train/lr"] = outcome.learning_rate
            record["train/skipped_steps"] = self._parts.skipped_steps
            if outcome.total_count:
                record["train/grad_norm"] = outcome.gradient_norm
            if "train/loss" in record:
                self._losses.append(record["train/loss"])
        self._outputs.record(step, {**record, **evaluated}, aggregator.histograms)
        self._logged = (time.monotonic(), step)  # a tracker may take seconds to begin

    def _save(self, step: int) -> None:
        save(
            self._parts,
            step=step,
            kind=self._kind,
            keep=self._settings.keep,
            run_dir=self._settings.run_dir,
            audit=self._outputs.audit,
            comm=self._comm,
            saver=self._saver,
        )
        if self._comm.rank == 0:
            done = "is being written" if self._settings.async_save else "saved"
            _log.info("step %s of %s: checkpoint %s", step, self._settings.steps, done)
