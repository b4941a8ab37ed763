"""`SourceStream`: one source as an endless stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, final

import numpy as np

from streamsft.errors import StateError
from streamsft.order.keys import derive_key, hash64
from streamsft.order.permutation import permute
from streamsft.sources.base import Source
from streamsft.stream.carrying import carried_by, extras_of
from streamsft.stream.faces import InfiniteDataset, Info
from streamsft.stream.mixture import Leaf, checked_groups, usable_rows
from streamsft.stream.packing import Overflow, check_overflow
from streamsft.types import Ints, Sample, Shard

__all__ = ["SourceStream"]

_READ_AHEAD = 64  # documents that are read at a time


@final
class SourceStream(InfiniteDataset[Sample]):
    """One source, endlessly, each pass in an order of its own: what ``TokenStore.stream()`` gives.

    Args:
        source: the source.
        seed: seed of the order.
        shard: which part of the stream; the parts of one pass are disjoint and complete.
        shuffle: whether passes are shuffled; if not, rows come in the order of the input.
        shuffle_groups: shuffle row groups, then rows within blocks of so many groups, so that each group is read by
            one part and once per pass. By default the rows of a whole pass are shuffled.
        overflow: what a `Packer` does with its rows that are too long; by default what it does with all.

    Raises:
        EmptySourceError: the source has no row with a supervised token.
        ConfigError: `shuffle_groups` is no number >= 1, or the source has no row groups.
    """

    def __init__(
        self,
        source: Source,
        *,
        seed: int = 0,
        shard: Shard | None = None,
        shuffle: bool = True,
        shuffle_groups: int | None = None,
        overflow: Overflow | None = None,
    ) -> None:
        super().__init__(shard or Shard())
        self.source = source
        self.seed = seed
        self.shuffle = shuffle
        self.overflow = overflow
        if overflow is not None:
            check_overflow(overflow, f"source {source.name!r}: overflow")
        self.shuffle_groups = checked_groups(source, shuffle, shuffle_groups)
        usable, dropped = usable_rows(source, None)
        self._leaf = Leaf(
            source=source, share=1.0, shuffle=shuffle, shuffle_groups=shuffle_groups, usable=usable, dropped=dropped
        )
        self._order = self._leaf.group_order(seed)
        self._drawn = 0

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def info(self) -> Info:
        order = "a new order each pass" if self.shuffle else "in the order of the input"
        if self.shuffle_groups is not None:
            order += f" by row groups, in blocks of {self.shuffle_groups}"
        return Info(self.name, f"{self._leaf.rows:,} rows, {order}")

    @property
    def fingerprint(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "shuffle": self._leaf.order if self._order else self.shuffle,
            "sources": {self.name: [self.source.fingerprint, 1.0]},
        }

    def _begin(self, shard: Shard, position: Mapping[str, Any] | None) -> None:
        drawn = 0 if position is None else position.get("drawn")
        if not isinstance(drawn, int) or isinstance(drawn, bool) or drawn < 0:
            raise StateError(f"{self.name}: the state's draws are {drawn!r}, not a number >= 0")
        self._drawn = drawn

    def _position(self) -> dict[str, Any]:
        self._settle()
        return {"drawn": self._drawn}

    def _settle(self) -> None:
        """Write where the stream stands in its one form."""
        if self._order is not None and self._begun is not None:
            self._drawn = self._order.settled(self._begun.index, self._begun.count, self._drawn)

    def _located(self, shard: Shard, number: Ints) -> tuple[Ints, Ints]:
        """Passes of the draws `number`, and which of the drawable rows they are."""
        if self._order is not None:
            return self._order.located(shard.index, shard.count, number)
        pass_index, position = np.divmod(number * shard.count + shard.index, self._leaf.rows)
        if not self.shuffle:
            return pass_index, position
        keys = hash64(derive_key(self.seed, self.name, "rows"), pass_index.astype(np.uint64))
        return pass_index, permute(position, self._leaf.rows, keys)

    def _items(self) -> Iterator[Sample]:
        shard = self._begun
        assert shard is not None
        while True:
            self._settle()
            number = np.arange(self._drawn, self._drawn + _READ_AHEAD)
            pass_index, index = self._located(shard, number)
            stored = index if self._leaf.usable is None else self._leaf.usable[index]
            if self._order is not None:
                code = self._order.settled(shard.index, shard.count, self._drawn + _READ_AHEAD)
                self._leaf.announce(self._order, shard.index, shard.count, stored, code)
            ids, masks = self._leaf.read(stored)
            rows = self.source.row_numbers[stored].tolist()
            carried = self.source.read_carried(stored) if carried_by(self._leaf) else {}  # type: ignore[attr-defined]
            for at, passed in enumerate(pass_index.tolist()):
                self._drawn += 1
                yield Sample(
                    input_ids=ids[at], loss_mask=masks[at], source=self.name, row=rows[at], pass_index=passed,
                    extras=extras_of(carried, at),
                )  # fmt: skip
