"""Reducers: how the values of a metric become one small state per group that can be merged.

A reducer keeps nothing itself. The state of G groups (sources, say) is two arrays, int64[G, ints] and
float64[G, floats], C-contiguous; a reducer says how to start, update, merge and read them. Merging is
commutative and associative: the states of any split of the values, merged in any order, give what one pass
over all values gives (whole numbers exactly, float sums to better than 1e-12).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Protocol, final

import numpy as np

from streamsft.errors import MetricError
from streamsft.metrics.sums import add_pair, group_sums, squares
from streamsft.types import Floats, Ints, check_name

__all__ = ["Counts", "Max", "Mean", "Mergeable", "Min", "Reducer", "Std", "Sum"]


class Mergeable(Protocol):
    """A state that can be started, merged and read.

    One whose whole numbers only count values may say so by ``counting = True``: they travel between ranks in half
    the space.
    """

    @property
    def ints(self) -> int:
        """int64 slots per group."""

    @property
    def floats(self) -> int:
        """float64 slots per group."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The names that `result` may use, declared so that keys cannot collide unnoticed."""

    @property
    def layout(self) -> str:
        """Text that is equal exactly when states can be merged."""

    def zero(self, groups: int) -> tuple[Ints, Floats]:
        """The state of `groups` groups that have seen nothing."""

    def merge(self, ints: Ints, floats: Floats, other_ints: Ints, other_floats: Floats) -> None:
        """Merge another state of as many groups into this one, group by group and in place."""

    def result(self, ints: Ints, floats: Floats) -> dict[str, float]:
        """The numbers of one group (int64[ints], float64[floats]) by suffix; those without a value are left out."""


class Reducer(Mergeable, Protocol):
    """What a user implements to reduce values in a way of their own; see the module's description."""

    def update(self, ints: Ints, floats: Floats, group: Ints, values: Floats) -> None:
        """Take in `values` (float64[n]), each belonging to group `group` (int64[n]), in place."""


def _zeros(groups: int, ints: int, floats: int) -> tuple[Ints, Floats]:
    return np.zeros((groups, ints), np.int64), np.zeros((groups, floats))


@final
@dataclass(frozen=True)
class Sum:
    """The sum of the values; 0 when there are none."""

    ints: ClassVar[int] = 0
    floats: ClassVar[int] = 2  # a pair, high + low
    suffixes: ClassVar[tuple[str, ...]] = ("sum",)

    @property
    def layout(self) -> str:
        return repr(self)

    def zero(self, groups: int) -> tuple[Ints, Floats]:
        return _zeros(groups, self.ints, self.floats)

    def update(self, ints: Ints, floats: Floats, group: Ints, values: Floats) -> None:
        add_pair(floats[:, 0], floats[:, 1], *group_sums(group, values, len(floats)))

    def merge(self, ints: Ints, floats: Floats, other_ints: Ints, other_floats: Floats) -> None:
        add_pair(floats[:, 0], floats[:, 1], other_floats[:, 0], other_floats[:, 1])

    def result(self, ints: Ints, floats: Floats) -> dict[str, float]:
        return {"sum": float(floats[0])}


@final
@dataclass(frozen=True)
class Mean:
    """The mean of the values, optionally weighted: one division of global sums, never a mean of means.

    Given a loss per token and the number of tokens as weight, it is the mean over all tokens of all ranks.
    """

    ints: ClassVar[int] = 0
    floats: ClassVar[int] = 4  # pairs: value * weight, and weight
    suffixes: ClassVar[tuple[str, ...]] = ("mean",)

    @property
    def layout(self) -> str:
        return repr(self)

    def zero(self, groups: int) -> tuple[Ints, Floats]:
        return _zeros(groups, self.ints, self.floats)

    def update(self, ints: Ints, floats: Floats, group: Ints, values: Floats, weights: Floats | None = None) -> None:
        groups = len(floats)
        counts = np.ones(len(values)) if weights is None else weights
        add_pair(floats[:, 0], floats[:, 1], *group_sums(group, values * counts, groups))
        add_pair(floats[:, 2], floats[:, 3], *group_sums(group, counts, groups))

    def merge(self, ints: Ints, floats: Floats, other_ints: Ints, other_floats: Floats) -> None:
        add_pair(floats[:, 0], floats[:, 1], other_floats[:, 0], other_floats[:, 1])
        add_pair(floats[:, 2], floats[:, 3], other_floats[:, 2], other_floats[:, 3])

    def result(self, ints: Ints, floats: Floats) -> dict[str, float]:
        return {"mean": float(floats[0] / floats[2])} if floats[2] else {}


@final
@dataclass(frozen=True)
class Std:
    """The population standard deviation (the divisor is the number of values)."""

    ints: ClassVar[int] = 1
    floats: ClassVar[int] = 4  # pairs: sum of values, sum of squares
    suffixes: ClassVar[tuple[str, ...]] = ("std",)

    @property
    def layout(self) -> str:
        return repr(self)

    def zero(self, groups: int) -> tuple[Ints, Floats]:
        return _zeros(groups, self.ints, self.floats)

    def update(self, ints: Ints, floats: Floats, group: Ints, values: Floats) -> None:
        groups = len(floats)
        ints[:, 0] += np.bincount(group, minlength=groups)
        add_pair(floats[:, 0], floats[:, 1], *group_sums(group, values, groups))
        for part in squares(values):
            add_pair(floats[:, 2], floats[:, 3], *group_sums(group, part, groups))

    def merge(self, ints: Ints, floats: Floats, other_ints: Ints, other_floats: Floats) -> None:
        ints += other_ints
        add_pair(floats[:, 0], floats[:, 1], other_floats[:, 0], other_floats[:, 1])
        add_pair(floats[:, 2], floats[:, 3], other_floats[:, 2], other_floats[:, 3])

    def result(self, ints: Ints, floats: Floats) -> dict[str, float]:
        count = int(ints[0])
        if not count:
            return {}
        if not np.isfinite(floats).all():
            return {"std": math.nan}
        total, square = (Fraction(float(floats[i])) + Fraction(float(floats[i + 1])) for i in (0, 2))
        variance = (square - total * total / count) / count  # rational, so that a large mean cancels exactly
        return {"std": math.sqrt(max(variance, Fraction(0)))}


@dataclass(frozen=True)
class _Extreme:
    """The value that `_choose` prefers to all others; `_none` is preferred to none."""

    _choose: ClassVar[np.ufunc]
    _none: ClassVar[float]
    ints: ClassVar[int] = 1
    floats: ClassVar[int] = 1
    suffixes: ClassVar[tuple[str, ...]]

    @property
    def layout(self) -> str:
        return repr(self)

    def zero(self, groups: int) -> tuple[Ints, Floats]:
        return np.zeros((groups, 1), np.int64), np.full((groups, 1), self._none)

    def update(self, ints: Ints, floats: Floats, group: Ints, values: Floats) -> None:
        ints[:, 0] += np.bincount(group, minlength=len(ints))
        self._choose.at(floats[:, 0], group, values)

    def merge(self, ints: Ints, floats: Floats, other_ints: Ints, other_floats: Floats) -> None:
        ints += other_ints
        self._choose(floats, other_floats, out=floats)

    def result(self, ints: Ints, floats: Floats) -> dict[str, float]:
        return {self.suffixes[0]: float(floats[0])} if ints[0] else {}


@final
@dataclass(frozen=True)
class Min(_Extreme):
    """The smallest value."""

    _choose: ClassVar[np.ufunc] = np.minimum
    _none: ClassVar[float] = np.inf
    suffixes: ClassVar[tuple[str, ...]] = ("min",)


@final
@dataclass(frozen=True)
class Max(_Extreme):
    """The largest value."""

    _choose: ClassVar[np.ufunc] = np.maximum
    _none: ClassVar[float] = -np.inf
    suffixes: ClassVar[tuple[str, ...]] = ("max",)


@final
@dataclass(frozen=True)
class Counts:
    """How often each category came; what is none of them counts as ``other``.

    A metric whose reducer this is has a value function that returns a category's name; `update` itself takes
    indices into `categories`, anything outside [0, len(categories)) being ``other``.

    Raises:
        MetricError: no category, one twice, or one named ``other``.
    """

    categories: tuple[str, ...]

    counting: ClassVar[bool] = True

    def __post_init__(self) -> None:
        names = tuple(check_name(c, "category") for c in self.categories)
        object.__setattr__(self, "categories", names)
        if not names or len({*names, "other"}) != len(names) + 1:
            raise MetricError(f"Counts({list(names)}): name at least one category, each once, and none 'other'")

    @property
    def ints(self) -> int:
        return len(self.categories) + 1

    @property
    def floats(self) -> int:
        return 0

    @property
    def suffixes(self) -> tuple[str, ...]:
        return (*self.categories, "other")

    @property
    def layout(self) -> str:
        return repr(self)

    def zero(self, groups: int) -> tuple[Ints, Floats]:
        return _zeros(groups, self.ints, 0)

    def update(self, ints: Ints, floats: Floats, group: Ints, values: Floats) -> None:
        other = len(self.categories)
        index = np.where((values >= 0) & (values < other), values, other).astype(np.int64)
        ints += np.bincount(group * self.ints + index, minlength=ints.size).reshape(ints.shape)

    def merge(self, ints: Ints, floats: Floats, other_ints: Ints, other_floats: Floats) -> None:
        ints += other_ints

    def result(self, ints: Ints, floats: Floats) -> dict[str, float]:
        return dict(zip(self.suffixes, ints.tolist(), strict=True))
