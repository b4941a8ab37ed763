"""How many token ids stores hold, and ids that the tokenizer in use does not have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from streamsft.errors import StoreError
from streamsft.shown import placed
from streamsft.sources.base import Source
from streamsft.sources.manifest import Manifest

__all__ = ["ids_in", "refuse_ids_beyond"]

_ROWS = 1024


def ids_in(sources: Mapping[str, Any], *, most: int | None = None) -> int | None:
    """The smallest number of token ids that has room for all rows of some stores; None if one of them is no store.

    Args:
        sources: the stores, by name.
        most: the number of ids that what is trained may have.

    Raises:
        StoreError: a store has larger ids.
    """
    manifests = {name: getattr(source, "manifest", None) for name, source in sources.items()}
    known = {name: manifest.largest_id + 1 for name, manifest in manifests.items() if isinstance(manifest, Manifest)}
    name = max(known, key=lambda name: known[name], default="")
    if most is not None and known and known[name] > most:
        raise StoreError(
            f"source {name}: its largest token id is {known[name] - 1:,}, and the model to train has room for {most:,} "
            "ids; set `tokenizer`, and the row with the first id that it does not have is named"
        )
    return known[name] if known and len(known) == len(manifests) else None


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
