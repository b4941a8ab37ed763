"""`Portions`: several batches in each message of a `DataLoader`'s workers."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any, final

import torch
from torch.utils.data import default_collate

from streamsft.comm import in_worker
from streamsft.errors import ConfigError
from streamsft.stream.shipping import keep_memory, widen

__all__ = ["Portions"]


@final
class Portions:
    """Batches that the workers of a `torch.utils.data.DataLoader` send several at a time.

    What a worker's message costs in the training process hardly depends on its size, and a tensor costs more than its
    bytes. For batches that are quick to make this is most of the time that a loader with workers takes::

        portions = Portions(32, collate_fn=pad)
        loader = DataLoader(store, batch_size=16 * 32, shuffle=True, collate_fn=portions, num_workers=2)
        for batch in portions.batches(loader):  # of 32 rows, 16 of them in each message

    The batches are those of a loader with `batch_size=32` that draws the same rows, in the same order, also without
    workers. Tensors in them arrive in memory of their own, writable and not pinned.

    Args:
        batch_size: rows in a batch.
        collate_fn: makes a batch of a list of rows, in the worker; torch's `default_collate` if left out. Under spawn a
            function at the top of a module.

    Raises:
        ConfigError: `batch_size` is no number above 0.
    """

    def __init__(self, batch_size: int, collate_fn: Callable[[list[Any]], Any] = default_collate) -> None:
        if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
            raise ConfigError(f"Portions: batch_size {batch_size!r} is not a number of rows >= 1")
        self.batch_size = batch_size
        self.collate_fn = collate_fn

    def __call__(self, rows: list[Any]) -> _Portion:
        """The rows of one message as batches; what the loader takes as `collate_fn`."""
        size = self.batch_size
        batches = [self.collate_fn(rows[at : at + size]) for at in range(0, len(rows), size)]
        if not in_worker():
            return _Portion(batches)
        keep_memory()
        return _Portion(_dumped(batches))

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """The batches of one pass of `loader`, whose `collate_fn` this is, one by one.

        A loader that can be resumed counts messages: its state has the whole portion behind it of which a batch was
        given out, so take it when the last one of a portion was trained on.

        Raises:
            ConfigError: `loader` has another `collate_fn`, or a `batch_size` that is no multiple of this one's.
        """
        whole = getattr(loader, "batch_size", None)
        if isinstance(whole, int) and whole % self.batch_size:
            raise ConfigError(
                f"Portions: the loader's batch_size {whole} is no multiple of the {self.batch_size} rows of a batch; "
                f"write {max(1, whole // self.batch_size)} * {self.batch_size}"
            )
        return self._received(loader)

    def _received(self, loader: Iterable[Any]) -> Iterator[Any]:
        portions = iter(loader)
        widen(portions)
        keep_memory()
        for portion in portions:
            if not isinstance(portion, _Portion):
                kind = type(portion).__name__
                raise ConfigError(f"Portions: the loader gives {kind}, no portions; give it this object as collate_fn")
            yield from portion.batches()


@final
class _Portion:
    """Some batches: as they are, or pickled by a worker."""

    def __init__(self, content: list[Any] | bytes) -> None:
        self.content = content

    def batches(self) -> list[Any]:
        if isinstance(self.content, list):
            return self.content
        batches: list[Any] = pickle.loads(self.content)  # of a worker of this process
        return batches


_INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_NUMPY_KNOWS = {*_INTEGERS, torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128}


@final
class _Pickler(pickle.Pickler):
    """Writes tensors with their bytes; torch's own way between processes is a shared file for each."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is not torch.Tensor or obj.dtype not in _NUMPY_KNOWS or obj.requires_grad:
            return NotImplemented
        if obj.device.type != "cpu" or obj.layout is not torch.strided or obj.is_conj() or obj.is_neg():
            return NotImplemented
        return torch.from_numpy, (obj.numpy(),)


def _dumped(batches: list[Any]) -> bytes:
    data = io.BytesIO()
    _Pickler(data, pickle.HIGHEST_PROTOCOL).dump(batches)
    return data.getvalue()
