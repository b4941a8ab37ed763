"""Training on real ranks: the same loss, gradients and packs whatever their number, and all of them stop together."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from streamsft.comm import Comm, LocalComm, ThreadComm, connect
from streamsft.errors import RunError
from streamsft.metrics.aggregator import Aggregator
from streamsft.stream.interleave import Interleave
from streamsft.stream.loader import Loader
from streamsft.stream.packer import Packer
from streamsft.training import snapshot
from streamsft.training.settings import RUN_METRICS, TrainResult, TrainSettings
from streamsft.training.stepping import Stepper, make_optimizer
from streamsft.types import Shard
from tests import processes
from tests.distributed.launch import launch
from tests.fakes import ListSource
from tests.training.runs import ListSink, make_loader, packs_by_step, run, small_model, weights

Array = NDArray[np.float64]


def gradients(comm: Comm, micro_batch_size: int) -> tuple[list[Array], list[Array], float]:
    """Two steps in float64: the second's gradients, the weights after it, and the record."""
    torch.set_num_threads(1)
    model = small_model().double()
    settings = TrainSettings(steps=9, run_dir=Path("unused"), micro_batch_size=micro_batch_size, grad_clip=None)
    loader = make_loader(batch=8, comm=comm)
    aggregator = Aggregator(loader.sources, run_metrics=RUN_METRICS, comm=comm)
    stepper = Stepper(model, make_optimizer(model, settings), settings, comm)
    for batch in loader:
        outcome = stepper.step(batch)
        aggregator.observe("train/loss", outcome.loss_sum / outcome.count, outcome.count)
        if batch.step == 2:
            break
    grads = [p.grad.numpy() for p in model.parameters() if p.grad is not None]
    return grads, [p.detach().numpy() for p in model.parameters()], aggregator.log()["train/loss"]


class Table(torch.nn.Module):
    """Each token's loss is given: 1 after token 0, 7 after token 1."""

    def __init__(self) -> None:
        super().__init__()
        one, seven = (-torch.log(torch.expm1(torch.tensor(x, dtype=torch.float64))) for x in (1.0, 7.0))
        self.logits = torch.nn.Parameter(torch.stack([torch.stack([one, one * 0]), torch.stack([one * 0, seven])]))

    def forward(self, input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        return self.logits[input_ids]


def uneven(comm: Comm) -> tuple[float, int, Array]:
    """One step of two packs: five tokens with loss 1, one token with loss 7."""
    rows = [([0] * 6, [0, 1, 1, 1, 1, 1]), ([1] * 6, [0, 0, 0, 0, 0, 1])]
    packer = Packer(Interleave([ListSource("rows", rows)]), 6, lookahead=0)
    loader = Loader(packer, global_batch_size=2, dp=Shard(comm.rank, comm.size), background=False)
    both = (batch for batch in loader if uneven_step(batch.step))
    batch = next(both)
    model = Table()
    settings = TrainSettings(steps=9, run_dir=Path("unused"), grad_clip=None)
    outcome = Stepper(model, make_optimizer(model, settings), settings, comm).step(batch)
    aggregator = Aggregator(loader.sources, run_metrics=RUN_METRICS, comm=comm)
    aggregator.observe("train/loss", outcome.loss_sum / outcome.count, outcome.count)
    assert model.logits.grad is not None
    return aggregator.log()["train/loss"], outcome.total_count, model.logits.grad.numpy()


def uneven_step(step: int) -> bool:
    """Whether the step has both rows, found on one process."""
    rows = [([0] * 6, [0, 1, 1, 1, 1, 1]), ([1] * 6, [0, 0, 0, 0, 0, 1])]
    packer = Packer(Interleave([ListSource("rows", rows)]), 6, lookahead=0)
    for batch in Loader(packer, global_batch_size=2, background=False):
        if batch.step == step:
            return {row for pack in batch.rows for _, row, _ in pack} == {0, 1}
    raise AssertionError


def on_two_ranks(comm: Comm) -> Any:
    return gradients(comm, 2), uneven(comm)


def test_loss_and_gradients_of_one_process_equal_those_of_two_with_two_micro_steps() -> None:
    (grads, ended, loss), (uneven_loss, tokens, uneven_gradient) = gradients(LocalComm(), 8), uneven(LocalComm())
    assert (uneven_loss, tokens) == (pytest.approx(2.0, abs=1e-12), 6)  # a mean of means would be 4
    for (theirs, their_end, their_loss), (their_uneven, their_tokens, their_gradient) in launch(2, on_two_ranks):
        assert len(theirs) == len(grads)
        for mine, other in zip([*grads, *ended], [*theirs, *their_end], strict=True):
            np.testing.assert_allclose(other, mine, rtol=0, atol=1e-12)
        assert their_loss == pytest.approx(loss, abs=1e-12)
        assert (their_uneven, their_tokens) == (pytest.approx(2.0, abs=1e-12), 6)
        np.testing.assert_allclose(their_gradient, uneven_gradient, rtol=0, atol=1e-12)


class Signalling:
    """A loader during whose step `step` this process gets a SIGTERM."""

    def __init__(self, loader: Loader, step: int) -> None:
        self._loader, self._at = loader, step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __iter__(self) -> Any:
        for batch in self._loader:
            if batch.step == self._at:
                os.kill(os.getpid(), signal.SIGTERM)
            yield batch


def test_packs_are_the_same_over_legs_of_other_numbers_of_ranks(tmp_path: Path) -> None:
    run(tmp_path / "whole", 12)
    for ranks, steps in ((2, 3), (1, 5), (4, 9), (2, 12)):
        ThreadComm.run(ranks, lambda comm, steps=steps: run(tmp_path / "legs", steps, comm=comm))
    whole, legs = packs_by_step(tmp_path / "whole"), packs_by_step(tmp_path / "legs")
    assert list(legs) == list(range(1, 13))
    assert legs == whole


def test_a_resume_on_fewer_ranks_rewinds_the_files_of_those_that_are_gone(tmp_path: Path) -> None:
    run(tmp_path / "whole", 9)
    with pytest.raises(KeyError, match="broken off"):
        ThreadComm.run(4, lambda comm: _broken_leg(comm, tmp_path / "legs"))
    assert max(packs_by_step(tmp_path / "legs")) > 4
    run(tmp_path / "legs", 9)
    assert packs_by_step(tmp_path / "legs") == packs_by_step(tmp_path / "whole")


def _broken_leg(comm: Comm, run_dir: Path) -> None:
    class Broken(ListSink):
        def write(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
            if step == 6:
                raise KeyError("broken off")

    run(run_dir, 9, comm=comm, sink=Broken())


def stopped_and_resumed(comm: Comm, folder: Path) -> tuple[TrainResult, TrainResult]:
    """A whole run, and one of which the last rank gets a SIGTERM in its second step."""
    torch.set_num_threads(1)
    run(folder / "whole", 6, "small", comm=comm)
    loader: Any = make_loader(comm=comm)
    if comm.rank == comm.size - 1:
        loader = Signalling(loader, 2)
    first = run(folder / "legs", 6, "small", comm=comm, loader=loader)
    return first, run(folder / "legs", 6, "small", comm=comm)


def test_a_signal_to_one_rank_stops_all_and_they_go_on_to_the_same_bits(tmp_path: Path) -> None:
    for first, second in launch(2, stopped_and_resumed, tmp_path):
        assert (first.stopped_by, first.steps) == ("SIGTERM", 2)
        assert (second.stopped_by, second.resumed_from, second.steps) == ("steps", 2, 6)
    assert weights(tmp_path / "legs") == weights(tmp_path / "whole")
    assert packs_by_step(tmp_path / "legs") == packs_by_step(tmp_path / "whole")


def full_in_its_second_leg(comm: Comm, run_dir: Path) -> str:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    run(run_dir, 4, "small", comm=comm)
    snapshot.save_weights = full
    with pytest.raises(RunError) as caught:
        run(run_dir, 8, "small", comm=comm)
    return str(caught.value)


def test_a_full_disk_ends_all_ranks_with_the_same_error(tmp_path: Path) -> None:
    first, second = launch(2, full_in_its_second_leg, tmp_path)
    assert "No space left on device (" in first
    assert second == f"rank 0: {first}"
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["latest", "step-00000004"]


def refused(comm: Comm, run_dir: Path) -> str:
    run(run_dir, 2, comm=comm)
    try:
        run(run_dir, 4, comm=comm, loader=make_loader(comm=comm, seed=8 if comm.rank else 7))
    except RunError as error:
        return str(error)
    return ""


def test_ranks_that_would_read_other_data_are_refused(tmp_path: Path) -> None:
    for message in ThreadComm.run(4, lambda comm: refused(comm, tmp_path)):
        assert "ranks 1, 2, 3 have another stream than rank 0" in message


class Failing:
    """A loader that fails on rank 1 in its third step."""

    def __init__(self, loader: Loader, rank: int) -> None:
        self._loader, self._rank = loader, rank

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __iter__(self) -> Any:
        for batch in self._loader:
            if self._rank == 1 and batch.step == 3:
                raise KeyError("rank 1 cannot go on")
            yield batch


@record
def failing_rank(run_dir: Path) -> None:
    comm = connect()
    run(run_dir, 1000, "small", comm=comm, loader=Failing(make_loader(comm=comm), comm.rank))


def launched_by_torchrun(run_dir: Path) -> None:
    """In a process of its own: what torchrun does, with ranks that are forks of it."""
    one_node = {"min_nodes": 1, "max_nodes": 1, "nproc_per_node": 2, "max_restarts": 0, "monitor_interval": 0.1}
    place = {"run_id": "failing", "rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}
    elastic_launch(LaunchConfig(**one_node, **place, start_method="fork"), failing_rank)(run_dir)


def test_an_exception_on_one_rank_ends_the_whole_launch(tmp_path: Path) -> None:
    ended = processes.run(launched_by_torchrun, tmp_path / "run")
    assert ended.returncode != 0
    assert "rank 1 cannot go on" in ended.stderr
