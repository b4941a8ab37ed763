"""Small random mixes, for laws that hold whatever the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from hypothesis import strategies as st

from streamsft.order.keys import derive_key, hash64
from streamsft.sources.store import TokenStore
from streamsft.stream.interleave import Interleave
from streamsft.stream.packer import Packer
from streamsft.stream.packing import Overflow
from streamsft.stream.sourcestream import SourceStream
from tests.fakes import GroupedList, ListSource
from tests.laws import Rows

__all__ = ["Mix", "as_store", "mixes", "random_lengths", "random_rows"]


def random_rows(name: str, seed: int, lengths: Sequence[int]) -> ListSource:
    """Rows of the given lengths with random masks; every token occurs once. Row 0 gets two tokens, one supervised."""
    rows = []
    for row, length in enumerate(lengths):
        ids = [row, *(1000 * (row + 1) + at for at in range(1, length))][:length]
        mask = hash64(derive_key(seed, name, row), np.arange(length)) % np.uint64(3) == 0
        rows.append((ids, mask.tolist()))
    rows[0] = ([0, 1], [0, 1])
    numbers = np.cumsum(1 + hash64(derive_key(seed, name, "gaps"), np.arange(len(rows))) % np.uint64(2)) - 1
    return ListSource(name, rows, numbers.astype(np.int64).tolist())


def as_store(source: ListSource) -> TokenStore:
    """The same rows, as a token store in memory."""
    with TokenStore.writer(None, name=source.name) as writer:
        writer.append(np.concatenate(source.ids), np.concatenate(source.masks), source.lengths, source.row_numbers)
        return writer.close()


def random_lengths(seed: int, rows: int, median: float = 100.0, spread: float = 0.8, longest: int = 900) -> list[int]:
    """Log-normal lengths as chats have them, from 2 tokens to `longest`."""
    uniform = (hash64(derive_key(seed, "lengths"), np.arange(2 * rows)) + 0.5) / 2.0**64
    normal = np.sqrt(-2 * np.log(uniform[:rows])) * np.cos(2 * np.pi * uniform[rows:])  # Box and Muller
    lengths: list[int] = np.clip(median * np.exp(spread * normal), 2, longest).astype(int).tolist()
    return lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """A small mix; the same arguments make the same one."""

    seed: int = 0
    lengths: tuple[tuple[int, ...], ...] = ((2, 5, 9, 3), (2, 7, 1, 14, 30, 4), (2,))
    weights: tuple[float, ...] | None = (2.0, 1.0, 0.5)
    sequence_length: int = 12
    lookahead: int | None = 7
    overflow: Overflow = "truncate"

    @property
    def names(self) -> list[str]:
        return [f"s{number}" for number in range(len(self.lengths))]

    @lru_cache(maxsize=8)  # noqa: B019 - made over and over by the same law, and small
    def sources(self) -> tuple[ListSource, ...]:
        return [
            random_rows(name, self.seed, list(lengths)) for name, lengths in zip(self.names, self.lengths, strict=True)
        ]

    def rows(self, packed: bool = True) -> list[Rows]:
        """What each source should give."""
        limit = self.sequence_length if packed else None
        return [Rows(source, limit, self.overflow if packed else "truncate") for source in self.sources()]

    def flat(self, window: int = 5) -> Interleave:
        return Interleave(self.sources(), self.weights, seed=self.seed, window=window)

    def nested(self, window: int = 5) -> Interleave:
        first, *others = self.sources()
        if not others:
            return Interleave([Interleave([first], name="inner")], seed=self.seed, window=window)
        inner = Interleave(others, self.weights and self.weights[1:], name="inner")
        return Interleave([first, inner], [1.0, 2.0], seed=self.seed, window=window)

    def of_stores(self) -> Interleave:
        """The flat mix, of token stores that hold the same rows."""
        return Interleave([as_store(source) for source in self.sources()], self.weights, seed=self.seed, window=5)

    def grouped(self) -> list[SourceStream]:
        """The sources, stored in groups of some rows each, as streams that are shuffled by groups."""
        streams = []
        for number, source in enumerate(self.sources()):
            cuts = hash64(derive_key(self.seed, source.name, "cuts"), np.arange(len(source) - 1)) % np.uint64(2)
            bounds = [0, *(np.flatnonzero(cuts) + 1).tolist(), len(source), *[len(source)] * (number % 2)]
            streams.append(SourceStream(GroupedList(source, bounds), seed=self.seed, shuffle_groups=1 + number % 3))
        return streams

    def by_groups(self) -> Interleave:
        """The flat mix, shuffled by row groups; its second source, if there is one, row by row."""
        pairs = enumerate(zip(self.sources(), self.grouped(), strict=True))
        children = [source if number == 1 else stream for number, (source, stream) in pairs]
        return Interleave(children, self.weights, seed=self.seed, window=5)

    def packer_by_groups(self) -> Packer:
        return Packer(self.by_groups(), self.sequence_length, lookahead=self.lookahead, overflow=self.overflow)

    def packer(self, *, nested: bool = False) -> Packer:
        mix = self.nested() if nested else self.flat()
        return Packer(mix, self.sequence_length, lookahead=self.lookahead, overflow=self.overflow)


@st.composite
def mixes(draw: st.DrawFn) -> Mix:
    """Up to four sources of up to eight rows, shorter and longer than a pack, some with nothing supervised."""
    count = draw(st.integers(1, 4))
    limit = draw(st.integers(2, 24))
    row = st.integers(1, 3 * limit)
    weight = st.floats(0.05, 20.0)
    return Mix(
        seed=draw(st.integers(0, 2**32)),
        lengths=tuple((2, *draw(st.lists(row, max_size=7))) for _ in range(count)),
        weights=draw(st.none() | st.tuples(*[weight] * count)),
        sequence_length=limit,
        lookahead=draw(st.sampled_from([0, 1, 5, 16])),
        overflow=draw(st.sampled_from(["truncate", "drop", "split"])),
    )
