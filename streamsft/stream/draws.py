"""Which source is drawn next: stride scheduling in integer fixed point, a window at a time."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from streamsft.errors import ConfigError
from streamsft.order.keys import derive_key, hash64
from streamsft.types import Ints

__all__ = ["SMALLEST_SHARE", "Schedule", "check_weights", "mixed", "normalized", "rounded_share"]

SCALE = 1 << 32  # due times per draw of the whole mix; rounding costs a source one draw in 2**32
_BLOCK = 256  # draws permuted together: ten thousand successive ones then hold every share within half a point
SMALLEST_SHARE = 1e-8  # keeps the due times of a window inside int64


def check_weights(weights: Mapping[str, float | None], where: str = "mix") -> None:
    """Check the weights of one mix node before anything is opened.

    Raises:
        ConfigError: a weight is negative, not finite or no number; some are given and some are not;
            or none is above zero.
    """
    given = {name: weight for name, weight in weights.items() if weight is not None}
    for name, weight in given.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float | np.integer | np.floating):
            raise ConfigError(f"{where}: weight of {name!r} is {weight!r}; give a number >= 0")
        if not 0 <= weight <= sys.float_info.max:
            raise ConfigError(f"{where}: weight of {name!r} is {weight!r}; give a finite number >= 0")
    if given and len(given) < len(weights):
        missing = ", ".join(repr(name) for name in weights if name not in given)
        raise ConfigError(f"{where}: {missing} without a weight beside sources that have one; give all or none")
    if given and not any(given.values()):
        raise ConfigError(f"{where}: every weight is 0, so nothing could be drawn; give one above 0")


def normalized(weights: Sequence[float]) -> list[float]:
    """Scale weights to shares that sum to 1; the same floats whatever the order of the list."""
    _, exponent = math.frexp(max(weights))
    scaled = [math.ldexp(weight, -exponent) for weight in weights]  # so that the sum of huge ones is finite
    total = math.fsum(scaled)
    return [weight / total for weight in scaled]


def rounded_share(share: float) -> float:
    """The share to ten digits, which is what a mix is drawn by: short in a state, and off by one draw in 2 * 10**9."""
    return float(f"{share:.10g}")


def mixed(key: int, count: int) -> Ints:
    """Numbers of `count` draws in a keyed order without the rhythm of stride scheduling, int64[count].

    Blocks are permuted one by one, so that a source keeps its share over any stretch, not only over windows.
    """
    number = np.arange(count)
    return np.lexsort((hash64(key, number), number // _BLOCK))


class Drawn(NamedTuple):
    """The draws of one window, in draw order."""

    source: Ints
    """Number of the source of each draw, int64[n]."""
    number: Ints
    """How often the lane had drawn that source before, int64[n]."""
    due: Ints
    """Due times at the window's end, relative to it, int64[sources]."""
    drawn: Ints
    """Draws per source at the window's end, int64[sources]."""


class Schedule:
    """Stride scheduling (Waldspurger and Weihl, 1995) over the sources of a mix.

    Each source has a due time; the source with the smallest is drawn next, and its due time grows by
    1 / share. Due times are integers, so that state is exact; they are kept relative to the last
    window's end. A source stays within a constant number of draws of its share however long the run.

    Args:
        shares: share of each source, above 0, summing to 1. Equal due times are drawn in this order.
    """

    def __init__(self, shares: Sequence[float]) -> None:
        self.shares = np.array(shares, np.float64)
        if self.shares.min() < SMALLEST_SHARE:
            raise ConfigError(
                f"a source's share of the mix is {self.shares.min():.3g}; the smallest that can be kept is "
                f"{SMALLEST_SHARE:g}: raise its weight, or set it to 0"
            )
        self.stride = np.array([round(SCALE / share) for share in shares], np.int64)

    def phases(self, seed: int, names: Sequence[str], lane: int) -> Ints:
        """First due times: keyed by name and lane, uniform in [0, 1 / share), int64[sources]."""
        return np.array(
            [
                derive_key(seed, name, "phase", lane) % stride
                for name, stride in zip(names, self.stride.tolist(), strict=True)
            ],
            np.int64,
        )

    def draw(self, due: Ints, drawn: Ints, count: int) -> Drawn:
        """Draw `count` times from due times `due` and draw counts `drawn` (int64[sources] each)."""
        slack = 4
        while True:
            ahead = np.ceil(self.shares * (count + len(due))).astype(np.int64) + slack
            source = np.repeat(np.arange(len(due)), ahead)
            number = np.arange(len(source)) - np.repeat(np.cumsum(ahead) - ahead, ahead)
            times = due[source] + self.stride[source] * number
            order = np.argsort(times, kind="stable")[:count]
            now = times[order[-1]]
            if np.all(due + self.stride * ahead > now):
                break
            slack *= 4  # due times lie further apart than a running mix's: look further ahead
        source, number = source[order], number[order]
        counts = np.bincount(source, minlength=len(due))
        return Drawn(source, drawn[source] + number, due + self.stride * counts - now, drawn + counts)
