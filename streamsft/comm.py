"""The one seam to ``torch.distributed``: how ranks exchange numbers, and who this process is.

Everything that needs other ranks takes a `Comm` and hands it numpy arrays. `LocalComm` is one process,
`TorchComm` a process group, `ThreadComm` several ranks as threads of one process, which behave like a group
and need no set-up: for tests and for trying things out. Every method of a `Comm` is collective: all ranks
call it, in the same order, with arrays of the same shape and dtype.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, final, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from streamsft import errors
from streamsft.errors import CommError, StreamsftError
from streamsft.meeting import joined
from streamsft.threadcomm import ThreadComm
from streamsft.types import Shard

if TYPE_CHECKING:
    import torch

__all__ = [
    "Comm",
    "LocalComm",
    "ThreadComm",
    "TorchComm",
    "agree",
    "agreeing",
    "connect",
    "current",
    "disconnect",
    "gather_bytes",
    "gather_json",
    "in_worker",
    "part_of",
    "patient",
    "sum_tensors",
    "worker_shard",
]

_MESSAGE_BYTES = 2048


@runtime_checkable
class Comm(Protocol):
    """A group of ranks that exchange arrays."""

    @property
    def rank(self) -> int:
        """This process's number in the group, from 0."""

    @property
    def size(self) -> int:
        """Number of ranks in the group."""

    def all_gather(self, array: NDArray[Any]) -> NDArray[Any]:
        """Every rank's `array` (numeric, [n], same n and dtype on all ranks), stacked in rank order: [size, n]."""

    def barrier(self) -> None:
        """Wait until every rank has come here."""


@final
class LocalComm:
    """A group of one."""

    rank = 0
    size = 1

    def all_gather(self, array: NDArray[Any]) -> NDArray[Any]:
        return np.array(array)[None]

    def barrier(self) -> None:
        return None


@final
class TorchComm:
    """A ``torch.distributed`` process group, by default all ranks.

    Tensors live where the group's backend wants them: in host memory for gloo and MPI, else on the current
    accelerator. How long a rank waits for the others is the process group's own timeout.

    Args:
        group: the process group; None is the default one.
    """

    def __init__(self, group: torch.distributed.ProcessGroup | None = None) -> None:
        import torch.distributed as dist

        if not dist.is_initialized():
            raise CommError("TorchComm: torch.distributed is not initialised; call streamsft.comm.connect() first")
        self.group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        if self.rank < 0:
            raise CommError("TorchComm: this process is not a member of the given process group")

    @property
    def device(self) -> torch.device:
        """Where this group's tensors live."""
        import torch
        import torch.distributed as dist

        accelerator = torch.accelerator.current_accelerator()
        if accelerator is None or "cpu:" in dist.get_backend_config(self.group):
            return torch.device("cpu")
        return torch.device(accelerator.type, torch.accelerator.current_device_index())

    def all_gather(self, array: NDArray[Any]) -> NDArray[Any]:
        import torch
        import torch.distributed as dist

        mine = torch.from_numpy(np.array(array)).to(self.device)
        everyone = torch.empty((self.size, *mine.shape), dtype=mine.dtype, device=mine.device)
        dist.all_gather(list(everyone.unbind(0)), mine, group=self.group)
        return everyone.cpu().numpy()

    def barrier(self) -> None:
        self.all_gather(np.zeros(1, np.int64))


def connect() -> Comm:
    """Join the process group that the environment describes, as set by ``torchrun``.

    NCCL (or the accelerator's own backend) where there is an accelerator, beside gloo for host tensors; gloo
    alone on CPU. Without ``torchrun``, or when the process group exists already, this is `current()`.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        import torch
        import torch.distributed as dist

        if not dist.is_initialized():
            backend = None if torch.accelerator.is_available() else "gloo"
            if backend is None:
                torch.accelerator.set_device_index(int(os.environ.get("LOCAL_RANK", "0")))
            dist.init_process_group(backend, **_store_of_this_start())
    return current()


def _store_of_this_start() -> dict[str, Any]:
    """What `init_process_group` is to be given: nothing, or a store of this start's own. Collective.

    The agents of ``torchrun`` keep one store over all restarts of a job. What ranks that are dead wrote into it looks
    like what the new ones are about to write: one would connect to an address where nobody is.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return {}
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    store, rank, size = next(rendezvous("env://"))
    start = joined(PrefixStore("streamsft", store), rank, size)
    return {"store": PrefixStore(f"streamsft/{start}", store), "rank": rank, "world_size": size}


def patient(comm: Comm, *, days: int = 7) -> Comm:
    """The same ranks, for waits that may outlast a process group's timeout, such as for rank 0 to tokenize.

    Collective. A rank that dies is still noticed at once.
    """
    if not isinstance(comm, TorchComm):
        return comm
    import torch.distributed as dist

    ranks = None if comm.group is None else dist.get_process_group_ranks(comm.group)
    alone = ranks is not None  # the ranks of other groups need not come here
    return TorchComm(
        dist.new_group(ranks, timeout=timedelta(days=days), backend="gloo", use_local_synchronization=alone)
    )


def part_of(comm: Comm, ranks: Iterable[int]) -> Comm:
    """Those of the ranks of a default process group, this one among them; collective among them. Else `comm` itself."""
    if not isinstance(comm, TorchComm):
        return comm
    import torch.distributed as dist

    return TorchComm(dist.new_group(list(ranks), use_local_synchronization=True))


def disconnect() -> None:
    """Leave the default process group if there is one."""
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def current() -> Comm:
    """The default process group if ``torch.distributed`` is initialised, else this process alone."""
    dist = sys.modules.get("torch.distributed")  # whoever initialised it has imported it
    if dist is not None and dist.is_available() and dist.is_initialized():
        return TorchComm()
    return LocalComm()


def worker_shard(shard: Shard) -> Shard:
    """`shard` divided among the workers of a torch ``DataLoader``; unchanged outside a worker process."""
    info = _worker_info()
    if info is None:
        return shard
    return Shard(shard.index * info.num_workers + info.id, shard.count * info.num_workers)


def in_worker() -> bool:
    """Whether this process is a worker of a torch ``DataLoader``."""
    return _worker_info() is not None


def _worker_info() -> Any:
    data = sys.modules.get("torch.utils.data")  # a worker process has imported it
    return data.get_worker_info() if data is not None else None


def sum_tensors(comm: Comm, tensors: Iterable[torch.Tensor]) -> None:
    """Replace each tensor by its sum over the ranks, in place: one collective per tensor, none for one rank."""
    if comm.size == 1:
        return
    import torch
    import torch.distributed as dist

    for tensor in tensors:
        if isinstance(comm, TorchComm):
            dist.all_reduce(tensor, group=comm.group)
        else:
            tensor.copy_(torch.from_numpy(comm.all_gather(tensor.detach().cpu().numpy()).sum(axis=0)))


def gather_bytes(comm: Comm, payload: bytes) -> list[bytes]:
    """Every rank's `payload`, in rank order. Two collectives: the sizes, then the padded bytes."""
    sizes = comm.all_gather(np.array([len(payload)], np.int64))[:, 0]
    padded = np.zeros(max(1, int(sizes.max())), np.uint8)
    padded[: len(payload)] = np.frombuffer(payload, np.uint8)
    everyone = comm.all_gather(padded)
    return [row[:size].tobytes() for row, size in zip(everyone, sizes, strict=True)]


def gather_json(comm: Comm, value: Any) -> list[Any]:
    """Every rank's JSON value, in rank order; no pickle. Two collectives."""
    return [json.loads(part) for part in gather_bytes(comm, json.dumps(value).encode())]


def agree(comm: Comm, error: BaseException | None) -> None:
    """Raise on *every* rank if any rank has an error; one collective.

    A rank that failed raises its own error again. The others raise one of the same class where it is one of
    `streamsft.errors`, else `CommError`; its message names the rank.
    """
    if comm.size == 1:
        if error is not None:
            raise error
        return
    mine = np.zeros(_MESSAGE_BYTES, np.uint8)
    if error is not None:
        text = f"{type(error).__name__}\n{error}".encode(errors="replace")[:_MESSAGE_BYTES]
        mine[: len(text)] = np.frombuffer(text, np.uint8)
    everyone = comm.all_gather(mine)
    if error is not None:
        if isinstance(error, StreamsftError):
            error.shared = True
        raise error
    for rank, row in enumerate(everyone):
        if row[0]:
            kind, _, message = row.tobytes().rstrip(b"\0").decode(errors="ignore").partition("\n")
            known = getattr(errors, kind, None)
            if isinstance(known, type) and issubclass(known, StreamsftError):
                theirs: StreamsftError = known(f"rank {rank}: {message}")
            else:
                theirs = CommError(f"rank {rank}: {kind}: {message}")
            theirs.shared = True
            raise theirs


@contextmanager
def agreeing(comm: Comm) -> Iterator[None]:
    """Run a block that has no collectives of its own; if it raises on any rank, all ranks raise (see `agree`)."""
    error: Exception | None = None
    try:
        yield
    except Exception as caught:
        error = caught
    agree(comm, error)
