"""Device meshes over real processes: what each rank reads, what is counted, what is written."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest

from streamsft.comm import Comm, patient
from streamsft.errors import CommError
from streamsft.mesh import comm_from_mesh, shard_from_mesh
from streamsft.metrics.aggregator import Aggregator
from streamsft.stream.interleave import Interleave
from streamsft.stream.loader import Loader
from streamsft.stream.packer import Packer
from tests.distributed.launch import launch
from tests.fakes import ListSource

STEPS = 4


def rows() -> ListSource:
    return ListSource("rows", [([n] * (3 + n % 5), [0] + [1] * (2 + n % 5)) for n in range(60)])


def read(mesh: Any) -> dict[str, Any]:
    """Some steps of this rank's batches, what is counted of them, and the gathered state."""
    packer = Packer(Interleave([rows()], seed=3), 16, lookahead=60)
    comm = comm_from_mesh(mesh)
    loader = Loader(packer, global_batch_size=8, dp=shard_from_mesh(mesh), lanes_per_step=4, lane_groups=2)
    aggregator = Aggregator(loader.sources, comm=comm)
    batches = []
    for batch in loader:
        aggregator.update(batch.stats)
        batches.append((batch.input_ids.tolist(), [list(map(tuple, pack)) for pack in batch.rows]))
        if batch.step == STEPS:
            break
    log = aggregator.log()
    return {
        "shard": shard_from_mesh(mesh),
        "comm": (comm.rank, comm.size),
        "patient": patient(comm).all_gather(np.array([comm.rank])).ravel().tolist(),
        "batches": batches,
        "counted": (log["data_rows/samples"], log["data_rows/tokens"]),
        "state": json.dumps(loader.gather_state(comm), sort_keys=True),
    }


def meshes(comm: Comm) -> dict[str, Any]:
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

    two = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    hybrid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    swapped = DeviceMesh("cpu", [[3, 1], [2, 0]], mesh_dim_names=("dp_replicate", "dp_shard"))
    refused = {}
    for name, call in (("dims", lambda: comm_from_mesh(two, ["fsdp"])), ("order", lambda: comm_from_mesh(swapped))):
        with pytest.raises(CommError) as caught:
            call()
        refused[name] = str(caught.value)
    return {"pairs": read(two["dp"]), "whole": read(two), "hybrid": read(hybrid), "refused": refused}


@pytest.fixture(scope="module")
def results() -> list[dict[str, Any]]:
    return launch(4, meshes)


def test_ranks_of_one_data_coordinate_get_the_same_batches_and_others_never(results: list[dict[str, Any]]) -> None:
    for mesh in ("pairs", "whole"):
        ranks = [result[mesh] for result in results]
        assert [(r["shard"].index, r["shard"].count) for r in ranks] == [(0, 2), (0, 2), (1, 2), (1, 2)]
        assert ranks[0]["batches"] == ranks[1]["batches"]
        assert ranks[2]["batches"] == ranks[3]["batches"]
        for (_, mine), (_, theirs) in zip(ranks[0]["batches"], ranks[2]["batches"], strict=True):
            assert not {row for pack in mine for row in pack} & {row for pack in theirs for row in pack}


def test_a_group_of_some_ranks_can_be_made_patient(results: list[dict[str, Any]]) -> None:
    assert [result["whole"]["patient"] for result in results] == [[0, 1]] * 4
    assert [result["hybrid"]["patient"] for result in results] == [[0, 1, 2, 3]] * 4


def test_each_batch_is_counted_once(results: list[dict[str, Any]]) -> None:
    expected = one_process()
    for result in results:
        for mesh in ("pairs", "whole", "hybrid"):
            assert result[mesh]["counted"] == expected["counted"]


def test_the_state_is_complete_and_that_of_one_process_on_every_rank(results: list[dict[str, Any]]) -> None:
    expected = one_process()["state"]
    assert {result[mesh]["state"] for result in results for mesh in ("pairs", "whole", "hybrid")} == {expected}


def test_several_data_dimensions_count_as_one(results: list[dict[str, Any]]) -> None:
    ranks = [result["hybrid"] for result in results]
    assert [(r["shard"].index, r["shard"].count) for r in ranks] == [(0, 4), (1, 4), (2, 4), (3, 4)]
    assert [r["comm"] for r in ranks] == [(0, 4), (1, 4), (2, 4), (3, 4)]
    for step in range(STEPS):
        packs = [pack for r in ranks for pack in r["batches"][step][0]]
        assert packs == one_process()["batches"][step][0]


def test_dimensions_that_are_not_there_and_ranks_in_disorder_are_refused(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert "('dp', 'tp')" in result["refused"]["dims"]
        assert "make the mesh with ranks that ascend" in result["refused"]["order"]


@cache
def one_process() -> dict[str, Any]:
    packer = Packer(Interleave([rows()], seed=3), 16, lookahead=60)
    loader = Loader(packer, global_batch_size=8, lanes_per_step=4, lane_groups=2)
    aggregator = Aggregator(loader.sources)
    batches = []
    for batch in loader:
        aggregator.update(batch.stats)
        batches.append((batch.input_ids.tolist(), None))
        if batch.step == STEPS:
            break
    log = aggregator.log()
    return {
        "batches": batches,
        "counted": (log["data_rows/samples"], log["data_rows/tokens"]),
        "state": json.dumps(loader.gather_state(), sort_keys=True),
    }
