"""The comm seam over real processes."""

from __future__ import annotations

import numpy as np
import pytest

from streamsft.comm import Comm, TorchComm, agreeing, current, gather_bytes, sum_tensors
from streamsft.errors import CommError, StateError
from streamsft.mesh import shard_from_mesh
from tests.distributed.launch import launch


def exchange(comm: Comm) -> tuple[list[object], ...]:
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    gathered = [
        comm.all_gather(np.array([comm.rank, 7], dtype)).ravel().tolist() for dtype in (np.uint8, np.int64, np.float64)
    ]
    payloads = gather_bytes(comm, b"x" * comm.rank)
    tensor = torch.tensor([1.0 + comm.rank])
    sum_tensors(comm, [tensor])
    try:
        with agreeing(comm):
            if comm.rank == 2:
                raise StateError("lane 3 is missing")
    except StateError as error:
        message = str(error)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    shards = [shard_from_mesh(mesh), shard_from_mesh(mesh, ["dp", "tp"])]
    try:
        shard_from_mesh(mesh, ["fsdp"])
    except CommError as error:
        refused = str(error)
    pair = TorchComm(mesh["tp"].get_group())
    return gathered, payloads, [tensor.item(), message, refused, current().size, pair.size, pair.rank], list(shards)


@pytest.fixture(scope="module")
def results() -> list[tuple[list[object], ...]]:
    return launch(4, exchange)


def test_arrays_of_every_dtype_are_gathered_in_rank_order(results: list[tuple[list[object], ...]]) -> None:
    assert all(r[0] == [[0, 7, 1, 7, 2, 7, 3, 7]] * 3 for r in results)
    assert all(r[1] == [b"", b"x", b"xx", b"xxx"] for r in results)


def test_tensors_are_summed_over_ranks(results: list[tuple[list[object], ...]]) -> None:
    assert [r[2][0] for r in results] == [10.0] * 4


def test_a_failure_of_one_rank_is_raised_on_all(results: list[tuple[list[object], ...]]) -> None:
    assert [r[2][1] for r in results] == [
        "rank 2: lane 3 is missing",
        "rank 2: lane 3 is missing",
        "lane 3 is missing",
        "rank 2: lane 3 is missing",
    ]


def test_ranks_that_differ_in_other_mesh_dimensions_share_their_data(results: list[tuple[list[object], ...]]) -> None:
    assert [(s.index, s.count) for s in (r[3][0] for r in results)] == [(0, 2), (0, 2), (1, 2), (1, 2)]
    assert [(s.index, s.count) for s in (r[3][1] for r in results)] == [(0, 4), (1, 4), (2, 4), (3, 4)]
    assert all("('dp', 'tp')" in str(r[2][2]) for r in results)


def test_a_subgroup_counts_its_own_ranks(results: list[tuple[list[object], ...]]) -> None:
    assert [r[2][3:] for r in results] == [[4, 2, 0], [4, 2, 1], [4, 2, 0], [4, 2, 1]]
