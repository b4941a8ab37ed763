"""Two ranks of a gloo group in each framework: what one process trains on, resumed on one and two, with one state."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from pytorch_lightning.plugins.environments import LightningEnvironment
from pytorch_lightning.strategies import DDPStrategy

from streamsft.comm import Comm
from streamsft.integrations.accelerated import AcceleratedStream
from streamsft.stream.loader import Loader
from streamsft.types import Shard
from tests.distributed.launch import launch
from tests.integrations.runs import LR, accelerated, fit, make_trainer, parameters
from tests.training.runs import make_loader

SETTINGS = {"optim": "sgd", "max_grad_norm": 0.0}  # Adam would hide a gradient of another scale


class Joined(LightningEnvironment):
    """The process group that is there."""

    def __init__(self, comm: Comm) -> None:
        super().__init__()
        self._comm = comm

    @property
    def creates_processes_externally(self) -> bool:
        return True

    def world_size(self) -> int:
        return self._comm.size

    def global_rank(self) -> int:
        return self._comm.rank

    def local_rank(self) -> int:
        return self._comm.rank

    def set_world_size(self, size: int) -> None:
        assert size == self._comm.size

    def set_global_rank(self, rank: int) -> None:
        assert rank == self._comm.rank


def _loader(dp: Shard) -> Loader:
    loader = make_loader()
    return Loader(loader.packer, global_batch_size=4, dp=dp)


def on_two(comm: Comm, folder: Path) -> dict[str, Any]:
    """Each framework for three steps, of which the third is behind its last checkpoint, and then on from there."""
    logging.disable(logging.WARNING)
    environment = {"RANK": comm.rank, "LOCAL_RANK": comm.rank, "WORLD_SIZE": comm.size}
    os.environ.update({key: str(value) for key, value in environment.items()}, MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    settings = SETTINGS | {"ddp_backend": "gloo"}
    make_trainer(folder / "trainer", 3, comm=comm, size=1, settings=settings).train()
    trainer = make_trainer(folder / "trainer", 6, comm=comm, size=1, settings=settings)
    trainer.train(resume_from_checkpoint=str(folder / "trainer" / "checkpoint-2"))
    accelerated(folder / "accelerate", 3, comm=comm, size=1, optimizer=_sgd)
    model, _, stream, resumed = accelerated(folder / "accelerate", 6, comm=comm, size=1, optimizer=_sgd)
    options = {"optimizer": _sgd, "devices": 2, "size": 1, "loader": _loader, "use_distributed_sampler": False}

    def ddp() -> DDPStrategy:
        return DDPStrategy(cluster_environment=Joined(comm), process_group_backend="gloo")

    fit(folder / "lightning", 3, strategy=ddp(), **options)
    checkpoint = str(folder / "lightning" / "step=2.ckpt")
    module, data = fit(folder / "lightning", 6, strategy=ddp(), resume=checkpoint, **options)
    twins = AcceleratedStream(Accelerator(cpu=True), _loader(Shard()), replicas=2)
    batch = next(iter(twins))
    return {
        "twins": (twins.record()["data/packs"], twins.scale(batch) * batch.supervised_tokens),
        "trainer": _values(trainer.model),
        "accelerate": _values(model),
        "lightning": _values(module),
        "resumed": resumed,
        "packs": [stream.record()["data/packs"], data.record()["data/packs"], trainer._steps.record()["data/packs"]],
    }


def test_two_ranks_end_with_the_weights_of_one_and_one_goes_on_from_two(tmp_path: Path) -> None:
    whole, *_ = accelerated(tmp_path / "whole", optimizer=_sgd)
    expected = _values(whole)
    for found in launch(2, on_two, tmp_path):
        assert found["resumed"] == 2
        assert found["packs"] == [24, 24, 24]
        assert found["twins"] == (4, 1)  # of ranks that get the same batches one counts
        for name in ("trainer", "accelerate", "lightning"):
            assert all(map(_close, found[name], expected)), name
    trainer = make_trainer(tmp_path / "trainer", 6, settings=SETTINGS)
    trainer.train(resume_from_checkpoint=str(tmp_path / "trainer" / "checkpoint-2"))
    module, _ = fit(tmp_path / "lightning", optimizer=_sgd, resume=str(tmp_path / "lightning" / "step=4.ckpt"))
    for found in (_values(trainer.model), _values(module)):
        assert all(map(_close, found, expected))


def _sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=LR)


def _values(model: torch.nn.Module) -> list[NDArray[np.float32]]:
    return [value.numpy() for value in parameters(model)]


def _close(left: NDArray[np.float32], right: NDArray[np.float32]) -> bool:
    return np.allclose(left, right, rtol=0, atol=1e-6)
