"""Checkpoints of divided weights: each rank writes and reads its part, with `torch.distributed.checkpoint`.

Saving in the background copies the tensors first; the steps that follow do not change what is written. A checkpoint
gets its name by the last act of the writing, when the parts of all ranks are on the disk.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from streamsft.comm import Comm, TorchComm, agreeing, patient
from streamsft.errors import RunError, StreamsftError
from streamsft.training.shardfiles import INDEX, ShardReader, ShardWriter
from streamsft.training.sharding import OPTIMIZER, optimizer_tensors, weight_tensors
from streamsft.training.stored import STATE_FOLDER, StoredCheckpoint

__all__ = ["ShardedSaver", "load_sharded"]


@final
class ShardedSaver:
    """Writes weights and optimizer into checkpoints, one at a time; used on every rank alike.

    A context: at its end the last one is waited for.

    Args:
        comm: the ranks.
        background: write while training goes on.
    """

    def __init__(self, comm: Comm, *, background: bool) -> None:
        self._comm = comm
        self._background = background
        self._group: Comm | None = None
        self._writing: tuple[Future[Any], Callable[[BaseException], RunError]] | None = None

    def save(
        self,
        folder: Path,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        done: Callable[[Mapping[str, str]], object],
        failed: Callable[[BaseException], RunError],
    ) -> None:
        """Write the tensors into `folder`, or begin to; collective.

        Args:
            folder: an empty directory that all ranks see.
            model: as `streamsft.training.sharding.shard_model` leaves it, or undivided.
            optimizer: of the model's parameters.
            done: called on rank 0 when all is written, with the digest of each rank's file; see `ShardWriter`.
            failed: what is to be said of an error; called on every rank.

        Raises:
            RunError: it cannot be written, or (in the background) the one before could not. All ranks raise.
        """
        self.wait()
        state: dict[str, Any] = {**weight_tensors(model), **optimizer_tensors(model, optimizer)}
        writer = ShardWriter(folder, rank=self._comm.rank, done=done)
        if self._group is None:
            self._group = patient(self._comm)  # steps and checkpoints must not take each other's messages
        options = _options(self._group)
        planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        with _told(failed):
            if self._background:
                future = async_save(state, storage_writer=writer, planner=planner, **options)
                assert isinstance(future, Future)
                self._writing = (future, failed)
            else:
                save(state, storage_writer=writer, planner=planner, **options)

    def wait(self) -> None:
        """Return when nothing is being written; collective.

        Raises:
            RunError: what was being written could not be. All ranks raise.
        """
        if self._writing is not None:
            (future, failed), self._writing = self._writing, None
            with _told(failed):
                future.result()

    def __enter__(self) -> ShardedSaver:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.wait()
        except Exception as second:
            if error is None:
                raise
            error.add_note(str(second))


def load_sharded(
    stored: StoredCheckpoint, model: torch.nn.Module, optimizer: torch.optim.Optimizer, comm: Comm
) -> None:
    """Give `model` and its new `optimizer` the tensors in `stored`, however many ranks wrote them; collective.

    Raises:
        RunError: they are of another model, or damaged. All ranks raise.
    """
    folder = stored.path / STATE_FOLDER
    with agreeing(comm):
        try:
            reader = ShardReader(folder)
        except (OSError, ValueError) as error:
            raise stored.damaged(f"{STATE_FOLDER}/{INDEX}", error) from error
        state: dict[str, Any] = weight_tensors(model)
        _check_names(state, reader, folder)
        _make_room(reader, model, optimizer)
        state |= optimizer_tensors(model, optimizer)
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    with _told(lambda error: RunError(f"the weights in {folder} do not fit the model, or are damaged: {error}")):
        load(state, storage_reader=reader, planner=planner, **_options(comm))


def _make_room(reader: ShardReader, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Give `optimizer` zeros for what `reader` has of its state: divided as the parameter is, where of its shape."""
    parameters = dict(model.named_parameters())
    for full, tensor in reader.tensors.items():
        name, _, key = full.removeprefix(OPTIMIZER).rpartition("/")
        if full.startswith(OPTIMIZER) and (parameter := parameters.get(name)) is not None:
            dtype = tensor.properties.dtype
            alike = tensor.size == parameter.shape and parameter.dim() > 0
            zeros = torch.zeros_like(parameter, dtype=dtype) if alike else torch.zeros(tensor.size, dtype=dtype)
            optimizer.state[parameter][key] = zeros.detach()


def _check_names(state: Mapping[str, Any], reader: ShardReader, folder: Path) -> None:
    stored = {name for name in reader.tensors if not name.startswith(OPTIMIZER)}
    if stored != state.keys():
        names = sorted(name.partition("/")[2] for name in stored ^ state.keys())
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        raise RunError(f"the weights in {folder} do not fit the model: one of them alone has {shown}")


def _options(comm: Comm) -> dict[str, Any]:
    """Which ranks take part, as `torch.distributed.checkpoint` has it."""
    if isinstance(comm, TorchComm):
        return {"process_group": comm.group}
    warnings.filterwarnings("ignore", r"torch\.distributed is .* in a single process", UserWarning)  # as it is meant
    return {"no_dist": True} if dist.is_initialized() else {}


@contextmanager
def _told(failed: Callable[[BaseException], RunError]) -> Iterator[None]:
    """Turn what the ranks report of an error, on all of them, into an error of ours."""
    try:
        yield
    except CheckpointException as error:
        cause, _ = error.failures[min(error.failures)]
        told = cause if isinstance(cause, StreamsftError) else failed(cause)
        told.shared = True
        raise told from cause
