"""Several stores as one map-style dataset, for samplers and loaders of others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, final

import numpy as np

from streamsft.errors import ConfigError
from streamsft.sources.indexing import rows_at
from streamsft.sources.rowgroups import RowGroupStore
from streamsft.sources.store import TokenStore
from streamsft.types import Int32s, Ints, Sample

__all__ = ["ConcatStore"]


@final
class ConcatStore:
    """The rows of several stores, one store after the other, as a map-style dataset.

    ::

        both = ConcatStore([gsm8k, code])
        weights = np.repeat([3.0, 1.0] / both.dataset_lengths, both.dataset_lengths)
        sampler = torch.utils.data.WeightedRandomSampler(weights, len(both))
        loader = torch.utils.data.DataLoader(both, batch_size=8, sampler=sampler, collate_fn=...)

    For streams that are mixed by weight without end there is `Interleave`.

    Args:
        stores: at least one; their names are what `Sample.source` says. Of another `ConcatStore` its stores are taken.

    Raises:
        ConfigError: there is none, something else is given, or two have the same name.
    """

    def __init__(self, stores: Sequence[TokenStore | RowGroupStore | ConcatStore]) -> None:
        found: list[TokenStore | RowGroupStore] = []
        for store in stores:
            if not isinstance(store, TokenStore | RowGroupStore | ConcatStore):
                raise ConfigError(f"ConcatStore: {store!r} is no store; open it first (TokenStore.open)")
            found += store.stores if isinstance(store, ConcatStore) else [store]
        self.stores: tuple[TokenStore | RowGroupStore, ...] = tuple(found)
        names = [store.name for store in self.stores]
        if not names:
            raise ConfigError("ConcatStore: there is no store to concatenate; give at least one")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"ConcatStore: two stores are named {twice!r}; rename one (TokenStore.renamed)")
        self.dataset_lengths: Ints = np.array([len(store) for store in self.stores], np.int64)
        """Rows of each store, int64[stores]."""
        self._stops = np.cumsum(self.dataset_lengths)

    @cached_property
    def sequence_lengths(self) -> Int32s:
        """Tokens of each row, int32[rows], for samplers that go by length."""
        return np.concatenate([store.lengths for store in self.stores])

    def __len__(self) -> int:
        return int(self._stops[-1])

    def __getitem__(self, index: int) -> Sample:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """The samples of several rows at once, in the order asked for, repeats kept; negative indices count from the
        end. Each store is asked once.

        Raises:
            TypeError: something else than the number of a row is asked for.
            IndexError: a row that is not there.
        """
        index = rows_at(indices, len(self), "ConcatStore")
        number = self._stops.searchsorted(index, "right")
        starts = self._stops - self.dataset_lengths
        found: list[Any] = [None] * len(index)
        for store in np.unique(number).tolist():
            places = np.flatnonzero(number == store)
            samples = self.stores[store].__getitems__((index[places] - starts[store]).tolist())
            for place, sample in zip(places.tolist(), samples, strict=True):
                found[place] = sample
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "sequence_lengths"}

    def __repr__(self) -> str:
        return f"ConcatStore({', '.join(map(repr, self.stores))})"
