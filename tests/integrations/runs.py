"""The same small training run in each framework, on made-up tokens: 4 packs a step, AdamW."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from accelerate import Accelerator
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from transformers import TrainerCallback, TrainingArguments

from streamsft.comm import Comm, LocalComm
from streamsft.integrations.accelerated import AcceleratedStream
from streamsft.integrations.lightning import StreamDataModule
from streamsft.integrations.trainer import StreamTrainer
from streamsft.stream.collate import Batch
from streamsft.stream.loader import Loader
from streamsft.types import Shard
from tests.training.runs import make_loader, small_model

__all__ = ["LR", "BrokenError", "Losses", "Module", "accelerated", "fit", "make_trainer", "optimizer_of", "parameters"]

LR = 1e-2


class BrokenError(Exception):
    """Ends a run where a kill would."""


class Losses(TrainerCallback):
    """Keeps the loss of each step, as a Trainer logs it, and what else is logged."""

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}
        self.metrics: dict[int, dict[str, float]] = {}

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if "loss" in logs:
            self.losses[state.global_step] = logs["loss"]
        elif "data/samples" in logs:
            self.metrics[state.global_step] = logs


def make_trainer(
    folder: Path,
    steps: int = 6,
    *,
    comm: Comm | None = None,
    size: int = 3,
    loader: Loader | None = None,
    model: torch.nn.Module | None = None,
    settings: dict[str, Any] | None = None,
    **kwargs: Any,
) -> StreamTrainer:
    """A Trainer with micro-batches of at most `size` packs."""
    given = {
        "per_device_train_batch_size": size,
        "save_steps": 2,
        "logging_steps": 1,
        "learning_rate": LR,
        "lr_scheduler_type": "constant",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        **(settings or {}),
    }
    args = TrainingArguments(output_dir=str(folder), max_steps=steps, **given)
    return StreamTrainer(model or small_model(), args, loader=loader or make_loader(comm=comm or LocalComm()), **kwargs)


class Module(pl.LightningModule):
    """Keeps the loss of each step, and fails at one if asked to."""

    def __init__(self, optimizer: Callable[[torch.nn.Module], torch.optim.Optimizer], fail_at: int | None) -> None:
        super().__init__()
        self.model = small_model()
        self.losses: dict[int, float] = {}
        self._optimizer, self._fail_at = optimizer, fail_at

    def training_step(self, batch: Batch, index: int) -> torch.Tensor:
        if batch.step == self._fail_at:
            raise BrokenError
        loss: torch.Tensor = self.trainer.datamodule.loss(self.model, batch)
        self.losses[batch.step] = self.losses.get(batch.step, 0.0) + loss.item()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self._optimizer(self.model)


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=LR)


def fit(
    folder: Path,
    steps: int = 6,
    *,
    resume: str | None = None,
    size: int = 3,
    fail_at: int | None = None,
    loader: Callable[[Shard], Loader] | Loader | None = None,
    data: StreamDataModule | None = None,
    optimizer: Callable[[torch.nn.Module], torch.optim.Optimizer] = optimizer_of,
    callbacks: list[Callback] | None = None,
    **options: Any,
) -> tuple[Module, StreamDataModule]:
    """Fit by Lightning, with a checkpoint every other step."""
    module = Module(optimizer, fail_at)
    data = data or StreamDataModule(loader or make_loader(), micro_batch_size=size)
    saving = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=2, save_top_k=-1)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        max_steps=steps, accelerator="cpu", callbacks=[saving, *(callbacks or [])], **{**quiet, **options}
    )
    trainer.fit(module, datamodule=data, ckpt_path=resume)
    return module, data


def accelerated(
    folder: Path,
    upto: int = 6,
    *,
    comm: Comm | None = None,
    size: int = 3,
    optimizer: Callable[[torch.nn.Module], torch.optim.Optimizer] = optimizer_of,
) -> tuple[torch.nn.Module, dict[int, float], AcceleratedStream, int]:
    """Train by a loop with Accelerate up to a step; a checkpoint every other step."""
    accelerator = Accelerator(cpu=True)
    stream = AcceleratedStream(accelerator, make_loader(comm=comm or LocalComm()), micro_batch_size=size)
    model = small_model()
    model, optimize = accelerator.prepare(model, optimizer(model))
    resumed, losses = stream.resume(folder), dict[int, float]()
    for batch in stream:
        with accelerator.accumulate(model):
            loss = stream.loss(model, batch)
            losses[batch.step] = losses.get(batch.step, 0.0) + loss.item()
            accelerator.backward(loss)
            optimize.step()
            optimize.zero_grad()
        if accelerator.sync_gradients and batch.step % 2 == 0:
            stream.save(folder)
        if accelerator.sync_gradients and batch.step >= upto:
            break
    return model, losses, stream, resumed


def parameters(model: torch.nn.Module) -> list[torch.Tensor]:
    return [value.detach().clone() for value in model.parameters()]
