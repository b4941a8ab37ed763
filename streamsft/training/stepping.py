"""One optimizer step over all ranks and micro-batches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch

from streamsft.comm import Comm, agree
from streamsft.errors import RunError
from streamsft.stream.collate import Batch
from streamsft.training.model import vocabulary_of
from streamsft.training.objective import CrossEntropy, Objective
from streamsft.training.schedule import learning_rate
from streamsft.training.settings import TrainSettings
from streamsft.training.sharding import add_gradients, is_divided, total_norm

__all__ = ["StepOutcome", "Stepper", "exchange", "make_optimizer"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """What a step was.

    Attributes:
        count: what this rank's loss is the mean over: its supervised tokens, or its preference pairs.
        loss_sum: the sum of their losses.
        further_sums: further sums over them, by the name that their mean is logged under.
        total_count: their number over all ranks; with none the weights stay as they were.
        stop: a signal that some rank received before the end of the step, else 0.
        learning_rate: of the step.
        gradient_norm: before clipping, of all ranks' gradient; nan for a step without supervised tokens.
    """

    count: int
    loss_sum: float
    further_sums: Mapping[str, float]
    total_count: int
    stop: int
    learning_rate: float
    gradient_norm: float


def exchange(comm: Comm, count: int, stop: int, error: Exception | None = None) -> tuple[int, int]:
    """Return the sum of all ranks' `count` and the largest of their `stop`; one collective.

    Args:
        error: why this rank cannot make the step; all ranks raise it then (see `streamsft.comm.agree`).
    """
    if comm.size == 1:
        if error is not None:
            raise error
        return count, stop
    everyone = comm.all_gather(np.array([count, stop, error is not None], np.int64))
    if everyone[:, 2].any():
        agree(comm, error)
    return int(everyone[:, 0].sum()), int(everyone[:, 1].max())


def make_optimizer(model: torch.nn.Module, settings: TrainSettings) -> torch.optim.Optimizer:
    """Return AdamW over the trainable parameters, with weight decay on those of two or more dimensions."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=settings.lr, betas=(0.9, 0.95))


@final
class Stepper:
    """Makes optimizer steps of `model`, the same on every rank.

    Gradients of the summed losses are added over micro-batches and ranks and divided once, by the number of what they
    are summed over, supervised tokens or preference pairs, of the step over all ranks.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        settings: TrainSettings,
        comm: Comm,
        objective: Objective | None = None,
    ) -> None:
        self._objective = objective or CrossEntropy()
        self._model = model
        self._optimizer = optimizer
        self._settings = settings
        self._comm = comm
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._device = next(model.parameters()).device
        self._vocabulary = vocabulary_of(model)
        self._together = is_divided(model)  # ranks make each pass of the model together

    def step(self, batch: Batch, stop: int = 0) -> StepOutcome:
        """Make the step of `batch`, this rank's share; collective.

        Raises:
            RunError: a token id is outside the model's vocabulary, or the gradient is not finite.
            DataError: the objective is for other samples.
        """
        self._check_vocabulary(batch)
        count = self._objective.count(batch)
        loss_sum, further = self._accumulate(batch)
        total, stop = exchange(self._comm, count, stop)
        rate = learning_rate(
            batch.step, peak=self._settings.lr, warmup=self._settings.warmup, steps=self._settings.steps
        )
        norm = self._update(total, rate, batch.step) if total else math.nan
        return StepOutcome(
            count=count,
            loss_sum=loss_sum,
            further_sums=further,
            total_count=total,
            stop=stop,
            learning_rate=rate,
            gradient_norm=norm,
        )

    def _accumulate(self, batch: Batch) -> tuple[float, dict[str, float]]:
        """Add the gradients of this rank's summed losses up, and return the sums: of the loss, and further ones."""
        self._optimizer.zero_grad(set_to_none=True)
        losses: list[torch.Tensor] = []
        further: dict[str, list[torch.Tensor]] = {}
        half = torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda")
        for micro_batch in batch.split(self._settings.micro_batch_size or len(batch)):
            if micro_batch.supervised_tokens or self._together:
                with half:
                    loss, others = self._objective.sums(self._model, micro_batch.to(self._device, non_blocking=True))
                loss.backward()  # type: ignore[no-untyped-call]
                losses.append(loss.detach())
                for name, value in others.items():
                    further.setdefault(name, []).append(value)
        return _summed(losses), {name: _summed(values) for name, values in further.items()}

    def _update(self, total: int, rate: float, step: int) -> float:
        """Divide the ranks' summed gradients by `total`, clip, and step the optimizer; return the norm."""
        add_gradients(self._parameters, self._comm)
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        for gradient in gradients:
            gradient.div_(total)
        norm = total_norm(gradients)
        if not math.isfinite(value := float(norm)):
            failure = RunError(
                f"step {step}: the gradient is not finite (norm {value}); lower train.lr or raise train.warmup, and "
                "resume from the last checkpoint"
            )
            failure.shared = True  # the norm is the same on all ranks
            raise failure
        if self._settings.grad_clip is not None:
            torch.nn.utils.clip_grads_with_norm_(self._parameters, self._settings.grad_clip, norm)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        return value

    def _check_vocabulary(self, batch: Batch) -> None:
        largest = int(batch.input_ids.max())
        if self._vocabulary is not None and largest >= self._vocabulary:
            raise RunError(
                f"step {batch.step}: token id {largest}, but the model knows {self._vocabulary} ids; train.model and "
                "tokenizer do not belong together, or a store is damaged, which validate --verify finds"
            )


def _summed(values: Sequence[torch.Tensor]) -> float:
    """The sum of scalars, in float64; 0 of none."""
    return float(torch.stack([value.double() for value in values]).sum()) if values else 0.0
