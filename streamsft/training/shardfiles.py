"""Where `torch.distributed.checkpoint` keeps tensors that ranks hold parts of: safetensors, and an index in JSON.

::

    rank-00000.safetensors   the parts that a rank wrote, each under ``<name>[<offset>]``
    …
    index.json               each tensor's dtype and shape; each part's offset, shape and file

torch's own file storage pickles its index, and unpickling runs what a file says; here nothing can be run. The parts
may be read by any number of ranks, each of which reads what it needs of them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    SavePlan,
    SavePlanner,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from streamsft.sources.filehash import hash_file

__all__ = ["INDEX", "ShardReader", "ShardWriter"]

INDEX = "index.json"
_VERSION = 1
_FILE = re.compile(r"rank-\d{5,}\.safetensors")


@final
class ShardWriter(StorageWriter):
    """Writes the parts of one rank, and on the rank that coordinates the index.

    Args:
        folder: an empty directory that all ranks see.
        rank: this rank.
        done: called by the coordinator when the parts of all ranks and the index are written, with the BLAKE2b-256 of
            each rank's file, hex, by name. What it raises fails the save on every rank.
    """

    def __init__(self, folder: Path, *, rank: int, done: Callable[[Mapping[str, str]], object]) -> None:
        self._folder = folder
        self._name = f"rank-{rank:05d}.safetensors"
        self._done = done

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        return None

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        return None

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write what `plan` gives this rank, and have it on the disk.

        Raises:
            TypeError: something is no tensor.
            OSError, SafetensorError: it cannot be written.
        """
        from safetensors.torch import save_file

        tensors: dict[str, torch.Tensor] = {}
        places: set[int] = set()
        results: list[WriteResult] = []
        for item in plan.items:
            if item.type == WriteItemType.BYTE_IO:
                raise TypeError(f"{item.index.fqn} is no tensor; only tensors are written")
            tensor = planner.resolve_data(item)
            assert isinstance(tensor, torch.Tensor)
            part = tensor.detach().cpu().contiguous()
            if (place := part.untyped_storage().data_ptr()) in places:
                part = part.clone()  # of tensors that share memory, safetensors writes none
            places.add(place)
            tensors[_key(item.index)] = part
            results.append(WriteResult(item.index, part.numel() * part.element_size(), self._name))
        if tensors:
            path = self._folder / self._name
            save_file(tensors, path)
            with path.open("rb") as file:
                os.fsync(file.fileno())
            digest = hash_file(str(path))
            results = [replace(result, storage_data=(self._name, digest)) for result in results]
        return _completed(results)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the index. The coordinator alone comes here, behind every rank's `write_data`."""
        files = {result.index: result.storage_data[0] for of_rank in results for result in of_rank}
        digests = dict(result.storage_data for of_rank in results for result in of_rank)
        tensors: dict[str, Any] = {}
        for name, tensor in metadata.state_dict_metadata.items():
            assert isinstance(tensor, TensorStorageMetadata)
            tensors[name] = {
                "dtype": str(tensor.properties.dtype).removeprefix("torch."),
                "shape": list(tensor.size),
                "parts": [
                    {
                        "offset": list(chunk.offsets),
                        "shape": list(chunk.sizes),
                        "file": files[MetadataIndex(name, chunk.offsets)],
                    }
                    for chunk in tensor.chunks
                ],
            }
        for name in sorted(digests):
            if not (self._folder / name).is_file():
                raise FileNotFoundError(f"{name} was written, and is not in {self._folder}: ranks see other disks")
        (self._folder / INDEX).write_text(json.dumps({"version": _VERSION, "tensors": tensors}), encoding="utf-8")
        self._done(digests)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False  # made by hand alone


@final
class ShardReader(StorageReader):
    """Reads what `ShardWriter` wrote to the directory `folder`.

    Raises:
        OSError: there is no index.
        ValueError: the index is damaged, or of another version.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        index = json.loads((folder / INDEX).read_bytes())
        if not isinstance(index, dict) or index.get("version") != _VERSION:
            raise ValueError(f"its version is not {_VERSION}")
        self._files: dict[MetadataIndex, str] = {}
        try:
            self.tensors = {name: self._described(name, given) for name, given in index["tensors"].items()}
        except (KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise ValueError(f"an entry of it is damaged: {error!r}") from error

    def _described(self, name: str, given: Any) -> TensorStorageMetadata:
        dtype = getattr(torch, given["dtype"])
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"{name} has dtype {given['dtype']!r}")
        chunks = []
        for part in given["parts"]:
            if not _FILE.fullmatch(part["file"]):
                raise ValueError(f"{name} has a part in {part['file']!r}")
            chunk = ChunkStorageMetadata(torch.Size(part["offset"]), torch.Size(part["shape"]))
            self._files[MetadataIndex(name, chunk.offsets)] = part["file"]
            chunks.append(chunk)
        return TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size(given["shape"]), chunks)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        return None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return Metadata(state_dict_metadata=dict(self.tensors))

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        return None

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copy what `plan` asks for into the tensors of this rank, file by file.

        Raises:
            TypeError: something is asked for that is no tensor.
            OSError, SafetensorError: a file is missing or damaged.
        """
        from safetensors import safe_open

        by_file: dict[str, list[Any]] = {}
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                raise TypeError(f"{item.storage_index.fqn} is no tensor; only tensors are read")
            by_file.setdefault(self._files[item.storage_index], []).append(item)
        for name, items in by_file.items():
            with safe_open(self._folder / name, framework="pt") as file:
                for item in items:
                    key = _key(item.storage_index)
                    if item.lengths:
                        part = file.get_slice(key)[_slices(item.storage_offsets, item.lengths)]
                    else:
                        part = file.get_tensor(key)
                    target = planner.resolve_tensor(item).detach()
                    target.copy_(part)
                    planner.commit_tensor(item, target)
        return _completed(None)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False


def _key(index: MetadataIndex) -> str:
    """What a part is called in its file."""
    assert index.offset is not None
    return f"{index.fqn}[{','.join(map(str, index.offset))}]"


def _slices(offsets: Iterable[int], lengths: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(offset, offset + length) for offset, length in zip(offsets, lengths, strict=True))


def _completed(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future
