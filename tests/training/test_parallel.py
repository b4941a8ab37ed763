import pytest
import torch

from streamsft.comm import Comm, LocalComm, ThreadComm
from streamsft.training import parallel
from streamsft.training.parallel import broadcast_weights, sum_gradients

SHAPES = [(3, 5), (), (7,), (2, 2, 2)]


def parameters(rank: int) -> list[torch.nn.Parameter]:
    made = [torch.nn.Parameter(torch.zeros(shape, dtype=torch.float64)) for shape in SHAPES]
    made.append(torch.nn.Parameter(torch.zeros(4, dtype=torch.float32)))
    for number, parameter in enumerate(made):
        if (number + rank) % 3:  # some ranks lack some gradients
            parameter.grad = torch.full_like(parameter, number + 10.0**rank)
    return made


@pytest.mark.parametrize("bucket", [1, 100, 1 << 20])
def test_gradients_are_summed_whatever_the_buckets(bucket: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "BUCKET_BYTES", bucket)

    def body(comm: Comm) -> list[torch.Tensor | None]:
        mine = parameters(comm.rank)
        sum_gradients(mine, comm)
        return [p.grad for p in mine]

    expected = [
        sum((torch.zeros_like(p) if p.grad is None else p.grad for p in column), torch.zeros_like(column[0]))
        for column in zip(*(parameters(rank) for rank in range(3)), strict=True)
    ]
    for gradients in ThreadComm.run(3, body):
        assert all(g is not None and torch.equal(g, e) for g, e in zip(gradients, expected, strict=True))


def test_a_gradient_that_is_missing_everywhere_becomes_zeros_on_one_rank_as_on_many() -> None:
    alone = torch.nn.Parameter(torch.ones(3))
    sum_gradients([alone], LocalComm())
    assert alone.grad is not None
    assert not alone.grad.any()


def test_all_ranks_get_the_weights_of_the_first() -> None:
    def body(comm: Comm) -> torch.nn.Module:
        torch.manual_seed(0)
        module = torch.nn.BatchNorm1d(4)
        with torch.no_grad():
            module.weight += comm.rank
            module.running_mean += comm.rank
        module.register_buffer("flags", torch.tensor([comm.rank == 0, comm.rank == 1]))
        broadcast_weights(module, comm)
        return module

    first, *others = ThreadComm.run(3, body)
    for other in others:
        for name, tensor in first.state_dict().items():
            assert torch.equal(tensor, other.state_dict()[name]), name
    assert first.state_dict()["flags"].tolist() == [True, False]
