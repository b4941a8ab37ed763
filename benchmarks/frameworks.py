"""The same training run in each framework: a small model on rows of a store, with a record of what was trained on."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets  # noqa: F401 - the Trainer imports it, and so forks have it
import pytorch_lightning as pl
import torch
from accelerate import Accelerator
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.plugins.environments import LightningEnvironment
from pytorch_lightning.strategies import DDPStrategy
from transformers import TrainerCallback, TrainingArguments

import streamsft as ss
from streamsft.comm import Comm, current, disconnect
from streamsft.stream.collate import Batch
from streamsft.training.audit import pack_digest, rewind_audit
from streamsft.training.loop import train
from streamsft.training.model import tiny_model
from streamsft.training.settings import RUN_METRICS, TrainSettings

SLOTS, PACKS, MICRO, SAVE_EVERY = 256, 8, 3, 2


@dataclass(frozen=True)
class Leg:
    """One start of a run.

    Attributes:
        run: its directory.
        store: where the tokens lie.
        vocabulary: number of token ids.
        steps: length of the whole run.
        ranks: processes.
    """

    run: Path
    store: Path
    vocabulary: int
    steps: int
    ranks: int = 1

    def loader(self, dp: ss.Shard) -> ss.Loader:
        """The stream of the run."""
        mix = ss.Interleave([ss.TokenStore.open(self.store, name="gsm8k")], seed=7)
        return ss.Loader(ss.Packer(mix, SLOTS), global_batch_size=PACKS, dp=dp)

    def model(self) -> torch.nn.Module:
        """The model at the start of the run."""
        return tiny_model(self.vocabulary, sequence_length=SLOTS, hidden=32, heads=2)


class Record:
    """What the model of one rank was trained on, as an audit has it (without rows), and the losses; a line per step."""

    def __init__(self, run: Path, comm: Comm, after: int) -> None:
        folder = run / "audit"
        folder.mkdir(parents=True, exist_ok=True)
        if comm.rank == 0:
            rewind_audit(folder, after)
        comm.barrier()
        self._file = (folder / f"rank-{comm.rank}.jsonl").open("ab", buffering=0)
        self._packs: list[str] = []
        self._losses: list[float] = []

    def add(self, step: int, ids: torch.Tensor, labels: torch.Tensor, loss: torch.Tensor, *, last: bool) -> None:
        """Note a micro-batch of a step; behind its last one the step is written."""
        self._packs += [pack_digest(i, label) for i, label in zip(ids.numpy(), labels.numpy(), strict=True)]
        self._losses.append(loss.item())
        if last:
            line = {"step": step, "packs": self._packs, "losses": self._losses}
            self._file.write(json.dumps(line).encode() + b"\n")
            self._packs, self._losses = [], []


def trainer(leg: Leg, comm: Comm) -> None:
    """transformers' Trainer."""

    class Begin(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, *rest: Any, **kwargs: Any) -> None:
            running.record = Record(leg.run, comm, state.global_step)

    class Recording(ss.StreamTrainer):
        record: Record

        def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
            ids, labels = inputs["input_ids"], inputs["labels"]
            loss = super().training_step(model, inputs, *args, **kwargs)
            last = self.accelerator.sync_gradients
            self.record.add(self.state.global_step + 1, ids, labels, loss, last=last)
            return loss

    args = TrainingArguments(
        output_dir=str(leg.run),
        max_steps=leg.steps,
        per_device_train_batch_size=MICRO,
        save_steps=SAVE_EVERY,
        save_total_limit=3,
        learning_rate=1e-3,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        log_level="error",
        ddp_backend="gloo" if leg.ranks > 1 else None,
    )
    running = Recording(leg.model(), args, loader=leg.loader(ss.Shard(comm.rank, comm.size)))
    running.add_callback(Begin)
    running.train(resume_from_checkpoint=running.last_checkpoint())


class _Joined(LightningEnvironment):
    """The process group that is there."""

    creates_processes_externally = True

    def world_size(self) -> int:
        return current().size

    def global_rank(self) -> int:
        return current().rank

    def local_rank(self) -> int:
        return current().rank

    def set_world_size(self, size: int) -> None:
        """It stands."""

    def set_global_rank(self, rank: int) -> None:
        """It stands."""


class _Module(pl.LightningModule):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self.record: Record | None = None

    def on_train_start(self) -> None:
        self.record = Record(Path(self.trainer.default_root_dir), current(), self.global_step)

    def training_step(self, batch: Batch, index: int) -> torch.Tensor:
        loss: torch.Tensor = self.trainer.datamodule.loss(self.model, batch)
        assert self.record is not None
        last = self.trainer.datamodule.steps.at_border
        self.record.add(batch.step, batch.input_ids, batch.labels, loss, last=last)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def lightning(leg: Leg, comm: Comm) -> None:
    """Lightning's Trainer."""
    saving = ModelCheckpoint(leg.run, filename="{step}", every_n_train_steps=SAVE_EVERY, save_top_k=-1)
    found = {int(str(re.search(r"step=(\d+)", path.name)[1])): path for path in leg.run.glob("step=*.ckpt")}  # type: ignore[index]
    options: dict[str, Any] = {}
    if leg.ranks > 1:
        strategy = DDPStrategy(cluster_environment=_Joined(), process_group_backend="gloo")
        options = {"devices": leg.ranks, "strategy": strategy}
    running = pl.Trainer(
        max_steps=leg.steps,
        accelerator="cpu",
        callbacks=[saving],
        default_root_dir=str(leg.run),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        **options,
    )
    data = ss.StreamDataModule(leg.loader, micro_batch_size=MICRO)
    running.fit(_Module(leg.model()), datamodule=data, ckpt_path=str(found[max(found)]) if found else None)


def accelerate(leg: Leg, comm: Comm) -> None:
    """A loop with Accelerate."""
    accelerator = Accelerator(cpu=True)
    dp = ss.Shard(accelerator.process_index, accelerator.num_processes)
    stream = ss.AcceleratedStream(accelerator, leg.loader(dp), micro_batch_size=MICRO)
    model = leg.model()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    record = Record(leg.run, comm, stream.resume(leg.run / "checkpoints"))
    for batch in stream:
        with accelerator.accumulate(model):
            loss = stream.loss(model, batch)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        record.add(batch.step, batch.input_ids, batch.labels, loss, last=accelerator.sync_gradients)
        if accelerator.sync_gradients and batch.step % SAVE_EVERY == 0:
            stream.save(leg.run / "checkpoints")
        if accelerator.sync_gradients and batch.step == leg.steps:
            break


def reference(leg: Leg, comm: Comm) -> None:
    """The loop behind `streamsft train`."""
    loader = leg.loader(ss.Shard(comm.rank, comm.size))
    settings = TrainSettings(
        steps=leg.steps,
        run_dir=leg.run,
        save_every=SAVE_EVERY,
        micro_batch_size=MICRO,
        log_every=1,
        audit=True,
        lr=1e-3,
    )
    train(
        loader,
        leg.model(),
        settings=settings,
        aggregator=ss.Aggregator(loader.sources, run_metrics=RUN_METRICS, comm=comm),
        sinks=lambda: [ss.JsonlSink(leg.run / "metrics.jsonl")],
        comm=comm,
    )


FRAMEWORKS: dict[str, Callable[[Leg, Comm], None]] = {
    "trainer": trainer,
    "lightning": lightning,
    "accelerate": accelerate,
    "reference": reference,
}


def run(name: str, leg: Leg, rank: int, meeting: Path) -> None:
    """Be rank `rank` of a start of a run; for a process of its own."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    leg.run.mkdir(parents=True, exist_ok=True)
    with (leg.run / f"log-{rank}.txt").open("ab", buffering=0) as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
        if leg.ranks > 1:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            size = str(leg.ranks)
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": size}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}  # asked for, though the group is there
            torch.distributed.init_process_group("gloo", init_method=meeting.as_uri(), rank=rank, world_size=leg.ranks)
        FRAMEWORKS[name](leg, current())
        disconnect()
