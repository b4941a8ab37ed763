"""The launcher of real ranks: results in order, failures of one rank raised, silent deaths named."""

from __future__ import annotations

import os

import numpy as np
import pytest

from streamsft.comm import Comm
from tests.distributed.launch import launch


def add_up(comm: Comm, number: int) -> tuple[int, int]:
    return comm.rank, int(comm.all_gather(np.array([number + comm.rank])).sum())


def fail_on_rank_one(comm: Comm) -> None:
    if comm.rank == 1:
        raise KeyError("only here")
    comm.barrier()


def die_on_rank_one(comm: Comm) -> None:
    if comm.rank == 1:
        os._exit(3)
    comm.barrier()


def test_results_come_in_rank_order() -> None:
    assert launch(2, add_up, 10) == [(0, 21), (1, 21)]


def test_a_failing_rank_ends_the_others_and_its_error_is_raised() -> None:
    with pytest.raises(KeyError, match="only here") as caught:
        launch(2, fail_on_rank_one)
    assert "on rank 1" in caught.value.__notes__[0]


def test_a_dying_process_is_named() -> None:
    with pytest.raises(Exception, match=r"rank 1 ended with exit code 3|peer|reset|closed"):
        launch(2, die_on_rank_one)
