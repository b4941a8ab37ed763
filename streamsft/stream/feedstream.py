"""`FeedStream`: one streaming source by itself, endlessly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, final

from streamsft.errors import StateError
from streamsft.sources.streaming import StreamingSource
from streamsft.stream.blocks import FeedState
from streamsft.stream.faces import InfiniteDataset, Info
from streamsft.stream.feed import Feed
from streamsft.types import Sample, Shard

__all__ = ["FeedStream"]


@final
class FeedStream(InfiniteDataset[Sample]):
    """One streaming source, endlessly: what ``StreamingSource.stream()`` gives.

    Args:
        source: the source.
        seed: seed of the order.
        shard: which part of the stream; the parts of one pass are disjoint and complete.

    Raises:
        EmptySourceError: while iterating, if no row can be used in as many passes as there are parts.
    """

    def __init__(self, source: StreamingSource, *, seed: int = 0, shard: Shard | None = None) -> None:
        super().__init__(shard or Shard())
        self.source = source
        self.seed = seed
        self._feed: Feed | None = None
        self._drawn = 0

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def info(self) -> Info:
        order = f"shuffled in blocks of {self.source.shuffle_window:,} rows" if self.source.shuffle else "in order"
        return Info(self.name, f"read as a stream, {order}")

    @property
    def fingerprint(self) -> dict[str, Any]:
        source = self.source
        return {
            "seed": self.seed,
            "shuffle": source.shuffle_window if source.shuffle else 0,
            "sources": {self.name: [source.fingerprint, 1.0]},
        }

    def _begin(self, shard: Shard, position: Mapping[str, Any] | None) -> None:
        state = None
        if position is not None:
            try:
                state = FeedState.from_json(position["feed"])
            except (LookupError, TypeError, ValueError) as error:
                raise StateError(f"{self.name}: the state's position is {position!r}") from error
        self._drawn = 0
        self._feed = Feed(self.source, seed=self.seed, lane=shard.index, lanes=shard.count, packing=None, state=state)

    def _position(self) -> dict[str, Any]:
        assert self._feed is not None
        return {"feed": self._feed.state(self._drawn).to_json()}

    def _items(self) -> Iterator[Sample]:
        feed = self._feed
        assert feed is not None
        while True:
            row = feed.one(self._drawn)
            feed.forget(self._drawn)
            self._drawn += 1
            yield Sample(
                input_ids=row.input_ids,
                loss_mask=row.loss_mask,
                source=self.name,
                row=row.row,
                pass_index=row.pass_index,
            )
