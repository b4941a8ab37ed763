"""Gradients and weights over the data-parallel ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from streamsft.comm import Comm, sum_tensors

__all__ = ["broadcast_weights", "sum_gradients"]

BUCKET_BYTES = 64 << 20
"""Gradients travel in flat pieces of about this many bytes: large enough to fill the links, small to hold twice."""


def sum_gradients(parameters: Sequence[torch.nn.Parameter], comm: Comm) -> None:
    """Replace each gradient by its sum over the ranks. A missing one counts, and becomes, zeros on every rank."""
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    if comm.size == 1:
        return
    for bucket in _buckets(parameters):
        gradients = [parameter.grad for parameter in bucket if parameter.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        sum_tensors(comm, [flat])
        for gradient, piece in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
            gradient.copy_(piece.view_as(gradient))


def broadcast_weights(model: torch.nn.Module, comm: Comm) -> None:
    """Give every rank the weights and buffers of rank 0."""
    if comm.size == 1:
        return
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            flat = tensor.detach().reshape(-1).clone()
            flat = flat.to(torch.uint8) if flat.dtype == torch.bool else flat
            if comm.rank:
                flat.zero_()
            sum_tensors(comm, [flat])
            tensor.copy_(flat.view_as(tensor))


def _buckets(parameters: Iterable[torch.nn.Parameter]) -> Iterator[Sequence[torch.nn.Parameter]]:
    """Group parameters of one dtype and device into runs of about `BUCKET_BYTES`, in order."""
    bucket: list[torch.nn.Parameter] = []
    size = 0
    for parameter in parameters:
        other = bucket and (bucket[0].dtype, bucket[0].device) != (parameter.dtype, parameter.device)
        if bucket and (other or size >= BUCKET_BYTES):
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += parameter.numel() * parameter.element_size()
    if bucket:
        yield bucket
