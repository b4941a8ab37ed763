"""Sums of floats that do not depend on the order of adding, to far below 1e-12.

A sum is kept as an unevaluated pair ``high + low`` of float64, about 106 bits. The pieces are classical: TwoSum
(Knuth), Dekker's product with Veltkamp's splitting, and ExtractVector from Rump, Ogita and Oishi, *Accurate
floating-point summation part I* (SIAM J. Sci. Comput. 31, 2008), which cuts a vector into a part whose sum is
exact in float64 and a small remainder.
"""

from __future__ import annotations

import numpy as np

from streamsft.types import Floats, Ints

__all__ = ["add_pair", "group_sums", "squares"]

_SPLITTER = 2.0**27 + 1.0


def add_pair(high: Floats, low: Floats, other_high: Floats, other_low: Floats) -> None:
    """Add the pair `other_high + other_low` to `high + low`, elementwise and in place."""
    with np.errstate(invalid="ignore", over="ignore"):
        total = high + other_high
        part = total - high
        rest = (high - (total - part)) + (other_high - part) + low + other_low
        rest[~np.isfinite(rest)] = 0.0  # an infinite or NaN total has no remainder
        high[:] = total + rest
        low[:] = rest - (high - total)
    low[~np.isfinite(low)] = 0.0


def group_sums(group: Ints, values: Floats, groups: int) -> tuple[Floats, Floats]:
    """Sum of `values` (float64[n]) per group as a pair of float64[groups]; `group` is int64[n] in [0, groups)."""
    largest = float(np.abs(values).max(initial=0.0))
    _, exponent = np.frexp(largest)
    power = int(exponent) + len(values).bit_length() + 1
    if not np.isfinite(largest) or power > 1023:
        return _per_group(group, values, groups), np.zeros(groups)
    sigma = np.ldexp(1.0, power)
    coarse = (values + sigma) - sigma
    return _per_group(group, coarse, groups), _per_group(group, values - coarse, groups)


def _per_group(group: Ints, values: Floats, groups: int) -> Floats:
    return np.bincount(group, values, groups).astype(np.float64, copy=False)


def squares(values: Floats) -> tuple[Floats, Floats]:
    """The squares of `values` as pairs, exact unless they overflow or underflow."""
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = _SPLITTER * values
        upper = scaled - (scaled - values)
        lower = values - upper
        square = values * values
        rest = ((upper * upper - square) + 2.0 * upper * lower) + lower * lower
    rest[~np.isfinite(rest)] = 0.0
    return square, rest
