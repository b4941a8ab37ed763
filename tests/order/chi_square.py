"""Pearson's chi-square test for equal counts, as a z score."""

from __future__ import annotations

from math import sqrt

import numpy as np
from numpy.typing import NDArray


def z_score(counts: NDArray[np.int64]) -> float:
    """How many standard deviations the chi-square of `counts` lies above what equal chances would give.

    Normal by the cube-root transformation of Wilson and Hilferty (1931). The keys in the tests are fixed,
    so a test that passes once passes always.
    """
    freedom = len(counts) - 1
    expected = counts.sum() / len(counts)
    ratio = float(((counts - expected) ** 2 / expected).sum()) / freedom
    return (ratio ** (1 / 3) - (1 - 2 / (9 * freedom))) / sqrt(2 / (9 * freedom))
