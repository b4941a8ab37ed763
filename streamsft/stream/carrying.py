"""What travels with documents beside their tokens: images, and columns that were named."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from streamsft.shown import naming
from streamsft.sources.tokennames import GRIDS, PAIR, PIXELS
from streamsft.stream.documents import Documents
from streamsft.stream.mixture import Leaf

__all__ = ["Carried", "carried_by", "carried_of", "extras_of", "from_blob", "images_of", "part_of", "to_blob"]

Carried: TypeAlias = "Mapping[str, Sequence[Any]]"
"""Column → a value per document; None where its source does not have the column, or no value in it. ``pair`` is an
array, int32[documents, 2], 0 where a document is no preference pair."""


def carried_by(leaf: Leaf) -> tuple[str, ...]:
    """The columns that travel with the rows of a leaf."""
    return tuple(getattr(leaf.source, "carried", ()))


def carried_of(leaves: Sequence[Leaf], documents: Documents) -> Carried:
    """What travels with `documents`, in their order; nothing is done where nothing travels."""
    found: dict[str, Any] = {}
    for number, leaf in enumerate(leaves):
        if not carried_by(leaf):
            continue
        places = np.flatnonzero(documents.source == number)
        with naming(leaf.name):
            carried = leaf.source.read_carried(documents.stored[places])  # type: ignore[union-attr]
        for name, values in carried.items():
            if name == PAIR:
                found.setdefault(name, np.zeros((len(documents.source), 2), np.int32))[places] = values
                continue
            column = found.setdefault(name, [None] * len(documents.source))
            for place, value in zip(places.tolist(), values, strict=True):
                column[place] = value
    return found


def extras_of(carried: Carried, at: int) -> dict[str, Any]:
    """What travels with document number `at`: the columns in which it has a value."""
    found = {name: values[at] for name, values in carried.items() if values[at] is not None}
    if PAIR in found and not found[PAIR].any():
        del found[PAIR]
    return found


def part_of(carried: Carried, chosen: slice) -> Carried:
    """What travels with some of the documents."""
    return {name: values[chosen] for name, values in carried.items()}


def images_of(carried: Carried) -> dict[str, Any]:
    """The patches of all images end to end, and their grids, as arrays, in the order of their documents.

    ``pixel_values`` [patches, values] of the stored type, ``image_grid_thw`` int64[images, 3]; {} without an image.
    """
    found = {}
    for name in (PIXELS, GRIDS):
        values = [value for value in carried.get(name, ()) if value is not None and len(value)]
        if values:
            found[name] = np.concatenate(values, axis=0)
    if GRIDS in found:
        found[GRIDS] = found[GRIDS].astype(np.int64)
    return found


def to_blob(carried: Carried) -> bytes:
    """For the way out of a worker process of this run."""
    return pickle.dumps(dict(carried), pickle.HIGHEST_PROTOCOL) if carried else b""


def from_blob(blob: bytes) -> Carried:
    """What `to_blob` wrote in this run."""
    found: Carried = pickle.loads(blob) if blob else {}
    return found
