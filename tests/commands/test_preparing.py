"""Sources are made by one rank of each node, and the others wait for it however long it takes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from streamsft.build_sources import build_sources
from streamsft.comm import Comm, TorchComm
from streamsft.commands import preparing
from streamsft.commands.preparing import prepare_sources
from streamsft.config import load_config
from streamsft.encoders import Encoders
from streamsft.text.workers import LocalEngine
from tests.distributed.launch import launch
from tests.pipelines import small_config


def prepared(comm: Comm, config: dict[str, Any]) -> dict[str, str]:
    read = load_config(config)
    return {name: source.fingerprint for name, source in prepare_sources(read, Encoders(read), comm).items()}


def on_nodes_of_two(comm: Comm, configs: list[dict[str, Any]]) -> tuple[int, dict[str, str]]:
    """How many sources a rank tokenizes, and all of them."""
    tokenized, mapped = 0, LocalEngine.map

    def counted(*args: Any, **options: Any) -> Iterator[Any]:
        nonlocal tokenized
        tokenized += 1
        return mapped(*args, **options)

    LocalEngine.map = counted  # type: ignore[method-assign]
    os.environ["LOCAL_RANK"] = str(comm.rank % 2)
    found = prepared(comm, configs[comm.rank // 2])
    return tokenized, found


def test_one_rank_of_each_node_tokenizes(tmp_path: Path) -> None:
    ranks = launch(4, on_nodes_of_two, [small_config(tmp_path / f"node-{number}") for number in (0, 1)])
    assert [tokenized for tokenized, _ in ranks] == [3, 0, 3, 0]
    assert len(ranks[0][1]) == 3
    assert all(found == ranks[0][1] for _, found in ranks)


def longer_than_the_timeout(comm: Comm, config: dict[str, Any]) -> dict[str, str]:
    """As rank 0 of a group tokenizes, the group's timeout passes: seen by a collective that rank 1 does not come to."""
    import torch.distributed as dist

    group = dist.new_group()  # which the ranks may take their time to form
    assert group is not None
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1), group)

    def slow(*args: Any, **options: Any) -> dict[str, Any]:
        if comm.rank == 0:
            with pytest.raises(RuntimeError, match=r"[Tt]ime"):
                dist.barrier(group)
        return build_sources(*args, **options)

    preparing.build_sources = slow
    return prepared(TorchComm(group), config)


def test_tokenizing_may_take_longer_than_the_timeout_of_the_ranks_group(tmp_path: Path) -> None:
    first, second = launch(2, longer_than_the_timeout, small_config(tmp_path))
    assert len(first) == 3
    assert first == second
