"""Weights divided over real ranks: gradients, norms and steps are those of one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from streamsft.comm import LocalComm, ThreadComm, TorchComm, current
from streamsft.errors import ConfigError, RunError
from streamsft.stream.collate import IGNORE_INDEX, Batch
from streamsft.training.settings import TrainSettings
from streamsft.training.sharding import place_model, shard_model
from streamsft.training.stepping import Stepper, make_optimizer
from tests.training.forks import in_ranks
from tests.training.runs import make_loader, small_model


class Blocks(torch.nn.Module):
    """A model of no library, whose blocks are of odd sizes; one has fewer rows than there are ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(301, 5)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(5, 1), torch.nn.Linear(1, 5)])
        self.out = torch.nn.Linear(5, 301)
        self.unused = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("scale", torch.full((2,), 0.5))

    def forward(self, input_ids: torch.Tensor, **_: object) -> torch.Tensor:
        hidden = self.embed(input_ids)
        for layer in self.layers:
            hidden = torch.tanh(layer(hidden)) * self.scale[0]
        return self.out(hidden)


def two_steps(model: torch.nn.Module, grad_clip: float | None = 0.5) -> tuple[list[float], list[torch.Tensor]]:
    """The norms of two steps in float64, and the weights behind them; half of the packs of the first have no label."""
    comm = current()
    place_model(model.double(), comm, divided=True, new=True)
    settings = TrainSettings(steps=9, run_dir=Path("unused"), micro_batch_size=2, grad_clip=grad_clip, lr=0.1, warmup=0)
    stepper = Stepper(model, make_optimizer(model, settings), settings, comm)
    norms = []
    for batch in make_loader(batch=8, comm=comm, background=False):
        if batch.step == 1:
            unsupervise(batch, comm.rank, comm.size)
        norms.append(stepper.step(batch).gradient_norm)
        if batch.step == 2:
            break
    return norms, [whole(p).detach().clone() for p in model.parameters()]


def unsupervise(batch: Batch, rank: int, size: int) -> None:
    """Take the labels of the packs behind the first half of a step's, of which this is a rank's part."""
    first = rank * len(batch)
    for pack in range(len(batch)):
        if first + pack >= size * len(batch) // 2:
            batch.labels[pack] = IGNORE_INDEX
            batch.documents.table.supervised[batch.documents.table.pack == pack] = 0


def whole(parameter: torch.Tensor) -> torch.Tensor:
    full = getattr(parameter, "full_tensor", None)
    return parameter if full is None else full()


@pytest.mark.parametrize("make", [small_model, Blocks])
def test_steps_of_two_ranks_are_those_of_one_process(make: type[Blocks]) -> None:
    torch.manual_seed(0)
    norms, weights = two_steps(make())

    def rank() -> None:
        torch.manual_seed(current().rank)  # all begin with those of rank 0
        their_norms, their_weights = two_steps(make())
        assert their_norms == pytest.approx(norms, rel=1e-10)
        for mine, theirs in zip(weights, their_weights, strict=True):
            torch.testing.assert_close(theirs, mine, rtol=0, atol=1e-12)

    assert in_ranks(2, rank) == [0, 0]


def test_a_group_that_is_no_process_group_is_refused() -> None:
    def body(comm: object) -> str:
        assert isinstance(comm, ThreadComm)
        with pytest.raises(ConfigError) as caught:
            shard_model(small_model(), comm)
        return str(caught.value)

    assert all("needs a process group" in message for message in ThreadComm.run(2, body))


def test_a_model_that_is_divided_already_is_refused() -> None:
    def rank() -> None:
        model = Blocks()
        shard_model(model, TorchComm())
        with pytest.raises(RunError, match="divided over ranks already"):
            shard_model(model, TorchComm())

    assert in_ranks(2, rank) == [0, 0]


def test_on_one_rank_a_model_stays_as_it_is() -> None:
    model = Blocks()
    shard_model(model, LocalComm())
    assert type(model) is Blocks
