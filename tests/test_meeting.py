"""Ranks of one start of a job find each other in a store that is full of what earlier starts have left."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from streamsft.errors import CommError
from streamsft.meeting import joined

SIZE = 3


def _start(store: dist.Store, order: list[int]) -> list[int]:
    """What each rank is told, where ranks come in the given order."""
    with ThreadPoolExecutor(SIZE) as pool:
        return [told.result(60) for told in [pool.submit(joined, store, rank, SIZE) for rank in order]]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0]])
def test_ranks_of_a_start_get_one_number_that_no_other_start_had(order: list[int]) -> None:
    store = dist.HashStore()
    starts = [_start(store, order) for _ in range(4)]
    assert all(len(set(start)) == 1 for start in starts)
    assert len({start[0] for start in starts}) == 4


@pytest.mark.parametrize("died", [0, 1, 2])
def test_processes_that_died_while_they_waited_mislead_nobody(died: int) -> None:
    store = dist.HashStore()
    first = _start(store, [0, 1, 2])[0]
    for _ in range(2):
        store.add(f"starts/{died}", 1)  # all that one leaves which came and was never answered
    second = set(_start(store, [1, 2, 0]))
    assert len(second) == 1
    assert first not in second


def test_a_rank_that_is_told_the_number_of_a_dead_process_is_told_again() -> None:
    store = dist.HashStore()
    store.add("starts/1", 1)  # a dead one, which rank 0 answers first
    with ThreadPoolExecutor(2) as pool:
        zero = pool.submit(joined, store, 0, 2)
        store.wait(["start/1/1"])
        assert pool.submit(joined, store, 1, 2).result(60) == zero.result(60)


def test_ranks_that_do_not_come_are_named() -> None:
    store = dist.HashStore()
    with pytest.raises(CommError, match=r"ranks 1, 2 of 3 have not started within 0\.05 s"):
        joined(store, 0, 3, timeout=0.05)
