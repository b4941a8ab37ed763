"""Weights that are divided over the ranks (FSDP2), and the state of their optimizer."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from streamsft.comm import Comm, TorchComm, agreeing
from streamsft.errors import ConfigError, RunError
from streamsft.training.model import pick_device
from streamsft.training.parallel import broadcast_weights, sum_gradients

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

__all__ = [
    "add_gradients",
    "distributed_state",
    "is_divided",
    "optimizer_tensors",
    "place_model",
    "shard_model",
    "total_norm",
    "weight_tensors",
]

MODEL, OPTIMIZER = "model/", "optimizer/"
"""What the names of weights and of the optimizer's tensors begin with in a checkpoint."""


def place_model(model: torch.nn.Module, comm: Comm, *, divided: bool, new: bool) -> None:
    """Put `model` where it is trained, in training mode; collective.

    Args:
        model: on the CPU.
        comm: the ranks.
        divided: divide its weights over the ranks (`shard_model`).
        new: have every rank begin with the weights of rank 0.

    Raises:
        RunError, ConfigError: as `shard_model`. All ranks raise.
    """
    device = pick_device()
    if divided and isinstance(comm, TorchComm):
        device = comm.device  # in host memory where the group can send from there: no accelerator ever holds all of it
    with agreeing(comm):
        model.to(device).train()
    if new:
        broadcast_weights(model, comm)
    if divided:
        with agreeing(comm):
            shard_model(model, comm)
            model.to(pick_device())


def shard_model(model: torch.nn.Module, comm: Comm) -> None:
    """Divide the parameters of `model` over the ranks, in place, with `fully_shard`; collective.

    The units that are gathered together are the blocks that a transformers model names, or else the members of its
    module lists; the rest is one unit. On one rank the model stays as it is.

    Args:
        model: the same weights on every rank, none of which is divided yet.
        comm: the ranks.

    Raises:
        ConfigError: `comm` is of several ranks and no process group.
        RunError: the model is divided already.
    """
    if comm.size == 1:
        return
    if not isinstance(comm, TorchComm):
        raise ConfigError("train settings: parallel fsdp needs a process group (TorchComm), as torchrun makes one")
    from torch.distributed.fsdp import fully_shard  # takes two seconds to import, which a run of the data alone saves

    if any(map(_is_part, model.parameters())):
        raise RunError("the model is divided over ranks already; give it undivided, parallel fsdp does that")
    group = comm.group if comm.group is not None else dist.group.WORLD
    assert group is not None
    mesh = DeviceMesh.from_group(group, pick_device().type)
    for block in list(_blocks(model)):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def _blocks(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    named = set(getattr(model, "_no_split_modules", None) or ())
    found = [module for module in model.modules() if type(module).__name__ in named and module is not model]
    if found:
        yield from found
        return
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList):
            yield from (child for child in module if not isinstance(child, torch.nn.ModuleList | torch.nn.ModuleDict))


def is_divided(model: torch.nn.Module) -> TypeGuard[FSDPModule]:
    """Whether the weights of `model` are divided, so that ranks must make each pass of it together."""
    module = sys.modules.get("torch.distributed.fsdp")  # who has divided them has imported it
    return module is not None and isinstance(model, module.FSDPModule)


def _is_part(tensor: torch.Tensor | None) -> TypeGuard[DTensor]:
    """Whether `tensor` is divided over ranks."""
    module = sys.modules.get("torch.distributed.tensor")  # who has divided it has imported it
    return module is not None and isinstance(tensor, module.DTensor)


def add_gradients(parameters: Sequence[torch.nn.Parameter], comm: Comm) -> None:
    """Replace each gradient by its sum over the ranks; see `sum_gradients`. Of divided weights each rank has a part.

    The backward pass has averaged the gradients of divided weights over the ranks, which is undone.
    """
    for parameter in parameters:
        if _is_part(parameter):
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            assert _is_part(parameter.grad)
            parameter.grad.to_local().mul_(comm.size)
    sum_gradients([parameter for parameter in parameters if not _is_part(parameter)], comm)


def total_norm(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """The norm of all `gradients` together, the same on every rank; collective where they are divided."""
    norm = torch.nn.utils.get_total_norm(gradients)
    return norm.full_tensor() if _is_part(norm) else norm


def weight_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters and saved buffers by their names in a checkpoint: each once, and this rank's part of it."""
    for module in model.modules():
        if is_divided(module):
            module.reshard()  # a forward pass without a backward one leaves weights gathered
    saved = model.state_dict().keys()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in saved}
    return {f"{MODEL}{name}": tensor.detach() for name, tensor in {**dict(model.named_parameters()), **buffers}.items()}


def optimizer_tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The optimizer's state by its names in a checkpoint; `weight_tensors` comes before it."""
    return {
        f"{OPTIMIZER}{name}/{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def distributed_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> dict[str, Any]:
    """An optimizer's undivided `state` (its `state_dict`), divided as the parameters of `optimizer` are; collective."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    divided = dict(state["state"])
    for number, parameter in zip(numbers, parameters, strict=False):  # other sizes are refused when it is loaded
        if number in divided and _is_part(parameter):
            from torch.distributed.tensor import distribute_tensor

            mesh, placements = parameter.device_mesh, parameter.placements
            divided[number] = {
                key: distribute_tensor(value.to(mesh.device_type), mesh, placements)
                if isinstance(value, torch.Tensor) and value.shape == parameter.shape
                else value
                for key, value in divided[number].items()
            }
    return {**state, "state": divided}
