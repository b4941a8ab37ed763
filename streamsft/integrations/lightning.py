"""`StreamDataModule`: a stream as a `LightningDataModule`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from streamsft.comm import current
from streamsft.errors import ConfigError, StateError
from streamsft.integrations.microsteps import MicroSteps, check_ranks, derived_accumulation, made_aggregator
from streamsft.metrics.aggregator import Aggregator
from streamsft.stream.collate import Batch
from streamsft.stream.loader import Loader
from streamsft.training.loss import token_loss_sum
from streamsft.types import Shard

if "lightning.pytorch" in sys.modules:  # the same library under another name, whose classes are others
    from lightning.pytorch import LightningDataModule
else:
    from pytorch_lightning import LightningDataModule

__all__ = ["StreamDataModule"]


class StreamDataModule(LightningDataModule):  # type: ignore[misc]
    """A stream for Lightning's Trainer: ``trainer.fit(module, datamodule=StreamDataModule(make_loader))``.

    The module's ``training_step`` gets a `Batch`, a micro-batch, and returns ``self.trainer.datamodule.loss(…)`` of it.
    `accumulate_grad_batches` is derived. Checkpoints hold the position behind the last optimizer step, whatever
    Lightning has fetched ahead, and ``trainer.fit(…, ckpt_path=…)`` goes on from it exactly.

    Of ``lightning`` and ``pytorch_lightning`` it belongs to the one that was imported before it.

    Args:
        loader: makes this rank's batches, given its shard: ``lambda dp: Loader(packer, global_batch_size=16, dp=dp)``;
            or a loader, for one process.
        micro_batch_size: most packs per micro-batch; None: all that a rank has of a step.
        metrics: whether the numbers of the samples are gathered, for `record`.
    """

    def __init__(
        self,
        loader: Callable[[Shard], Loader] | Loader,
        *,
        micro_batch_size: int | None = None,
        metrics: bool = True,
    ) -> None:
        super().__init__()
        self._make = loader
        self._micro_batch_size = micro_batch_size
        self._with_metrics = metrics
        self._steps: MicroSteps | None = None
        self._steps_before = -1

    def setup(self, stage: str) -> None:
        """Make the loader of this rank, and derive `accumulate_grad_batches`; another trainer goes on with the loader.

        Raises:
            ConfigError: the trainer contradicts the loader.
        """
        if stage != "fit":
            return
        trainer = self.trainer
        _check_endless(trainer)
        dp = Shard(trainer.global_rank, trainer.world_size)
        steps = self._steps or self._made(dp)
        check_ranks(steps.loader, dp.index, dp.count)
        trainer.accumulate_grad_batches = derived_accumulation(
            "accumulate_grad_batches", trainer.accumulate_grad_batches, steps
        )
        self._steps = steps

    def _made(self, dp: Shard) -> MicroSteps:
        loader, comm = self._make if isinstance(self._make, Loader) else self._make(dp), current()
        aggregator: Aggregator | None = made_aggregator(loader, self._with_metrics, comm)
        return MicroSteps(loader, self._micro_batch_size, metrics=aggregator, comm=comm)

    @property
    def steps(self) -> MicroSteps:
        """The micro-batches, and how far training has come in them.

        Raises:
            StateError: `Trainer.fit` has not begun.
        """
        if self._steps is None:
            raise StateError("StreamDataModule: there is no stream before Trainer.fit has called setup")
        return self._steps

    def train_dataloader(self) -> MicroSteps:
        """The micro-batches; not a torch ``DataLoader``, so that Lightning puts no sampler and no state into it.

        Raises:
            StateError: training goes on from a checkpoint that holds no state of a stream.
        """
        if self.trainer.global_step and not self.steps.step:
            raise StateError(
                f"the checkpoint of step {self.trainer.global_step} holds no state of a {type(self).__qualname__}, so "
                "where its stream stood is not known; go on from another one, or start anew"
            )
        self._align_progress()
        return self.steps

    def _align_progress(self) -> None:
        """Let Lightning count micro-batches from the start of a step on.

        A checkpoint may have been made in the middle of one, which is made again, or of another number of them a step.
        """
        progress = self.trainer.fit_loop.epoch_loop.batch_progress
        begun = progress.current.processed % self.steps.parts
        for count in (progress.current, progress.total) if begun else ():
            count.ready = count.started = count.completed = count.processed = count.processed - begun

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Note that a micro-batch is now trained on."""
        if isinstance(batch, Batch) and self.trainer.training:
            self.steps.consumed(batch)
            self._steps_before = self.trainer.global_step
        return batch

    def loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """The loss to return from ``training_step``: a scalar that can be differentiated.

        It makes the gradient that of the mean over all supervised tokens of the step, on all ranks and in all
        micro-batches, whose sizes differ: Lightning divides by the number of micro-batches, and data parallelism by
        that of ranks, and both are made up for.

        Args:
            model: called with `Batch.model_inputs()`.
            batch: the micro-batch at hand.
        """
        return token_loss_sum(model, batch) * self.scale(batch)

    def scale(self, batch: Batch) -> float:
        """What the sum of the token losses of a micro-batch is multiplied by; see `loss`."""
        return self.steps.scale(batch)

    def record(self) -> dict[str, float]:
        """The metrics of what was trained on, for ``self.logger.log_metrics``; {} without any. Collective."""
        return self.steps.record()

    def state_dict(self) -> dict[str, Any]:
        """The stream's state behind the last optimizer step; Lightning puts it into its checkpoints. Collective."""
        return self.steps.state(finished=self.trainer.global_step != self._steps_before)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where a checkpoint was written; Lightning calls it.

        Raises:
            StateError: the state is of another stream, or training has begun.
        """
        self.steps.load(state_dict)

    def teardown(self, stage: str) -> None:
        """Stop the loader's threads or workers."""
        if self._steps is not None:
            self._steps.rest()


def _check_endless(trainer: Any) -> None:
    """Refuse a trainer that says how long an epoch is, or does not say when to stop."""
    for name in ("fast_dev_run", "overfit_batches"):
        if getattr(trainer, name, 0):
            raise ConfigError(
                f"Trainer: {name} cuts epochs of some micro-batches out of a stream, which has no epochs; to try a "
                "script out, leave it out and give max_steps=1"
            )
    if trainer.max_steps < 1:
        raise ConfigError("Trainer: max_steps is not set, and a stream has no end; give max_steps=…")
    if isinstance(trainer.limit_train_batches, int):
        raise ConfigError(
            f"Trainer: limit_train_batches is {trainer.limit_train_batches}, but a stream has no epochs, and "
            "Lightning goes on behind the end of one with part of a step; leave it out, and validate by "
            "val_check_interval"
        )
