"""What a training run is asked for, and what it answers."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from streamsft.errors import ConfigError
from streamsft.metrics.reducers import Mean, Reducer

__all__ = ["DATA_METRICS", "DPO_METRICS", "RUN_METRICS", "TrainResult", "TrainSettings"]

DATA_METRICS: Mapping[str, Reducer] = {"train/data_wait_seconds": Mean(), "train/prefetch_depth": Mean()}
"""How long a step waited for its batch, and how many batches were ready when it asked (with a background thread only);
means over steps and ranks. Recorded if the aggregator declares them."""

RUN_METRICS: Mapping[str, Reducer] = {"train/loss": Mean(), **DATA_METRICS}
"""What the aggregator of a run with a model declares; it must have ``train/loss``."""

DPO_METRICS: Mapping[str, Reducer] = {
    **{f"train/{name}": Mean() for name in ("margin", "accuracy", "chosen_reward", "rejected_reward")},
    **RUN_METRICS,
}
"""What it declares with ``loss: dpo``; see `streamsft.training.objective.Dpo`. Means over the pairs of all ranks."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """How to train. Everything here but `loss` may be changed when a run is resumed.

    Attributes:
        steps: optimizer steps of the whole run, earlier legs included.
        run_dir: where checkpoints, audit and metrics lie; seen by all ranks.
        save_every: steps between two checkpoints; one is always written at the end and on a signal.
        keep: how many checkpoints are kept.
        log_every: steps between two records of metrics.
        micro_batch_size: most packs per forward pass on a rank; None: all of its share.
        lr: peak learning rate.
        warmup: steps of linear warm-up; half a cosine follows.
        weight_decay: decoupled weight decay (AdamW), on matrices alone.
        grad_clip: largest norm of the gradient; None: unbounded.
        parallel: ``ddp``: every rank has the whole weights and optimizer; ``fsdp``: they are divided over the ranks.
        async_save: with ``fsdp``, write weights and optimizer of a checkpoint while training goes on.
        audit: write `audit/rank-<r>.jsonl`.
        seed: of the initial weights of ``tiny`` and of dropout.
        loss: ``cross_entropy`` of the supervised tokens, or ``dpo``, on preference pairs against the model as it was
            at the start.
        beta: with ``dpo``: how much a difference in log-probability counts.
    """

    steps: int
    run_dir: Path
    save_every: int = 100
    keep: int = 3
    log_every: int = 10
    micro_batch_size: int | None = None
    lr: float = 3e-4
    warmup: int = 10
    weight_decay: float = 0.01
    grad_clip: float | None = 1.0
    parallel: Literal["ddp", "fsdp"] = "ddp"
    async_save: bool = False
    audit: bool = False
    seed: int = 0
    loss: Literal["cross_entropy", "dpo"] = "cross_entropy"
    beta: float = 0.1

    def __post_init__(self) -> None:
        for name in ("steps", "save_every", "keep", "log_every", "micro_batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"train settings: {name} is {value}; give at least 1")
        for name in ("lr", "warmup", "weight_decay", "grad_clip"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ConfigError(f"train settings: {name} is {value}; give 0 or more")
        if self.parallel not in ("ddp", "fsdp"):
            raise ConfigError(f"train settings: parallel is {self.parallel!r}; give 'ddp' or 'fsdp'")
        if self.async_save and self.parallel != "fsdp":
            raise ConfigError("train settings: async_save is for parallel: fsdp, and parallel is ddp")
        if self.loss not in ("cross_entropy", "dpo"):
            raise ConfigError(f"train settings: loss {self.loss!r} is neither cross_entropy nor dpo")
        if not self.beta > 0:
            raise ConfigError(f"train settings: beta is {self.beta}; give more than 0")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """How a call of `train` ended.

    Attributes:
        steps: the last step that was made, earlier legs included.
        run_dir: the run's directory.
        asked: steps that the whole run is to have; 0 where that is not known.
        resumed_from: the step of the checkpoint that this leg went on from, 0 at a new start.
        first_loss: `train/loss` of the first record of this leg; None without a model or a record.
        last_loss: the same of the last record.
        stopped_by: ``steps`` when all were made, else the name of the signal.
        skipped_steps: steps of the whole run that had no supervised token, so that the weights stayed as they were.
        moved_to: where ``fresh`` moved an earlier run.
    """

    steps: int
    run_dir: Path
    asked: int = 0
    resumed_from: int = 0
    first_loss: float | None = None
    last_loss: float | None = None
    stopped_by: str = "steps"
    skipped_steps: int = 0
    moved_to: Path | None = None

    @property
    def exit_code(self) -> int:
        """0 when all steps were made, else 128 + the signal's number, as shells have it.

        So that what comes after a run in a script does not take half a run for a whole one.
        """
        return 0 if self.stopped_by == "steps" else 128 + signal.Signals[self.stopped_by].value

    @property
    def nothing_to_do(self) -> bool:
        """Whether all steps had been made before."""
        return self.asked > 0 and self.resumed_from >= self.asked

    @property
    def message(self) -> str:
        """What happened, and where things lie, for the user."""
        if self.stopped_by != "steps":
            return (
                f"{self.stopped_by}: saved at step {self.steps} in {self.run_dir}; the same command goes on from there"
            )
        if self.nothing_to_do:
            return (
                f"nothing to do: step {self.steps} of {self.asked} is done, in {self.run_dir}; to go on give more "
                f"steps, such as train.steps={2 * self.steps}, and to start over --fresh"
            )
        return f"done: {self.steps} steps, in {self.run_dir} (metrics.jsonl; checkpoints/step-{self.steps:08d})"
