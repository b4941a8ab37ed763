"""Documents that take a multiple of so many slots, as context parallelism and some kernels want them.

The slots that a document takes beyond its tokens are behind these and belong to it: positions go on, the document's
number is the same, and none of them is a label. Under a causal mask no token of the document sees them, and no other
document does; so what is computed of the tokens is what it would be without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from streamsft.types import Ints

if TYPE_CHECKING:
    from streamsft.stream.records import DocumentTable

__all__ = ["fill_gaps", "slots_taken"]


def slots_taken(lengths: Ints, align: int) -> Ints:
    """Slots that documents of these lengths take: the next multiples of `align`, int64[documents]."""
    return lengths if align == 1 else -(-lengths // align) * align


def fill_gaps(input_ids: Ints, table: DocumentTable, align: int, pad_id: int) -> None:
    """Put `pad_id` into the slots behind documents that they take beyond their tokens, in place.

    Args:
        input_ids: int64[packs, slots].
        table: the documents.
        align: what documents take a multiple of.
        pad_id: token id of padding.
    """
    gaps = -table.length % align
    ends = table.pack * input_ids.shape[1] + table.slot + table.length
    within = np.arange(int(gaps.sum())) - np.repeat(np.cumsum(gaps) - gaps, gaps)
    input_ids.reshape(-1)[np.repeat(ends, gaps) + within] = pad_id
