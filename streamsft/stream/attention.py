"""Which slots of a pack may see which: masks and segment borders for packed attention.

================================ ==============================================================================
attention                        what it takes
================================ ==============================================================================
scaled_dot_product_attention     `block_causal_mask`, bool; added to scores as `Batch.model_inputs(dtype)`
flex_attention                   `flex_block_mask`
variable-length kernels          `cu_seqlens`: borders of documents over all packs, end to end
transformers, by its keywords    `Batch.model_inputs()` with a mask, `Batch.packed_inputs()` with borders
================================ ==============================================================================

All are made on the training side from `Batch.document_ids`, on its device, never in a loader worker. Preference pairs
that share their prompt need `Batch.branch_ids` too, and attention by one of the first two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import torch

from streamsft.errors import ConfigError

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

__all__ = ["block_causal_mask", "cu_seqlens", "flex_block_mask", "flex_mask_mod", "refuse_branches"]

MaskMod: TypeAlias = "Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]"


def block_causal_mask(document_ids: torch.Tensor, branch_ids: torch.Tensor | None = None) -> torch.Tensor:
    """The mask under which each document sees itself alone, causally, and a branch of it no other branch.

    Args:
        document_ids: int64[packs, sequence_length]; 0 on padding.
        branch_ids: int64[packs, sequence_length], as in `Batch`: a branch sees itself and what has branch 0.

    Returns:
        bool[packs, 1, sequence_length, sequence_length], True where a query (third axis) sees a key (fourth).
        Padding sees padding, so that no row is all False and a softmax over it stays finite.
    """
    same = document_ids[:, None, :, None] == document_ids[:, None, None, :]
    if branch_ids is not None:
        key = branch_ids[:, None, None, :]
        same &= (key == 0) | (key == branch_ids[:, None, :, None])
    return same.tril_()


def cu_seqlens(document_ids: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Borders of the documents for variable-length attention kernels, over the packs laid end to end.

    Args:
        document_ids: int64[packs, sequence_length]; 0 on padding.

    Returns:
        int32[segments + 1], strictly increasing from 0 to packs * sequence_length, the padding of a pack being
        a segment of its own; and the longest segment's length in slots.
    """
    packs, slots = document_ids.shape
    changes = document_ids[:, 1:] != document_ids[:, :-1]
    begins = torch.cat([torch.ones(packs, 1, dtype=torch.bool, device=document_ids.device), changes], dim=1)
    starts = begins.flatten().nonzero().flatten()
    borders = torch.cat([starts, starts.new_tensor([packs * slots])])
    return borders.to(torch.int32), int(borders.diff().max())


def flex_mask_mod(document_ids: torch.Tensor, branch_ids: torch.Tensor | None = None) -> MaskMod:
    """The same mask as a FlexAttention `mask_mod`: a function of the numbers of pack, head, query and key."""

    def visible(pack: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (document_ids[pack, query] == document_ids[pack, key]) & (query >= key)

    if branch_ids is None:
        return visible

    def branched(pack: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        branch = branch_ids[pack, key]
        return visible(pack, head, query, key) & ((branch == 0) | (branch == branch_ids[pack, query]))

    return branched


def flex_block_mask(document_ids: torch.Tensor, branch_ids: torch.Tensor | None = None) -> BlockMask:
    """The same mask as a FlexAttention `BlockMask` for ``[packs, heads, sequence_length, head_dim]`` inputs."""
    from torch.nn.attention.flex_attention import create_block_mask

    packs, slots = document_ids.shape
    mask_mod = flex_mask_mod(document_ids, branch_ids)
    return create_block_mask(mask_mod, packs, None, slots, slots, device=str(document_ids.device))


def refuse_branches(branch_ids: torch.Tensor | None) -> None:
    """Refuse preference pairs that share their prompt where attention is told by borders or positions.

    Raises:
        ConfigError: there are some.
    """
    if branch_ids is not None:
        raise ConfigError(
            "the batch has preference pairs that share their prompt, which needs a mask: use `Batch.model_inputs` or "
            "`flex_block_mask`, or have the pairs side by side (packing.pairs: side_by_side, or SideBySide(store))"
        )
