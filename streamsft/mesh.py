"""Device meshes: which part of the data a rank is given, and with which ranks it shares out the work.

Ranks that differ only in dimensions that data is not divided over (tensor, context, pipeline parallel) read the same
data; those that count as one are the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from streamsft.comm import Comm, TorchComm
from streamsft.errors import CommError
from streamsft.types import Shard

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["comm_from_mesh", "shard_from_mesh"]

_DATA_DIMS = frozenset({"dp", "data", "dp_replicate", "dp_shard", "replicate", "shard", "fsdp", "ddp", "hsdp"})


def shard_from_mesh(mesh: DeviceMesh, dims: Sequence[str] | None = None) -> Shard:
    """This rank's data shard in a device mesh: ranks that differ only in other dimensions share it.

    Several data dimensions (replicate and shard, say) count as one: the outer one of the mesh changes slowest.

    Args:
        mesh: a mesh whose dimensions are named, or one with a single dimension.
        dims: the dimensions that data is divided over; by default those with a usual name
            (``dp``, ``dp_replicate``, ``dp_shard``, ``fsdp``, ``data``, …).

    Raises:
        CommError: no dimension is for data, or this rank is not in the mesh.
    """
    coordinate = _coordinate(mesh, "shard_from_mesh")
    index, count = 0, 1
    for i in _data_dims(mesh, dims, "shard_from_mesh"):
        index, count = index * mesh.size(i) + coordinate[i], count * mesh.size(i)
    return Shard(index, count)


def comm_from_mesh(mesh: DeviceMesh, dims: Sequence[str] | None = None) -> Comm:
    """The ranks that share the data out with this one: for `Aggregator`, `Loader.gather_state` and `evaluate`.

    They differ from this rank in the data dimensions alone, so what is gathered over them counts each batch once. In
    every such group the result is the same; to write it once, write on the process of rank 0. With several data
    dimensions it is collective over the group, which is made here: keep what it returns.

    Args:
        mesh: as for `shard_from_mesh`.
        dims: as for `shard_from_mesh`.

    Raises:
        CommError: as `shard_from_mesh`; or the mesh has the ranks of a group in another order than ascending.
    """
    coordinate = _coordinate(mesh, "comm_from_mesh")
    chosen = _data_dims(mesh, dims, "comm_from_mesh")
    place = tuple(slice(None) if i in chosen else coordinate[i] for i in range(mesh.ndim))
    ranks = mesh.mesh[place].flatten().tolist()
    if ranks != sorted(ranks):
        raise CommError(
            f"comm_from_mesh: along its data dimensions the mesh has the ranks {ranks}, and process groups count "
            "theirs in ascending order; make the mesh with ranks that ascend"
        )
    if len(chosen) == 1:
        return TorchComm(mesh.get_group(chosen[0]))
    import torch.distributed as dist

    return TorchComm(dist.new_group(ranks, use_local_synchronization=True))


def _coordinate(mesh: DeviceMesh, what: str) -> Sequence[int]:
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise CommError(f"{what}: this rank is not part of the mesh")
    return coordinate


def _data_dims(mesh: DeviceMesh, dims: Sequence[str] | None, what: str) -> list[int]:
    """Numbers of the dimensions that data is divided over, in the order of the mesh."""
    names = mesh.mesh_dim_names or ()
    chosen = [i for i, name in enumerate(names) if name in (_DATA_DIMS if dims is None else dims)]
    if dims is None and mesh.ndim == 1:
        chosen = [0]
    if not chosen or (dims is not None and len(chosen) != len(dims)):
        raise CommError(
            f"{what}: no such data dimensions; the mesh has {names or 'unnamed dimensions'}; "
            "pass dims=[...] with the names of those that data is divided over"
        )
    return chosen
