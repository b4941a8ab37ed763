"""Which documents share a pack: the arithmetic of packing, on lengths alone."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, final, get_args

import numpy as np
from numpy.typing import ArrayLike

from streamsft.errors import ConfigError
from streamsft.order.sorting import stable_order
from streamsft.stream.aligning import slots_taken
from streamsft.types import Ints

__all__ = ["Overflow", "Packing", "best_fit_decreasing", "check_overflow", "next_fit", "pack_lengths"]

Overflow = Literal["truncate", "drop", "split", "error"]

_NEXT_FIT_WINDOW = 1024


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How documents become packs.

    Attributes:
        sequence_length: slots per pack.
        lookahead: draws that are packed together by best-fit decreasing; 0 packs in draw order by
            next-fit; None takes ``max(1024, sequence_length // 4)``.
        overflow: what happens to a document longer than `sequence_length`: keep its prefix, leave it
            out, cut it into fragments, or raise.
        align: each document takes a multiple of so many slots; see `streamsft.stream.aligning`.

    Raises:
        ConfigError: a value is out of range.
    """

    sequence_length: int
    lookahead: int | None = None
    overflow: Overflow = "truncate"
    align: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.sequence_length, int) or self.sequence_length < 2:
            raise ConfigError(f"sequence_length: {self.sequence_length!r} is not an integer of at least 2 slots")
        if self.lookahead is not None and (not isinstance(self.lookahead, int) or self.lookahead < 0):
            raise ConfigError(f"lookahead: {self.lookahead!r} is not a number of draws (0 packs in draw order)")
        check_overflow(self.overflow)
        if not isinstance(self.align, int) or isinstance(self.align, bool) or self.align < 1:
            raise ConfigError(f"packing.align: {self.align!r} is not a number of slots >= 1")
        if self.sequence_length % self.align:
            raise ConfigError(
                f"packing.align: {self.align} does not divide sequence_length {self.sequence_length}; set that to "
                f"{max(1, self.sequence_length // self.align) * self.align}"
            )

    @property
    def best_fit(self) -> bool:
        """Whether the documents of a window are packed by best-fit decreasing."""
        return self.lookahead != 0

    @property
    def window(self) -> int:
        """Draws per window."""
        if self.lookahead is None:
            return max(_NEXT_FIT_WINDOW, self.sequence_length // 4)
        return self.lookahead or _NEXT_FIT_WINDOW

    def describe(self) -> dict[str, int | str]:
        """What a resumed stream must agree on."""
        described: dict[str, int | str] = {
            "sequence_length": self.sequence_length,
            "lookahead": self.window if self.best_fit else 0,
            "overflow": self.overflow,
        }
        return described if self.align == 1 else {**described, "align": self.align}

    def of(self, overflow: Overflow | None) -> Packing:
        """The same with the overflow policy of one source, if it has its own."""
        return self if overflow is None else replace(self, overflow=overflow)

    def taken(self, lengths: Ints) -> Ints:
        """Slots that documents of these lengths take, int64[n]."""
        return slots_taken(lengths, self.align)

    def pack_windows(self, lengths: Ints) -> Ints:
        """Pack number of each document, int64[n], packed window by window in the order given."""
        result = np.empty(len(lengths), np.int64)
        used = 0
        for start in range(0, len(lengths), self.window):
            window = slice(start, start + self.window)
            result[window] = self.pack(lengths[window]) + used
            used = int(result[window].max()) + 1
        return result

    def pack(self, lengths: Ints) -> Ints:
        """Pack number of each document of one window, int64[n], numbered from 0 without gaps."""
        fit = best_fit_decreasing if self.best_fit else next_fit
        return fit(self.taken(lengths), self.sequence_length)


def check_overflow(overflow: object, where: str = "overflow") -> None:
    """Refuse what is no overflow policy.

    Raises:
        ConfigError: it is none.
    """
    if overflow not in get_args(Overflow):
        raise ConfigError(f"{where}: {overflow!r} is none of {', '.join(get_args(Overflow))}")


def best_fit_decreasing(lengths: Ints, capacity: int) -> Ints:
    """Assign each length to a bin: longest first, each into the fullest bin that still has room.

    Johnson's best-fit decreasing (1973); at most 11/9 of the optimal number of bins plus one. Equal
    lengths keep their order and equally full bins the lowest number, so the result is a pure function.
    O(n log n) comparisons.

    Args:
        lengths: int64[n], each in 0..capacity.
        capacity: slots per bin.

    Returns:
        Bin number per length, int64[n].
    """
    order = stable_order(capacity - lengths, capacity)
    bits = len(lengths).bit_length()  # of a bin's number: no more, as Python is faster with integers below 2**30
    empty = capacity << bits
    beyond = (capacity + 1) << bits
    free = [beyond]  # sorted (room, bin) of the bins that have room, each pair in one integer, and one without end
    chosen: list[int] = []
    choose = chosen.append
    bins = 0
    useful = max(1, int(lengths.min(initial=capacity))) << bits  # with less room a bin is full
    for length in (lengths[order] << bits).tolist():
        at = bisect_left(free, length)
        key = free[at]
        if key < beyond:
            del free[at]
        else:
            key = empty | bins
            bins += 1
        choose(key)
        key -= length
        if key >= useful:
            insort(free, key)
    result = np.empty(len(lengths), np.int64)
    result[order] = np.array(chosen, np.int64) & ((1 << bits) - 1)
    return result


def next_fit(lengths: Ints, capacity: int) -> Ints:
    """Assign each length to a bin in the order given, opening a new bin when one does not fit.

    Args:
        lengths: int64[n], each in 0..capacity.
        capacity: slots per bin.

    Returns:
        Bin number per length, int64[n], never decreasing.
    """
    ends = np.cumsum(lengths)
    result = np.empty(len(lengths), np.int64)
    first, filled, bins = 0, 0, 0
    while first < len(lengths):
        stop = int(np.searchsorted(ends, filled + capacity, side="right"))
        result[first:stop] = bins
        first, filled, bins = stop, int(ends[stop - 1]), bins + 1
    return result


def pack_lengths(lengths: ArrayLike | Sequence[int], sequence_length: int, lookahead: int | None = None) -> Ints:
    """Pack documents by their lengths alone, window by window.

    Args:
        lengths: tokens per document, integers in 0..sequence_length, in draw order.
        sequence_length: slots per pack.
        lookahead: documents packed together by best-fit decreasing; 0 is next-fit in the order given;
            None takes ``max(1024, sequence_length // 4)``.

    Returns:
        Pack number of each document, int64[n], numbered from 0 without gaps. Deterministic.

    Raises:
        ConfigError: a length is no integer, negative or above `sequence_length`; the message has its index.
    """
    packing = Packing(sequence_length=sequence_length, lookahead=lookahead)
    given = np.asarray(lengths)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise ConfigError(f"lengths: {given.dtype}{list(given.shape)} is not a list of integers")
    sizes = given.astype(np.int64)
    wrong = np.flatnonzero((sizes < 0) | (sizes > sequence_length))
    if len(wrong):
        at = int(wrong[0])
        raise ConfigError(
            f"lengths[{at}] = {sizes[at]} does not fit a pack of {sequence_length} slots: truncate or split it first"
        )
    return packing.pack_windows(sizes)
