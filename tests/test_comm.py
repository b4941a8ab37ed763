"""The comm seam in one process: what ranks exchange, how they agree on failures, who a worker is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from streamsft.comm import (
    Comm,
    LocalComm,
    ThreadComm,
    TorchComm,
    agree,
    agreeing,
    connect,
    current,
    gather_bytes,
    gather_json,
    sum_tensors,
    worker_shard,
)
from streamsft.errors import CommError, EmptySourceError
from streamsft.types import Shard


def test_a_group_of_one_gathers_its_own_array() -> None:
    mine = np.arange(3)
    everyone = LocalComm().all_gather(mine)
    assert everyone.tolist() == [[0, 1, 2]]
    everyone[0, 0] = 9
    assert mine[0] == 0
    assert isinstance(LocalComm(), Comm)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float64])
def test_threads_gather_in_rank_order_again_and_again(dtype: type) -> None:
    def body(comm: ThreadComm) -> list[list[int]]:
        return [comm.all_gather(np.array([comm.rank, i], dtype)).ravel().tolist() for i in range(20)]

    assert ThreadComm.run(3, body) == [[[0, i, 1, i, 2, i] for i in range(20)]] * 3


def test_arrays_of_different_shape_are_refused_on_all_ranks() -> None:
    def body(comm: ThreadComm) -> str:
        with pytest.raises(CommError, match="different shape or dtype"):
            comm.all_gather(np.zeros(comm.rank + 1))
        return "refused"

    assert ThreadComm.run(2, body) == ["refused"] * 2


def test_a_failing_thread_ends_the_waiting_of_the_others() -> None:
    def body(comm: ThreadComm) -> None:
        if comm.rank == 1:
            raise KeyError("only here")
        comm.barrier()

    with pytest.raises(KeyError, match="only here"):
        ThreadComm.run(3, body)


def test_a_rank_that_stays_away_is_reported() -> None:
    def body(comm: ThreadComm) -> None:
        if comm.rank == 0:
            comm.barrier()

    with pytest.raises(CommError, match="rank 0 of 2"):
        ThreadComm.run(2, body, timeout=0.05)


def test_bytes_and_json_of_different_sizes_travel() -> None:
    def body(comm: ThreadComm) -> tuple[list[bytes], list[object]]:
        payload = b"\0x" * (3 * comm.rank)
        return gather_bytes(comm, payload), gather_json(comm, {"rank": comm.rank, "text": "é" * comm.rank})

    expected = ([b"", b"\0x" * 3, b"\0x" * 6], [{"rank": r, "text": "é" * r} for r in range(3)])
    assert ThreadComm.run(3, body) == [expected] * 3


def test_agreeing_raises_on_all_ranks_with_the_class_and_the_rank() -> None:
    def body(comm: ThreadComm) -> BaseException:
        with pytest.raises(EmptySourceError) as caught, agreeing(comm):
            draw(comm.rank)
        return caught.value

    def draw(rank: int) -> None:
        if rank == 1:
            raise EmptySourceError("source 'a': no rows")

    errors = ThreadComm.run(3, body)
    assert [str(e) for e in errors] == [
        "rank 1: source 'a': no rows",
        "source 'a': no rows",
        "rank 1: source 'a': no rows",
    ]


def test_an_error_that_is_not_ours_becomes_a_comm_error_elsewhere() -> None:
    def body(comm: ThreadComm) -> str:
        with pytest.raises((CommError, ZeroDivisionError)) as caught, agreeing(comm):
            assert 1 // comm.rank
        return f"{type(caught.value).__name__}: {caught.value}"

    mine, other = ThreadComm.run(2, body)
    assert mine.startswith("ZeroDivisionError")
    assert other.startswith("CommError: rank 0: ZeroDivisionError: ")


def test_a_very_long_or_odd_message_is_cut_not_lost() -> None:
    def body(comm: ThreadComm) -> str:
        with pytest.raises(CommError) as caught:
            agree(comm, CommError("\ud800é" * 5000) if comm.rank == 0 else None)
        return str(caught.value)

    assert ThreadComm.run(2, body)[1].startswith("rank 0: ?é?é")


def test_agreement_without_an_error_says_nothing() -> None:
    ThreadComm.run(2, lambda comm: agree(comm, None))
    agree(LocalComm(), None)
    with pytest.raises(KeyError):
        agree(LocalComm(), KeyError("mine"))


def test_tensors_are_summed_in_place() -> None:
    import torch

    def body(comm: ThreadComm) -> list[float]:
        tensors = [torch.full((2,), float(comm.rank + 1)), torch.ones(1)]
        sum_tensors(comm, tensors)
        return [t.sum().item() for t in tensors]

    assert ThreadComm.run(2, body) == [[6.0, 2.0]] * 2
    alone = torch.ones(1)
    sum_tensors(LocalComm(), [alone])
    assert alone.item() == 1.0


def test_without_a_process_group_this_process_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert isinstance(current(), LocalComm)
    assert isinstance(connect(), LocalComm)
    with pytest.raises(CommError, match="not initialised"):
        TorchComm()


def test_a_worker_takes_its_part_of_the_shard() -> None:
    from torch.utils.data import DataLoader, IterableDataset

    class Who(IterableDataset[tuple[int, int]]):
        def __iter__(self) -> Iterator[tuple[int, int]]:
            mine = worker_shard(Shard(1, 2))
            yield mine.index, mine.count

    loader = DataLoader(Who(), batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert [tuple(x) for x in loader] == [(2, 4), (3, 4)]
    assert worker_shard(Shard(1, 2)) == Shard(1, 2)


def test_neither_comm_nor_metrics_import_torch() -> None:
    code = (
        "import sys, streamsft.comm as c, streamsft.metrics.aggregator, streamsft.metrics.sinks, "
        "streamsft.metrics.console; from streamsft.types import Shard; c.current(); c.disconnect(); "
        "c.worker_shard(Shard()); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
