"""What the columns of tokenized rows are called."""

from __future__ import annotations

from collections.abc import Collection

__all__ = [
    "ATTENTION",
    "CHOSEN",
    "GRIDS",
    "IDS",
    "LABELS",
    "MASK",
    "PAIR",
    "PIXELS",
    "SHARED",
    "UNSUPERVISED",
    "holds_tokens",
]

IDS, MASK, LABELS, ATTENTION = "input_ids", "loss_mask", "labels", "attention_mask"
PIXELS, GRIDS = "pixel_values", "image_grid_thw"
SHARED, CHOSEN = "shared_length", "chosen_length"
"""Of a preference pair: the tokens that both answers see, and those of the chosen branch behind them."""

PAIR = "pair"
"""What the two travel under with their rows: int32[2]."""

UNSUPERVISED = -100
"""The label of what is not trained on."""


def holds_tokens(names: Collection[str]) -> bool:
    """Whether data with these columns are tokenized rows."""
    return IDS in names and (MASK in names or LABELS in names)
