"""Token ids that the tokenizer in use does not have."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from streamsft.errors import StoreError
from streamsft.sources.base import Source

__all__ = ["refuse_ids_beyond"]

_ROWS = 1024


def refuse_ids_beyond(store: Source, vocabulary: int) -> NoReturn:
    """Name the first row of a store with an id of `vocabulary` or above, of which there is one.

    Raises:
        StoreError: always.
    """
    for first in range(0, len(store), _ROWS):
        index = np.arange(first, min(first + _ROWS, len(store)))
        for row, ids in zip(index.tolist(), store.read(index)[0], strict=True):
            if len(ids) and int(ids.max()) >= vocabulary:
                raise StoreError(
                    f"{store.origin(row)}: input_ids holds {ids.max()}, and the tokenizer in use has {vocabulary:,} "
                    "ids, from 0; use the tokenizer that the store was made with"
                )
    raise AssertionError("a store's largest id is the id of one of its rows")
