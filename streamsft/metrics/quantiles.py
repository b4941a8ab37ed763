"""Quantiles from logarithmic buckets: mergeable exactly, 1 % relative error, exact while there are few values.

The buckets are those of DDSketch (Masson, Rim and Lee, *DDSketch: a fast and fully-mergeable quantile sketch with
relative-error guarantees*, VLDB 2019) over a range declared beforehand, so that the state has a fixed size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, final

import numpy as np

from streamsft.errors import MetricError
from streamsft.metrics.histograms import Buckets, ranks
from streamsft.types import Floats, Ints

__all__ = ["Quantiles"]

_ERROR = 0.01
_COUNT, _NEGATIVE, _ZERO, _SMALL, _FIRST = range(5)  # int slots; the buckets follow, then the one for too large
_MIN, _MAX, _BUFFER = range(3)  # float slots; the buffer takes all that follow
_DRAWN = 5  # buckets that are drawn as one: steps of 10 %


@lru_cache(maxsize=64)
def _edges(lo: float, hi: float) -> Floats:
    """Bucket borders lo = e0 < e1 < … < em = hi; bucket i holds (e(i-1), e(i)], the first one lo as well.

    Made by repeated multiplication, so that they are the same on every machine.
    """
    ratio = (1 + _ERROR) / (1 - _ERROR)
    buckets = max(1, math.ceil(math.log(hi / lo) / math.log(ratio)))
    edges = np.multiply.accumulate(np.concatenate([[lo], np.full(buckets, ratio)]))
    edges = np.append(edges[edges < hi], hi)
    edges.flags.writeable = False
    return edges


@lru_cache(maxsize=64)
def _middles(lo: float, hi: float) -> Floats:
    """Of each bucket, the value that is equally far, relatively, from both of its borders."""
    edges = _edges(lo, hi)
    return 2 * edges[:-1] * edges[1:] / (edges[:-1] + edges[1:])


@final
@dataclass(frozen=True)
class Quantiles:
    """Quantiles of values in a declared range.

    The q-quantile of n values is the smallest value that at least ⌈q·n⌉ of them do not exceed (numpy's
    ``inverted_cdf``). Up to `exact` values per group it is exact; beyond, values in [lo, hi] are within 1 %.
    Outside the range, values are counted but not told apart: those in (0, lo) come out as `lo`, those above `hi`
    as the largest value seen, negative ones as the smallest value seen. Zero is zero.

    Args:
        lo, hi: the range in which 1 % holds; 0 < lo < hi. It costs 115 slots per factor of 10.
        points: the quantiles to report, each in [0, 1]; 0.5 is reported as ``p50``.
        exact: up to how many values per group the quantiles are exact.

    Raises:
        MetricError: the range, a point or `exact` makes no sense; on update, a value is NaN.
    """

    lo: float
    hi: float
    points: tuple[float, ...] = (0.5, 0.95)
    exact: int = 64

    counting: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "points", tuple(self.points))
        if not 0 < self.lo < self.hi < math.inf:
            raise MetricError(f"Quantiles({self.lo}, {self.hi}): need finite 0 < lo < hi")
        if not self.points or not all(0 <= q <= 1 for q in self.points) or self.exact < 0:
            raise MetricError(f"{self}: points must be in [0, 1] and exact >= 0")

    @property
    def ints(self) -> int:
        return _FIRST + len(self._edges)

    @property
    def floats(self) -> int:
        return _BUFFER + self.exact

    @property
    def suffixes(self) -> tuple[str, ...]:
        return tuple(f"p{100 * q:g}" for q in self.points)

    @property
    def layout(self) -> str:
        return f"Quantiles(lo={self.lo!r}, hi={self.hi!r}, exact={self.exact})"

    @property
    def _edges(self) -> Floats:
        return _edges(float(self.lo), float(self.hi))

    def zero(self, groups: int) -> tuple[Ints, Floats]:
        floats = np.full((groups, self.floats), np.inf)
        floats[:, _MAX] = -np.inf
        return np.zeros((groups, self.ints), np.int64), floats

    def slots(self, values: Floats) -> Ints:
        """Where in a state each of the values (float64[n]) is counted, int64[n].

        Raises:
            MetricError: a value is NaN.
        """
        if np.isnan(values).any():
            raise MetricError(f"{self.layout}: a value is NaN, which has no place in an order")
        slot = np.maximum(np.searchsorted(self._edges, values), 1) + (_FIRST - 1)
        if values.min(initial=self.lo) < self.lo:
            slot[values < self.lo] = _SMALL
            slot[values == 0] = _ZERO
            slot[values < 0] = _NEGATIVE
        return slot

    def update(self, ints: Ints, floats: Floats, group: Ints, values: Floats, slots: Ints | None = None) -> None:
        """Take in `values`, each of group `group`, in place; `slots` is `slots(values)` if that is known already."""
        slot = self.slots(values) if slots is None else slots
        before = ints[:, _COUNT].copy()
        base = group * self.ints
        np.add.at(ints.reshape(-1), np.concatenate([base + slot, base]), 1)
        np.minimum.at(floats[:, _MIN], group, values)
        np.maximum.at(floats[:, _MAX], group, values)
        if (before[group] < self.exact).any():
            self._buffer(before, ints[:, _COUNT], floats[:, _BUFFER:], group, values)

    def _buffer(self, before: Ints, after: Ints, buffer: Floats, group: Ints, values: Floats) -> None:
        """Keep the values of groups that still have few, and forget those of groups that no longer have."""
        order = np.argsort(group, kind="stable")
        group, values = group[order], values[order]
        position = before[group] + np.arange(len(group)) - np.searchsorted(group, group)
        few = after[group] <= self.exact
        buffer[group[few], position[few]] = values[few]
        buffer[(before <= self.exact) & (after > self.exact)] = np.inf

    def merge(self, ints: Ints, floats: Floats, other_ints: Ints, other_floats: Floats) -> None:
        ints += other_ints
        np.minimum(floats[:, _MIN], other_floats[:, _MIN], out=floats[:, _MIN])
        np.maximum(floats[:, _MAX], other_floats[:, _MAX], out=floats[:, _MAX])
        few = ints[:, _COUNT] <= self.exact
        both = np.concatenate([floats[few, _BUFFER:], other_floats[few, _BUFFER:]], axis=1)
        floats[:, _BUFFER:] = np.inf
        floats[few, _BUFFER:] = np.sort(both, axis=1)[:, : self.exact]

    def result(self, ints: Ints, floats: Floats) -> dict[str, float]:
        count = int(ints[_COUNT])
        if not count:
            return {}
        wanted = ranks(self.points, count)
        if count <= self.exact:
            values = np.sort(floats[_BUFFER:])[np.array(wanted) - 1]
        else:
            middles = _middles(float(self.lo), float(self.hi))
            levels = np.concatenate([[floats[_MIN], 0.0, self.lo], middles, [floats[_MAX]]])
            found = np.searchsorted(np.cumsum(ints[_NEGATIVE:]), wanted)
            values = np.clip(levels[found], floats[_MIN], floats[_MAX])
        return dict(zip(self.suffixes, values.tolist(), strict=True))

    def buckets(self, ints: Ints, floats: Floats) -> Buckets | None:
        """The distribution of one group, in steps of 10 %; None without a value.

        What lies outside [lo, hi] is in buckets of its own: (smallest, 0], (0, lo], (hi, largest].
        """
        if not ints[_COUNT]:
            return None
        edges, smallest, largest = self._edges, float(floats[_MIN]), float(floats[_MAX])
        starts = np.arange(0, len(edges) - 1, _DRAWN)
        inside = np.add.reduceat(ints[_FIRST : _FIRST + len(edges) - 1], starts)
        below = int(ints[_NEGATIVE] + ints[_ZERO])
        counts = np.concatenate([[below, ints[_SMALL]], inside, ints[-1:]])
        low = min(smallest, -1.0) if math.isfinite(smallest) else -1.0
        high = max(largest, 2 * edges[-1]) if math.isfinite(largest) else 2 * edges[-1]
        return Buckets.of(np.concatenate([[low, 0.0], edges[starts], edges[-1:], [high]]), counts)
