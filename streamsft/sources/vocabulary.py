"""How many token ids stores hold, and ids that the tokenizer in use does not have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np

from streamsft.errors import StoreError
from streamsft.shown import placed
from streamsft.sources.base import Source
from streamsft.sources.manifest import Manifest

__all__ = ["ids_in", "refuse_ids_beyond"]

_ROWS = 1024


def ids_in(sources: Iterable[Any]) -> int | None:
    """The smallest number of token ids that has room for all rows of some stores; None if one of them is no store."""
    manifests = [getattr(source, "manifest", None) for source in sources]
    known = [manifest.largest_id + 1 for manifest in manifests if isinstance(manifest, Manifest)]
    return max(known) if known and len(known) == len(manifests) else None


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
                    f"{placed(store.origin(row))}: input_ids holds {ids.max()}, and the tokenizer in use has "
                    f"{vocabulary:,} ids, from 0; use the tokenizer that the store was made with"
                )
    raise AssertionError("a store's largest id is the id of one of its rows")
