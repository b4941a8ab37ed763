"""Which source is drawn next: stride scheduling in integer fixed point, a window at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heapreplace
from typing import Literal, NamedTuple, final

import numpy as np

from streamsft.errors import ConfigError
from streamsft.order.keys import derive_key, hash64
from streamsft.types import Ints

__all__ = ["SMALLEST_SHARE", "Cost", "Costs", "Drawn", "Schedule", "Unit", "mixed"]

# Due times per draw, or token, of the whole mix: rounding costs a source one in so many. The smallest shares keep
# the due times of a window inside int64.
SCALE = {"samples": 1 << 32, "tokens": 1 << 20}
SMALLEST_SHARE = {"samples": 1e-8, "tokens": 1e-6}
_BLOCK = 256  # draws permuted together: ten thousand successive ones then hold every share within half a point


def mixed(keys: Sequence[int], count: int) -> Ints:
    """Numbers of `count` draws in a keyed order without the rhythm of stride scheduling, int64[keys, count].

    Blocks are permuted one by one, so that a source keeps its share over any stretch, not only over windows.
    """
    hashes = hash64(np.array(keys, np.uint64)[:, None], np.arange(count))
    whole = count - count % _BLOCK
    blocks = np.argsort(hashes[:, :whole].reshape(len(keys), -1, _BLOCK), axis=2, kind="stable")
    blocks += np.arange(0, whole, _BLOCK)[:, None]
    rest = np.argsort(hashes[:, whole:], axis=1, kind="stable") + whole
    return np.concatenate([blocks.reshape(len(keys), whole), rest], axis=1)


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


Cost = Callable[[int, int], int]
"""From a source and how often it was drawn before to what its next draw costs."""

Costs = Callable[[int, int, int], Ints]
"""From a source, how often it was drawn before and a number of draws to what each of these costs, int64[draws]."""

Unit = Literal["samples", "tokens"]


@final
class Schedule:
    """Stride scheduling (Waldspurger and Weihl, 1995) over the sources of a mix.

    Each source has a due time; the source with the smallest is drawn next, and its due time grows by
    cost / share, where a draw costs 1, or its tokens. Due times are integers, so that state is exact; they are
    kept relative to the last window's end. A source stays within a constant of its share however long the run.

    Args:
        shares: share of each source, summing to 1; 0 is not drawn. Equal due times are drawn in this order.
        unit: what shares count: samples, or tokens.
    """

    def __init__(self, shares: Sequence[float], unit: Unit = "samples") -> None:
        self.shares = np.array(shares, np.float64)
        self.unit = unit
        smallest = min(share for share in shares if share)
        if smallest < SMALLEST_SHARE[unit]:
            raise ConfigError(
                f"a source's share of the mix is {smallest:.3g}; the smallest that can be kept is "
                f"{SMALLEST_SHARE[unit]:g}: raise its weight, or set it to 0"
            )
        self.stride = np.array([round(SCALE[unit] / share) if share else 0 for share in shares], np.int64)

    def phases(self, seed: int, names: Sequence[str], lane: int, costs: Sequence[int] | None = None) -> Ints:
        """First due times: keyed by name and lane, uniform in [0, cost / share), int64[sources]."""
        spans = (self.stride if costs is None else self.stride * np.array(costs, np.int64)).tolist()
        keys = (derive_key(seed, name, "phase", lane) for name in names)
        return np.array([key % span if span else 0 for key, span in zip(keys, spans, strict=True)], np.int64)

    def rescaled(self, due: Ints, before: Schedule, start: Ints) -> Ints:
        """Due times of another schedule as this one's: what is left of a source's wait shrinks as its share grows.

        Args:
            due: due times under `before`, int64[sources].
            before: the other schedule, of the same sources.
            start: due times of sources that `before` did not draw, int64[sources].
        """
        moved = [
            first if not old else time * new // old if new else time
            for time, old, new, first in zip(
                due.tolist(), before.stride.tolist(), self.stride.tolist(), start.tolist(), strict=True
            )
        ]
        return np.array(moved, np.int64)

    def draw(self, due: Ints, drawn: Ints, count: int, cost: Cost | None = None) -> Drawn:
        """Draw `count` times from due times `due` and draw counts `drawn` (int64[sources] each).

        Args:
            cost: asked for, once per draw and in the order of draws, when shares count tokens.
        """
        if self.unit == "samples":
            return self._by_samples(due, drawn, count)
        assert cost is not None
        return self._by_cost(due, drawn, count, cost)

    def states(self, due: Ints, drawn: Ints, windows: Drawn, count: int) -> tuple[Ints, Ints]:
        """Due times and draw counts behind each window of those that were drawn together where shares count samples.

        Args:
            due: due times before the first, int64[sources].
            drawn: draw counts before the first, int64[sources].
            windows: what `draw` gave for them.
            count: number of windows.

        Returns:
            int64[count, sources] each.
        """
        source = windows.source.reshape(count, -1)
        row = np.arange(count)[:, None] * len(due)
        counts = np.bincount((source + row).reshape(-1), minlength=count * len(due)).reshape(count, -1).cumsum(axis=0)
        last = source[:, -1]
        now = due[last] + self.stride[last] * (counts[np.arange(count), last] - 1)
        return np.where(self.stride, due + self.stride * counts - now[:, None], due), drawn + counts

    def draw_ahead(self, due: Ints, drawn: Ints, count: int, costs: Costs) -> Drawn:
        """What `draw` gives where shares count tokens, if the costs of many draws can be had at a time.

        Args:
            costs: asked for draws that may lie behind the last one.
        """
        ahead = np.where(self.stride, np.ceil(self.shares * count).astype(np.int64) + 16, 0)
        known = [np.empty(0, np.int64) for _ in ahead]
        while True:
            for at, wanted in enumerate(ahead.tolist()):
                if missing := wanted - len(known[at]):
                    first = int(drawn[at]) + len(known[at])
                    known[at] = np.concatenate([known[at], costs(at, first, missing)])
            after = [
                np.cumsum(cost) * stride + first for cost, stride, first in zip(known, self.stride, due, strict=True)
            ]
            times = np.concatenate([np.concatenate([due[at : at + 1], a])[: len(a)] for at, a in enumerate(after)])
            order = np.argsort(times, kind="stable")[:count]
            now = int(times[order[-1]])
            short = np.array([bool(len(a)) and bool(a[-1] <= now) for a in after])
            if len(order) == count and not short.any():
                break
            ahead = np.where(short | (len(order) < count), 2 * ahead, ahead)
        source = np.repeat(np.arange(len(ahead)), ahead)[order]
        number = (np.arange(len(times)) - np.repeat(np.cumsum(ahead) - ahead, ahead))[order]
        counts = self._counts(source)
        ends = [int(a[n - 1]) if n else int(first) for a, n, first in zip(after, counts, due, strict=True)]
        return self._drawn(source, drawn[source] + number, np.array(ends, np.int64), drawn, now)

    def _by_samples(self, due: Ints, drawn: Ints, count: int) -> Drawn:
        """All due times are known: merge those of each source's next draws."""
        slack = 4
        while True:
            ahead = np.where(self.stride, np.ceil(self.shares * (count + len(due))).astype(np.int64) + slack, 0)
            source = np.repeat(np.arange(len(due)), ahead)
            number = np.arange(len(source)) - np.repeat(np.cumsum(ahead) - ahead, ahead)
            times = due[source] + self.stride[source] * number
            order = np.argsort(times, kind="stable")[:count]
            now = int(times[order[-1]])
            if np.all((due + self.stride * ahead > now) | (self.stride == 0)):
                break
            slack *= 4  # due times lie further apart than a running mix's: look further ahead
        source, number = source[order], number[order]
        return self._drawn(source, drawn[source] + number, due + self.stride * self._counts(source), drawn, now)

    def _by_cost(self, due: Ints, drawn: Ints, count: int, cost: Cost) -> Drawn:
        """A source's due time is known once its draw is: one after the other."""
        stride, numbers = self.stride.tolist(), drawn.tolist()
        heap = [(time, at) for at, time in enumerate(due.tolist()) if stride[at]]
        heapify(heap)
        source, number = [], []
        now = 0
        for _ in range(count):
            now, at = heap[0]
            source.append(at)
            number.append(numbers[at])
            heapreplace(heap, (now + stride[at] * cost(at, numbers[at]), at))
            numbers[at] += 1
        after = due.copy()
        for time, at in heap:
            after[at] = time
        return self._drawn(np.array(source, np.int64), np.array(number, np.int64), after, drawn, now)

    def _drawn(self, source: Ints, number: Ints, due: Ints, drawn: Ints, now: int) -> Drawn:
        return Drawn(source, number, np.where(self.stride, due - now, due), drawn + self._counts(source))

    def _counts(self, source: Ints) -> Ints:
        return np.bincount(source, minlength=len(self.stride))
