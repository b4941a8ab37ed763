"""Small random mixes with streaming sources, for the laws that hold whatever the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from streamsft.order.keys import derive_key
from streamsft.sources.streaming import StreamingSource
from streamsft.stream.draws import Unit
from streamsft.stream.interleave import Interleave
from streamsft.stream.loader import Loader
from streamsft.stream.packer import Packer
from streamsft.stream.packing import Overflow
from streamsft.types import Shard
from tests.fakes import ListShards, ListSource, Row, streamed
from tests.laws import Rows
from tests.mixes import random_rows

__all__ = ["STREAMED_STAGES", "Shards", "StreamedMix", "streamed_mixes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """A source of shards of rows.

    Attributes:
        lengths: tokens of each row, shard by shard.
        refused: about one row in so many gives no tokens; 0 for none. The first never is.
        plain: whether all rows are supervised but for the first token; by default masks are random.
        window: rows shuffled together.
        block_bytes: what closes a block early; a token counts 8.
        shuffle: whether passes are shuffled.
        indexed: the same rows without the refused ones, as a source that is read by index.
        version: another one has other tokens.
    """

    lengths: tuple[tuple[int, ...], ...] = ((2, 5, 9), (3, 4, 30), (2,), (6, 7, 8, 1))
    refused: int = 3
    plain: bool = False
    window: int = 4
    block_bytes: int = 1 << 20
    shuffle: bool = True
    indexed: bool = False
    version: int = 0

    def rows(self, name: str, seed: int) -> list[list[Row]]:
        flat = [length for shard in self.lengths for length in shard]
        source = random_rows(name, seed, flat)
        rows: list[Row] = []
        for at, (ids, mask) in enumerate(zip(source.ids, source.masks, strict=True)):
            labelled = [0, *[1] * (len(mask) - 1)] if self.plain else mask.astype(int).tolist()
            left_out = at and self.refused and derive_key(seed, name, "refused", at) % self.refused == 0
            tokens = [int(ids[0]), *(ids[1:] + 10**6 * self.version).tolist()]
            rows.append((tokens, labelled, ("too_dull", "too_odd")[at % 2] if left_out else ""))
        ends = [sum(map(len, self.lengths[:number])) for number in range(len(self.lengths) + 1)]
        return [rows[start:stop] for start, stop in pairwise(ends)]

    def accepted(self, name: str, seed: int) -> ListSource:
        return ListShards(self.rows(name, seed)).accepted(name)

    def source(self, name: str, seed: int) -> ListSource | StreamingSource:
        if self.indexed:
            return self.accepted(name, seed)
        return streamed(
            name,
            self.rows(name, seed),
            shuffle=self.shuffle,
            shuffle_window=self.window,
            block_bytes=self.block_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedMix:
    """A small mix of streaming sources, and of some that are read by index; the same arguments make the same one."""

    seed: int = 0
    shards: Mapping[str, Shards] | None = None
    weights: tuple[Any, ...] = (2.0, 1.0, 0.5)
    unit: Unit = "samples"
    sequence_length: int = 12
    lookahead: int | None = 7
    overflow: Overflow = "truncate"

    @property
    def by_name(self) -> Mapping[str, Shards]:
        if self.shards is not None:
            return self.shards
        return {"s0": Shards(), "s1": Shards(indexed=True), "s2": Shards(lengths=((3, 2, 4),), refused=0)}

    @property
    def names(self) -> list[str]:
        return list(self.by_name)

    def sources(self) -> list[ListSource | StreamingSource]:
        return [shards.source(name, self.seed) for name, shards in self.by_name.items()]

    def rows(self, packed: bool = True) -> list[Rows]:
        """What each source should give."""
        accepted = [shards.accepted(name, self.seed) for name, shards in self.by_name.items()]
        return [
            Rows(one, self.sequence_length if packed else None, self.overflow if packed else "truncate")
            for one in accepted
        ]

    def flat(self, window: int = 5, **options: Any) -> Interleave:
        return Interleave(
            self.sources(), self.weights[: len(self.by_name)], unit=self.unit, seed=self.seed, window=window, **options
        )

    def nested(self, window: int = 5) -> Interleave:
        first, *others = self.sources()
        if not others:
            inner = Interleave([first], [1.0], name="inner")
            return Interleave([inner], [1.0], unit=self.unit, seed=self.seed, window=window)
        inner = Interleave(others, self.weights[1 : len(self.by_name)], name="inner")
        return Interleave([first, inner], [1.0, 2.0], unit=self.unit, seed=self.seed, window=window)

    def packer(self, *, nested: bool = False, **options: Any) -> Packer:
        mix = self.nested() if nested else self.flat()
        return Packer(mix, self.sequence_length, lookahead=self.lookahead, overflow=self.overflow, **options)

    def stream(self, shard: Shard | None = None) -> Any:
        """The first streaming source by itself, or the only source."""
        streaming = [source for source in self.sources() if isinstance(source, StreamingSource)]
        if not streaming:
            (name, shards), *_ = self.by_name.items()
            streaming = [replace(shards, indexed=False).source(name, self.seed)]  # type: ignore[list-item]
        return streaming[0].stream(seed=self.seed, shard=shard)

    def loader(self, **options: Any) -> Loader:
        defaults = {"global_batch_size": 4, "lanes_per_step": 2, "lane_groups": 2, "background": False, "pad_id": 7}
        return Loader(self.packer(), **{**defaults, **options})


STREAMED_STAGES: Mapping[str, Callable[[StreamedMix], Any]] = {
    "streaming source": lambda mix: mix.stream(),
    "flat mix": lambda mix: mix.flat(),
    "nested mix": lambda mix: mix.nested(),
    "packer": lambda mix: mix.packer(),
    "packer of a nested mix": lambda mix: mix.packer(nested=True),
    "packer of a source": lambda mix: Packer(
        mix.sources()[0], mix.sequence_length, lookahead=20, overflow=mix.overflow
    ),
    "loader of one lane": lambda mix: mix.loader(lanes_per_step=1, lane_groups=1),
    "loader": lambda mix: mix.loader(),
    "loader with a thread": lambda mix: mix.loader(background=True),
}


@st.composite
def shard_lists(draw: st.DrawFn, limit: int) -> Shards:
    shuffle = draw(st.sampled_from([True, True, True, False]))
    # without a shuffle a lane is dealt the same rows over and over, so it needs one that can be drawn in each unit
    row = st.integers(1, 3 * limit) if shuffle else st.integers(2, limit)
    lengths = [(2, *draw(st.lists(row, max_size=4))), *draw(st.lists(st.lists(row, max_size=5), max_size=3))]
    return Shards(
        lengths=tuple(map(tuple, lengths)),
        refused=draw(st.sampled_from([0, 2, 3])) if shuffle else 0,
        plain=not shuffle or draw(st.booleans()),
        window=draw(st.integers(1, 6)),
        block_bytes=draw(st.sampled_from([1, 100, 1 << 20])),
        shuffle=shuffle,
        indexed=draw(st.sampled_from([False, False, True])),
    )


@st.composite
def streamed_mixes(draw: st.DrawFn) -> StreamedMix:
    """Up to three sources of up to four shards, most of them streaming, with rows that are refused."""
    count = draw(st.integers(1, 3))
    limit = draw(st.integers(2, 16))
    weight = st.floats(0.05, 20.0)
    return StreamedMix(
        seed=draw(st.integers(0, 2**32)),
        shards={f"s{number}": draw(shard_lists(limit)) for number in range(count)},
        weights=draw(st.tuples(*[weight] * count)),
        unit=draw(st.sampled_from(["samples", "tokens"])),
        sequence_length=limit,
        lookahead=draw(st.sampled_from([1, 5, 16])),  # 0 has windows of 1,024 draws
        overflow=draw(st.sampled_from(["truncate", "drop", "split"])),
    )
