"""Two tokenized conversations that answer one prompt, as one row; see `streamsft.sources.pairs`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from streamsft.text.conversation import Conversation, Pair, RowRejected
from streamsft.text.masks import Encoded

__all__ = ["encode_pairs"]

Encode: TypeAlias = "Callable[[Sequence[Conversation | RowRejected]], list[Encoded | RowRejected]]"


def encode_pairs(encode: Encode, items: Sequence[Conversation | Pair | RowRejected]) -> list[Encoded | RowRejected]:
    """What `encode` makes of `items`, in order and at once, the conversations of each pair joined."""
    flat: list[Conversation | RowRejected] = []
    for item in items:
        flat += [item.chosen, item.rejected] if isinstance(item, Pair) else [item]
    found = iter(encode(flat))
    return [_joined(next(found), next(found)) if isinstance(item, Pair) else next(found) for item in items]


def _joined(chosen: Encoded | RowRejected, rejected: Encoded | RowRejected) -> Encoded | RowRejected:
    """The row of a pair: the chosen conversation whole, and of the rejected one what is behind the shared tokens.

    Shared is what both begin with, up to the last token before the first that is trained on.
    """
    for name, side in (("chosen", chosen), ("rejected", rejected)):
        if isinstance(side, RowRejected):
            return RowRejected(side.reason, f"{name}: {side.detail}")
    assert isinstance(chosen, Encoded)
    assert isinstance(rejected, Encoded)
    both = min(len(chosen.input_ids), len(rejected.input_ids))
    differing = np.flatnonzero(chosen.input_ids[:both] != rejected.input_ids[:both])
    same = int(differing[0]) if len(differing) else both
    if same == len(chosen.input_ids) == len(rejected.input_ids):
        return RowRejected("equal_answers", f"both answers are the same {same} tokens")
    trained = min(int(np.argmax(side.loss_mask)) for side in (chosen, rejected))
    shared = min(same, trained - 1)
    if shared < 1:
        return RowRejected("no_common_prompt", "no token in front of the answers is the same in both")
    return Encoded(
        input_ids=np.concatenate([chosen.input_ids, rejected.input_ids[shared:]]),
        loss_mask=np.concatenate([chosen.loss_mask, rejected.loss_mask[shared:]]),
        seams=chosen.seams + rejected.seams,
        pair=(shared, len(chosen.input_ids) - shared),
    )
