"""`AcceleratedStream`: a stream in a training loop of one's own that uses Accelerate."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, final

import torch
from accelerate import Accelerator

from streamsft.comm import agreeing, current, gather_json
from streamsft.errors import ConfigError, StateError
from streamsft.integrations.microsteps import MicroSteps, check_ranks, derived_accumulation, made_aggregator
from streamsft.metrics.aggregator import Aggregator
from streamsft.stream.collate import Batch
from streamsft.stream.loader import Loader
from streamsft.training.durable import publish_directory, remove_directory, write_file
from streamsft.training.loss import token_loss_sum

__all__ = ["AcceleratedStream"]

_FILE = "stream.json"
_NAME = re.compile(r"step-(\d{8})")


@final
class AcceleratedStream:
    """The micro-batches of one process, on its device; `Accelerator.save_state` and `load_state` keep their position.

    The loader is not given to ``accelerator.prepare``: nothing is dispatched from one process to others, sharded a
    second time, or fetched ahead of what is trained on. The steps of gradient accumulation are derived. Make it before
    ``accelerator.load_state``::

        for batch in stream:
            with accelerator.accumulate(model):
                accelerator.backward(stream.loss(model, batch))
                optimizer.step()
                optimizer.zero_grad()

    Args:
        accelerator: as the loop uses it.
        loader: this process's batches, not yet iterated: with
            ``dp=Shard(accelerator.process_index, accelerator.num_processes)``.
        micro_batch_size: most packs per micro-batch; None: all that a process has of a step.
        metrics: what gathers the numbers of the samples; True makes an `Aggregator`, False is none.
        replicas: neighbouring processes that get the same batch, as under tensor parallelism.

    Raises:
        ConfigError: the loader is another process's, the accelerator accumulates over another number of steps, or it
            has been trained with or loaded before.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        loader: Loader,
        *,
        micro_batch_size: int | None = None,
        metrics: Aggregator | bool = True,
        replicas: int = 1,
    ) -> None:
        if accelerator.step:
            raise ConfigError(
                f"AcceleratedStream: the accelerator stands at micro-batch {accelerator.step}; make the stream before "
                "accelerator.load_state and before training, and one for each accelerator, or it would begin anew"
            )
        self._accelerator = accelerator
        self._comm = current()
        self._steps = MicroSteps(
            loader, micro_batch_size, metrics=made_aggregator(loader, metrics, self._comm), comm=self._comm
        )
        check_ranks(loader, accelerator.process_index, accelerator.num_processes, replicas)
        accelerator.gradient_accumulation_steps = derived_accumulation(
            "gradient_accumulation_steps", accelerator.gradient_accumulation_steps, self._steps
        )
        accelerator.register_save_state_pre_hook(self._save)
        accelerator.register_load_state_pre_hook(self._load)

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._steps:
            if self._steps.at_border:
                self._accelerator.step = 0  # a loaded one may have counted micro-batches of another size
            self._steps.consumed(batch)
            yield batch.to(self._accelerator.device, non_blocking=True)

    @property
    def step(self) -> int:
        """The step that was last trained on, or is being trained on, over all resumes; from 1."""
        return self._steps.step

    @property
    def at_border(self) -> bool:
        """Whether the last micro-batch of `step` was handed out: behind its optimizer step it is time to save."""
        return self._steps.at_border

    def loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """The loss to give to ``accelerator.backward``: a scalar that can be differentiated.

        It makes the gradient that of the mean over all supervised tokens of the step, on all processes and in all
        micro-batches, whose sizes differ: Accelerate divides by the number of micro-batches, and data parallelism by
        that of processes, and both are made up for.

        Args:
            model: prepared or not, called with `Batch.model_inputs()`.
            batch: the micro-batch at hand.
        """
        return token_loss_sum(model, batch) * self.scale(batch)

    def scale(self, batch: Batch) -> float:
        """What the sum of the token losses of a micro-batch is multiplied by; see `loss`."""
        return self._steps.scale(batch)

    def record(self) -> dict[str, float]:
        """The metrics of what was trained on, for ``accelerator.log``; {} without any. Collective."""
        return self._steps.record()

    def save(self, folder: str | Path, *, keep: int = 3) -> Path:
        """Write a checkpoint of this step, ``<folder>/step-00000100``, by ``accelerator.save_state``; collective.

        It has its name only when it is whole, whenever the processes are killed.

        Args:
            folder: seen by all processes.
            keep: how many are kept.

        Raises:
            StateError: in the middle of a step, so not all its gradients are there.
        """
        if not self.at_border:
            raise StateError(f"AcceleratedStream: step {self.step} is not finished; save if accelerator.sync_gradients")
        path = Path(folder) / f"step-{self.step:08d}"
        partial = path.with_name(f".partial-{path.name}")
        with agreeing(self._comm):
            if self._comm.rank == 0 and partial.exists():
                remove_directory(partial)
        self._accelerator.save_state(str(partial))
        self._comm.barrier()
        with agreeing(self._comm):
            if self._comm.rank == 0:
                if path.exists():
                    remove_directory(path)
                publish_directory(partial, path)
                for old in _checkpoints(Path(folder))[: -max(1, keep)]:
                    remove_directory(old)
        return path

    def resume(self, folder: str | Path) -> int:
        """Go on from the latest checkpoint that `save` wrote; collective, before iterating.

        Call it behind ``accelerator.prepare``.

        Returns:
            The step that it stands behind; 0 where there is none, and nothing is loaded.

        Raises:
            StateError: there is a checkpoint, but nothing was prepared that could be given its weights.
        """
        found = _checkpoints(Path(folder)) if self._comm.rank == 0 else []
        chosen = gather_json(self._comm, str(found[-1]) if found else None)[0]
        if chosen is not None:
            self._accelerator.load_state(chosen)
        return self.step

    def _save(self, models: Any, weights: Any, output_dir: str) -> None:
        state = self._steps.state()
        with agreeing(self._comm):
            if self._comm.rank == 0:
                write_file(Path(output_dir) / _FILE, json.dumps(state).encode())

    def _load(self, models: Sequence[Any], input_dir: str) -> None:
        file = Path(input_dir) / _FILE
        with agreeing(self._comm):
            try:
                state = json.loads(file.read_bytes())
            except (OSError, ValueError) as error:
                raise StateError(
                    f"{file} cannot be read ({error}), so where the stream stood is not known; go on from a checkpoint "
                    "that was saved while the AcceleratedStream was there"
                ) from error
        if not models:
            raise StateError(
                f"{input_dir}: there is no model yet to go on with; call accelerator.prepare(model, optimizer) before "
                "loading a state, or training goes on from there with weights that are not loaded"
            )
        self._steps.load(state)


def _checkpoints(folder: Path) -> list[Path]:
    """What `AcceleratedStream.save` left in `folder`, by step."""
    return sorted(path for path in folder.glob("step-*") if _NAME.fullmatch(path.name))
