"""Distributions: `Buckets`, counts between edges as sinks and pages draw them, and the reducer `Histogram`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar, final

import numpy as np

from streamsft.errors import MetricError
from streamsft.types import Floats, Ints

__all__ = ["Buckets", "Histogram", "ranks"]


@lru_cache(maxsize=64)
def _ratios(points: tuple[float, ...]) -> list[tuple[int, int]]:
    """`points` as the decimal fractions they were written as: 0.95 of 20 values is exactly 19."""
    return [Fraction(str(q)).as_integer_ratio() for q in points]


def ranks(points: tuple[float, ...], count: int) -> list[int]:
    """The ⌈q·count⌉ of each point q, at least 1."""
    return [max(1, -(-above * count // below)) for above, below in _ratios(points)]


@final
@dataclass(frozen=True, slots=True)
class Buckets:
    """How many values lie between two edges; bucket i holds those in (edges[i], edges[i + 1]].

    Attributes:
        edges: ascending, one more than counts.
        counts: values per bucket; the first and the last are not 0.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]

    @staticmethod
    def of(edges: Floats, counts: Ints) -> Buckets | None:
        """The buckets from the first to the last that hold a value; None where none does.

        Args:
            edges: float64[n + 1], finite and ascending.
            counts: int64[n].
        """
        filled = np.flatnonzero(counts)
        if not len(filled):
            return None
        first, last = int(filled[0]), int(filled[-1]) + 1
        shown = (float(f"{edge:.6g}") for edge in edges[first : last + 1].tolist())
        return Buckets(tuple(shown), tuple(counts[first:last].tolist()))

    def to_json(self) -> dict[str, Any]:
        """As `histograms.jsonl` holds them."""
        return {"edges": list(self.edges), "counts": list(self.counts)}


@final
@dataclass(frozen=True)
class Histogram:
    """How often values fall between given edges, and quantiles that are as fine as these.

    A value on an edge belongs below it. Values up to the first edge count in the first bucket, those above the last
    edge in the last one, so choose edges that hold what can come. A quantile is the smallest edge that at least
    ⌈q·n⌉ of the n values do not exceed: exact for whole numbers where each has an edge.

    Args:
        edges: two or more numbers, ascending.
        points: the quantiles to report, each in [0, 1]; 0.5 is reported as ``p50``.

    Raises:
        MetricError: edges do not ascend, or a point is not in [0, 1]; on update, a value is NaN.
    """

    edges: tuple[float, ...]
    points: tuple[float, ...] = (0.5, 0.95)

    floats: ClassVar[int] = 0
    counting: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "edges", tuple(map(float, self.edges)))
        object.__setattr__(self, "points", tuple(self.points))
        finite = all(map(math.isfinite, self.edges))
        if len(self.edges) < 2 or not finite or any(a >= b for a, b in zip(self.edges, self.edges[1:], strict=False)):
            raise MetricError(f"Histogram({list(self.edges)}): give two or more finite edges, ascending")
        if not self.points or not all(0 <= q <= 1 for q in self.points):
            raise MetricError(f"Histogram: points {list(self.points)} must be in [0, 1]")

    @property
    def ints(self) -> int:
        return len(self.edges) - 1

    @property
    def suffixes(self) -> tuple[str, ...]:
        return tuple(f"p{100 * q:g}" for q in self.points)

    @property
    def layout(self) -> str:
        return f"Histogram({list(self.edges)})"

    def zero(self, groups: int) -> tuple[Ints, Floats]:
        return np.zeros((groups, self.ints), np.int64), np.zeros((groups, 0))

    def slots(self, values: Floats) -> Ints:
        """Where in a state each of the values (float64[n]) is counted, int64[n].

        Raises:
            MetricError: a value is NaN.
        """
        if np.isnan(values).any():
            raise MetricError(f"{self.layout}: a value is NaN, which has no place in an order")
        return np.searchsorted(np.array(self.edges[1:-1]), values)

    def update(self, ints: Ints, floats: Floats, group: Ints, values: Floats, slots: Ints | None = None) -> None:
        """Take in `values`, each of group `group`, in place; `slots` is `slots(values)` if that is known already."""
        bucket = self.slots(values) if slots is None else slots
        ints += np.bincount(group * self.ints + bucket, minlength=ints.size).reshape(ints.shape)

    def merge(self, ints: Ints, floats: Floats, other_ints: Ints, other_floats: Floats) -> None:
        ints += other_ints

    def result(self, ints: Ints, floats: Floats) -> dict[str, float]:
        count = int(ints.sum())
        if not count:
            return {}
        places = np.searchsorted(np.cumsum(ints), ranks(self.points, count))
        return dict(zip(self.suffixes, (self.edges[place + 1] for place in places.tolist()), strict=True))

    def buckets(self, ints: Ints, floats: Floats) -> Buckets | None:
        """The distribution of one group (int64[ints], float64[0]); None without a value."""
        return Buckets.of(np.array(self.edges), ints)
