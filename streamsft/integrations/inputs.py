"""Packs as keyword arguments of `transformers` models, which tell documents apart by their positions alone."""

from __future__ import annotations

from typing import Any

import torch

from streamsft.errors import ConfigError
from streamsft.stream.attention import refuse_branches
from streamsft.stream.collate import Batch

__all__ = ["check_attention", "packed_inputs", "restarting_positions"]

_MASKED = frozenset({"eager", "sdpa", "flex_attention"})


def check_attention(model: torch.nn.Module) -> bool:
    """Whether the packs of a batch must be laid end to end for `model`, as its flash attention needs it.

    With ``eager``, ``sdpa`` and ``flex_attention`` `transformers` makes masks from positions that restart, for each
    row of a batch. Its flash attention looks at positions only where there is one row.

    Raises:
        ConfigError: the model's attention is of a kind of which neither is known, so that documents might see others.
    """
    implementation = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if implementation in _MASKED:
        return False
    if implementation is not None and "flash" in implementation:
        return True
    raise ConfigError(
        f"{type(model).__name__} has attention {implementation!r}, which is not known to keep the documents of a "
        "pack apart; load the model with attn_implementation='sdpa', 'eager', 'flex_attention' or a flash attention"
    )


def restarting_positions(document_ids: torch.Tensor) -> torch.Tensor:
    """Positions from 0 in each run of equal `document_ids`, padding too; int64[packs, sequence_length] like these.

    Unlike `Batch.position_ids`, those of fragments of a split row restart, for a fragment that goes on where the
    document before it ends would be taken for a part of it. Relative positions, which is all that rotary embeddings
    see, stay.
    """
    slots = torch.arange(document_ids.shape[1], device=document_ids.device).expand_as(document_ids)
    begins = torch.ones_like(document_ids, dtype=torch.bool)
    begins[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
    return slots - torch.where(begins, slots, 0).cummax(dim=1).values


def packed_inputs(batch: Batch, *, flat: bool = False) -> dict[str, Any]:
    """The arguments under which a `transformers` causal language model sees each document alone, without a mask.

    Args:
        batch: some packs.
        flat: lay the packs end to end, as one row; see `check_attention`.

    Returns:
        ``input_ids``, ``labels`` and ``position_ids``, int64[packs, sequence_length] each, or
        int64[1, packs * sequence_length]; and the batch's images if there are any.

    Raises:
        ConfigError: a preference pair shares its prompt, which positions cannot say.
    """
    refuse_branches(batch.branch_ids)
    tensors = {
        "input_ids": batch.input_ids,
        "labels": batch.labels,
        "position_ids": restarting_positions(batch.document_ids),
    }
    if flat:
        tensors = {name: tensor.reshape(1, -1) for name, tensor in tensors.items()}
    return {**tensors, **batch.images}
