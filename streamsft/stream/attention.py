"""Which slots of a pack may see which: masks and segment borders for packed attention.

================================ ==============================================================================
attention                        what it takes
================================ ==============================================================================
scaled_dot_product_attention     `block_causal_mask`, bool; added to scores as `Batch.model_inputs(dtype)`
flex_attention                   `flex_block_mask`
variable-length kernels          `cu_seqlens`: borders of documents over all packs, end to end
transformers, by its keywords    `Batch.model_inputs()` with a mask, `Batch.packed_inputs()` with borders
================================ ==============================================================================

All are made on the training side from `Batch.document_ids`, on its device, never in a loader worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

__all__ = ["block_causal_mask", "cu_seqlens", "flex_block_mask"]


def block_causal_mask(document_ids: torch.Tensor) -> torch.Tensor:
    """The mask under which each document sees itself alone, causally.

    Args:
        document_ids: int64[packs, sequence_length]; 0 on padding.

    Returns:
        bool[packs, 1, sequence_length, sequence_length], True where a query (third axis) sees a key (fourth).
        Padding sees padding, so that no row is all False and a softmax over it stays finite.
    """
    same = document_ids[:, None, :, None] == document_ids[:, None, None, :]
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


def flex_block_mask(document_ids: torch.Tensor) -> BlockMask:
    """The same mask as a FlexAttention `BlockMask` for ``[packs, heads, sequence_length, head_dim]`` inputs."""
    from torch.nn.attention.flex_attention import create_block_mask

    packs, slots = document_ids.shape

    def visible(pack: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (document_ids[pack, query] == document_ids[pack, key]) & (query >= key)

    return create_block_mask(visible, packs, None, slots, slots, device=str(document_ids.device))
