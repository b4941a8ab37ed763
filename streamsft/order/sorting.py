"""Sorting small integers."""

from __future__ import annotations

import numpy as np

from streamsft.types import Ints

__all__ = ["stable_order"]


def stable_order(values: Ints, most: int) -> Ints:
    """The order that sorts integers along the last axis, equal ones as they stand: int64, of the shape of `values`.

    Args:
        values: int64, each from 0 to `most`.
        most: where 16 bits hold it numpy sorts by radix, in a fifth of the time.
    """
    small = values.astype(np.uint16) if most <= np.iinfo(np.uint16).max else values
    return np.argsort(small, axis=-1, kind="stable")
