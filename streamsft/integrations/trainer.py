"""`StreamTrainer`: a `transformers` Trainer that trains on a stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import torch
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainingArguments

from streamsft.comm import agreeing, current, gather_json
from streamsft.errors import ConfigError, RunError, StateError
from streamsft.integrations.inputs import check_attention, packed_inputs
from streamsft.integrations.microsteps import MicroSteps, check_ranks, derived_accumulation, made_aggregator
from streamsft.integrations.trainerchecks import (
    check_arguments,
    check_evaluated,
    check_given,
    check_kind,
    check_normalisation,
    prepares,
)
from streamsft.integrations.trainerfiles import begin_checkpoint, read_stream, whole_checkpoint
from streamsft.metrics.aggregator import Aggregator
from streamsft.stream.loader import Loader
from streamsft.training.loss import refuse_pairs

__all__ = ["StreamTrainer", "StreamTrainerMixin"]


class StreamTrainerMixin:
    """Makes a subclass of `transformers.Trainer` train on a stream: ``class Mine(StreamTrainerMixin, SFTTrainer)``.

    Micro-batches are `args.per_device_train_batch_size` packs at most, and `args.gradient_accumulation_steps` is
    derived from that. The state of the stream and of its metrics is written into each checkpoint (``stream.json``)
    and loaded by ``train(resume_from_checkpoint=…)``, exactly, on any number of ranks that divides the global batch;
    the Trainer's own skipping is turned off. Metrics go to the Trainer's loggers beside each record of its own; they
    are neither printed nor kept in its history. What the class mixed in does to prepare, pack and collate data, such
    as TRL's `SFTTrainer`, is left out.

    Args:
        model: as in `transformers.Trainer`.
        args: as there, with `max_steps`, for a stream has no end.
        loader: this rank's batches, not yet iterated: ``dp=Shard(args.process_index, args.world_size)``.
        metrics: what gathers the numbers of the samples; True makes an `Aggregator`, False is none.
        kwargs: other arguments of the Trainer.

    Raises:
        ConfigError: an argument contradicts the loader, or would be without effect.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        order = cls.__mro__
        before = [base for base in order[: order.index(StreamTrainerMixin)] if not issubclass(base, StreamTrainerMixin)]
        if any(issubclass(base, Trainer) for base in before):
            raise ConfigError(
                f"class {cls.__name__}: {before[0].__name__} stands before StreamTrainerMixin, and would be given the "
                f"loader; write class {cls.__name__}(StreamTrainerMixin, {before[0].__name__})"
            )

    def __init__(
        self,
        model: Any = None,
        args: TrainingArguments | None = None,
        *,
        loader: Loader,
        metrics: Aggregator | bool = True,
        **kwargs: Any,
    ) -> None:
        trainer: Any = self
        if not isinstance(self, Trainer):
            raise ConfigError(
                f"{type(self).__name__}: StreamTrainerMixin is no Trainer by itself; write class "
                f"{type(self).__name__}(StreamTrainerMixin, SFTTrainer), or use StreamTrainer"
            )
        if args is None or args.max_steps < 1:
            raise ConfigError("TrainingArguments: max_steps is not set, and a stream has no end; give max_steps=…")
        check_kind(type(self), args)
        ranks = args.world_size  # joins the process group if there is one
        self._comm = current()
        aggregator = made_aggregator(loader, metrics, self._comm)
        check_arguments(args, loader)
        check_given(kwargs, args)
        self._steps = MicroSteps(loader, args.per_device_train_batch_size, metrics=aggregator, comm=self._comm)
        args.gradient_accumulation_steps = derived_accumulation(
            "gradient_accumulation_steps", args.gradient_accumulation_steps, self._steps
        )
        args.ignore_data_skip = True
        self._base = 0
        super().__init__(model=model, args=args, **_without_preparation(args, kwargs))  # type: ignore[call-arg]
        check_ranks(loader, args.process_index, ranks, _replicas(trainer))
        self._flat = check_attention(trainer.accelerator.unwrap_model(trainer.model))
        check_normalisation(trainer)

    def get_train_dataloader(self) -> Any:
        """The stream's micro-batches as the model's arguments, up to the last step; not to be sharded again."""
        trainer: Any = self
        return _Inputs(self._steps, self._base + trainer.args.max_steps, self._flat)

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """As the Trainer's; a step without supervised tokens has loss 0, not 0 / 0."""
        samples, count = super().get_batch_samples(*args, **kwargs)  # type: ignore[misc]
        return samples, count.clamp(min=1) if isinstance(count, torch.Tensor) else count

    def last_checkpoint(self) -> str | None:
        """The latest whole checkpoint in `args.output_dir`, the same on all ranks; None where there is none.

        ``train(resume_from_checkpoint=trainer.last_checkpoint())`` begins a run, and goes on with it however it
        ended. A checkpoint that a kill left unfinished is passed over. Collective.
        """
        trainer: Any = self
        found = whole_checkpoint(Path(trainer.args.output_dir)) if self._comm.rank == 0 else None
        chosen = gather_json(self._comm, None if found is None else str(found))[0]
        assert chosen is None or isinstance(chosen, str)
        return chosen

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As the Trainer's; True goes on from `last_checkpoint`.

        Raises:
            RunError: there is no whole checkpoint to go on from.
            StateError: the checkpoint has no state of a stream, or that of another one; or the loader was iterated.
        """
        trainer: Any = self
        folder = self.last_checkpoint() if resume_from_checkpoint is True else resume_from_checkpoint or None
        if resume_from_checkpoint is True and folder is None:
            raise RunError(
                f"{trainer.args.output_dir} holds no whole checkpoint; start with "
                "train(resume_from_checkpoint=trainer.last_checkpoint())"
            )
        self._base = self._steps.step
        if folder is not None:
            with agreeing(self._comm):
                stored = read_stream(Path(str(folder)))
            self._steps.load(stored)
            self._base = self._steps.step - int(stored["step"])
        try:
            return super().train(folder, *args, **kwargs)  # type: ignore[misc]
        finally:
            self._steps.rest()

    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> Any:
        """As the Trainer's, of tokenized rows.

        Raises:
            ConfigError: TRL's would have to prepare the rows first.
        """
        trainer: Any = self
        if prepares(trainer.args):
            check_evaluated(eval_dataset)
        return super().evaluate(eval_dataset, *args, **kwargs)  # type: ignore[misc]

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """As the Trainer's; beside a record of training, loggers get the stream's metrics.

        TRL's ``num_tokens`` is the tokens of all steps so far, over all resumes: its own count takes a micro-batch for
        one row, and padding for tokens.
        """
        trainer: Any = self
        self._correct_tokens()
        super().log(logs, *args, **kwargs)  # type: ignore[misc]
        record = self._steps.record() if "loss" in logs else {}
        if record:
            for callback in trainer.callback_handler.callbacks:
                if not isinstance(callback, ProgressCallback | PrinterCallback):
                    callback.on_log(
                        trainer.args, trainer.state, trainer.control, logs=dict(record), model=trainer.model
                    )

    def _correct_tokens(self) -> None:
        """Put the tokens that were trained on in place of those that TRL counted. Collective where it did."""
        kept = getattr(self, "_metrics", None)
        modes = kept.values() if isinstance(kept, dict) else ()
        counted = [numbers for numbers in modes if isinstance(numbers, dict) and "num_tokens" in numbers]
        if counted:
            tokens = self._steps.trained_tokens()
            for numbers in counted:
                del numbers["num_tokens"]
                if tokens is not None:
                    numbers["num_tokens"] = [tokens]

    def _save_checkpoint(self, model: Any, trial: Any, *args: Any, **kwargs: Any) -> None:
        trainer: Any = self
        step = trainer.state.global_step
        state = self._steps.state()
        if not self._steps.at_border or self._steps.step != self._base + step:
            raise StateError(
                f"the Trainer saves step {step}, but the stream stands behind step {self._steps.step - self._base} of "
                "it; its batches must come from get_train_dataloader alone"
            )
        with agreeing(self._comm):
            if self._comm.rank == 0:
                begin_checkpoint(Path(trainer._get_output_dir(trial)) / f"checkpoint-{step}", {"step": step, **state})
        super()._save_checkpoint(model, trial, *args, **kwargs)  # type: ignore[misc]

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)  # type: ignore[misc]
        self._comm.barrier()  # the file by which a checkpoint counts as whole comes after those of all ranks


class StreamTrainer(StreamTrainerMixin, Trainer):
    """`transformers.Trainer` on a stream; see `StreamTrainerMixin`."""


@final
class _Inputs:
    """What the Trainer iterates over; it ends behind the last step, so that no step is made beyond it."""

    def __init__(self, steps: MicroSteps, last: int, flat: bool) -> None:
        self._steps = steps
        self._last = last
        self._flat = flat

    def __iter__(self) -> Iterator[dict[str, Any]]:
        batches = iter(self._steps)
        while not (self._steps.at_border and self._steps.step >= self._last):
            batch = next(batches)
            self._steps.consumed(batch)
            refuse_pairs(batch)
            yield packed_inputs(batch, flat=self._flat)


def _without_preparation(args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments for a class that wants a dataset and prepares it, which it then is not given the chance to."""
    if not prepares(args):
        return kwargs
    from datasets import Dataset

    args.dataset_kwargs = {**(args.dataset_kwargs or {}), "skip_prepare_dataset": True}
    return {**kwargs, "train_dataset": Dataset.from_dict({"input_ids": [[0]], "labels": [[0]]})}


def _replicas(trainer: Any) -> int:
    """How many ranks get the same batch."""
    return int(trainer.get_tp_size() * trainer.get_cp_size() * trainer.get_sp_size())
