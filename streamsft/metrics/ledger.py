"""The states of many reducers as two flat arrays, which travel between ranks as one vector."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar, final

import numpy as np
from numpy.typing import NDArray

from streamsft.errors import MetricError
from streamsft.metrics.reducers import Mergeable
from streamsft.types import Floats, Ints

__all__ = ["Entry", "Layout", "Ledger", "fold"]

T = TypeVar("T", bound=np.generic)

_MOST = 2**32 - 1


@final
@dataclass(frozen=True, slots=True)
class Entry:
    """One reducer's states over named groups.

    Attributes:
        metric: name of the metric.
        reducer: what starts, merges and reads the states.
        groups: the groups' names, in the order of the states' rows.
    """

    metric: str
    reducer: Mergeable
    groups: tuple[str, ...]

    @property
    def key(self) -> str:
        """Unique among the entries of a layout."""
        return f"{self.metric}: {self.reducer.layout}"


@final
class Layout:
    """Where each entry's states lie in the flat arrays, and a hash of everything that this depends on."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = tuple(entries)
        self.lines = [f"{e.key} over {len(e.groups)}: {', '.join(e.groups)}" for e in self.entries]
        digest = hashlib.blake2b("\n".join(self.lines).encode(), digest_size=8).digest()
        self.hash = int.from_bytes(digest, "little", signed=True)
        self.int_slices: list[slice] = []
        self.float_slices: list[slice] = []
        ints = floats = 0
        for e in self.entries:
            groups = len(e.groups)
            self.int_slices.append(slice(ints, ints + groups * e.reducer.ints))
            self.float_slices.append(slice(floats, floats + groups * e.reducer.floats))
            ints, floats = self.int_slices[-1].stop, self.float_slices[-1].stop
        self.ints, self.floats = ints, floats
        counting = [np.full(s.stop - s.start, _counts(e)) for e, s in zip(self.entries, self.int_slices, strict=True)]
        self.narrow = np.flatnonzero(np.concatenate([np.zeros(0, np.bool_), *counting]))
        """Which whole numbers travel in 32 bits: those that count values, of which an interval never has so many."""
        self.wide = np.setdiff1d(np.arange(ints), self.narrow)
        zeros = [e.reducer.zero(len(e.groups)) for e in self.entries]
        self.zero_ints = np.concatenate([np.zeros(0, np.int64), *(z[0].reshape(-1) for z in zeros)])
        self.zero_floats = np.concatenate([np.zeros(0), *(z[1].reshape(-1) for z in zeros)])


@final
class Ledger:
    """States of all entries of a layout; `parts[i]` are views of entry i's, int64[groups, ints] and floats alike."""

    def __init__(self, layout: Layout, ints: Ints | None = None, floats: Floats | None = None) -> None:
        self.layout = layout
        self.ints = layout.zero_ints.copy() if ints is None else ints
        self.floats = layout.zero_floats.copy() if floats is None else floats
        self.parts: list[tuple[Ints, Floats]] = []
        for e, i, f in zip(layout.entries, layout.int_slices, layout.float_slices, strict=True):
            shape = len(e.groups)
            self.parts.append(
                (self.ints[i].reshape(shape, e.reducer.ints), self.floats[f].reshape(shape, e.reducer.floats))
            )

    def clear(self) -> None:
        """Start over."""
        self.ints[:] = self.layout.zero_ints
        self.floats[:] = self.layout.zero_floats

    def copy(self) -> Ledger:
        return Ledger(self.layout, self.ints.copy(), self.floats.copy())

    def merge(self, other: Ledger) -> None:
        """Merge `other` (of the same layout) into this one."""
        for e, mine, theirs in zip(self.layout.entries, self.parts, other.parts, strict=True):
            e.reducer.merge(*mine, *theirs)

    def vector(self) -> Ints:
        """Everything as int64[n]: the layout's hash, whole numbers, counts two in one, the floats' bits.

        Raises:
            MetricError: a count does not fit 32 bits.
        """
        counts = self.ints[self.layout.narrow]
        if counts.max(initial=0) > _MOST:
            raise MetricError(f"more than {_MOST:,} values of a metric since the last log step; log more often")
        pairs = np.zeros(2 * ((len(counts) + 1) // 2), np.uint32)
        pairs[: len(counts)] = counts
        head = np.array([self.layout.hash], np.int64)
        return np.concatenate([head, self.ints[self.layout.wide], pairs.view(np.int64), self.floats.view(np.int64)])

    @staticmethod
    def merged(layout: Layout, vectors: Ints) -> Ledger:
        """The states of several ranks, int64[ranks, …] as `vector` makes them, merged into one."""
        counts = len(layout.narrow)
        behind = 1 + len(layout.wide) + (counts + 1) // 2
        pairs = np.ascontiguousarray(vectors[:, 1 + len(layout.wide) : behind]).view(np.uint32)
        floats = np.ascontiguousarray(vectors[:, behind:]).view(np.float64)
        ints = np.empty((len(vectors), layout.ints), np.int64)
        ints[:, layout.wide] = vectors[:, 1 : 1 + len(layout.wide)]
        ints[:, layout.narrow] = pairs[:, :counts]
        result = Ledger(layout)
        for k, e in enumerate(layout.entries):
            shape = (len(vectors), len(e.groups))
            parts = fold(
                e.reducer,
                ints[:, layout.int_slices[k]].reshape(*shape, e.reducer.ints),
                floats[:, layout.float_slices[k]].reshape(*shape, e.reducer.floats),
            )
            result.parts[k][0][:], result.parts[k][1][:] = parts
        return result


def fold(reducer: Mergeable, ints: Ints, floats: Floats) -> tuple[Ints, Floats]:
    """Merge the states along the first axis, [n, groups, slots] → [groups, slots], in ⌈log2 n⌉ vectorised merges."""
    while len(ints) > 1:
        half = (len(ints) + 1) // 2
        pairs = len(ints) - half
        head_ints, head_floats = ints[:half].copy(), floats[:half].copy()
        # Slices of a fresh copy along the first axis are contiguous: the merge writes through these views.
        reducer.merge(_flat(head_ints[:pairs]), _flat(head_floats[:pairs]), _flat(ints[half:]), _flat(floats[half:]))
        ints, floats = head_ints, head_floats
    return ints[0], floats[0]


def _flat(states: NDArray[T]) -> NDArray[T]:
    """[n, groups, slots] → [n * groups, slots]."""
    return states.reshape(states.shape[0] * states.shape[1], states.shape[2])


def _counts(entry: Entry) -> bool:
    """Whether all whole numbers of the entry's states count values."""
    return bool(getattr(entry.reducer, "counting", False))
