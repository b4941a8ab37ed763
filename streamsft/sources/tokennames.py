"""What the columns of tokenized rows are called."""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["ATTENTION", "GRIDS", "IDS", "LABELS", "MASK", "PIXELS", "UNSUPERVISED", "holds_tokens"]

IDS, MASK, LABELS, ATTENTION = "input_ids", "loss_mask", "labels", "attention_mask"
PIXELS, GRIDS = "pixel_values", "image_grid_thw"

UNSUPERVISED = -100
"""The label of what is not trained on."""


def holds_tokens(names: Collection[str]) -> bool:
    """Whether data with these columns are tokenized rows."""
    return IDS in names and (MASK in names or LABELS in names)
