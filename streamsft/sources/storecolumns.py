"""Which columns make a token store, and what is read of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, final

import pyarrow as pa

from streamsft.errors import StoreError
from streamsft.sources.columns import Ragged, ragged
from streamsft.sources.damage import decoding
from streamsft.sources.tokennames import ATTENTION, CHOSEN, GRIDS, IDS, LABELS, MASK, PIXELS, SHARED

__all__ = ["Chunk", "StoreColumns", "decode"]

_KNOWN = (IDS, MASK, LABELS, ATTENTION, PIXELS, GRIDS, SHARED, CHOSEN)

Chunk = tuple[Ragged, Ragged]
"""Ids and masks of some rows."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StoreColumns:
    """The columns of a file that a store uses.

    Attributes:
        supervision: what says which tokens are trained on: ``loss_mask``, or ``labels`` without one.
        beside: columns that are checked and then not used: ``attention_mask``, ``labels`` beside ``loss_mask``.
        images: whether there are ``pixel_values`` and ``image_grid_thw``.
        extras: columns that travel with their rows because they were named.
        pairs: whether the rows are preference pairs: there are ``shared_length`` and ``chosen_length``.
    """

    supervision: str
    beside: tuple[str, ...] = ()
    images: bool = False
    extras: tuple[str, ...] = ()
    pairs: bool = False

    @classmethod
    def of(cls, schema: pa.Schema, where: str, extras: Sequence[str] = ()) -> Self:
        """The columns of a file of this schema.

        Raises:
            StoreError: a column is missing or is there twice, or an extra is one that has a meaning of its own.
        """
        names = list(schema.names)
        _check_present(names, where, extras)
        images = PIXELS in names
        if images != (GRIDS in names):
            there, missing = (PIXELS, GRIDS) if images else (GRIDS, PIXELS)
            raise StoreError(f"{where}: has {there} but no column {missing}; images need both, rows of text neither")
        pairs = SHARED in names
        if pairs != (CHOSEN in names):
            there, missing = (SHARED, CHOSEN) if pairs else (CHOSEN, SHARED)
            raise StoreError(f"{where}: has {there} but no column {missing}; pairs need both, other rows neither")
        if pairs and images:
            raise StoreError(f"{where}: has pairs ({SHARED}) with images ({PIXELS}); pairs are of text alone")
        supervision = MASK if MASK in names else LABELS
        beside = [name for name in (LABELS, ATTENTION) if name in names and name != supervision]
        return cls(supervision=supervision, beside=tuple(beside), images=images, extras=tuple(extras), pairs=pairs)

    @property
    def carried(self) -> tuple[str, ...]:
        """What travels with the tokens."""
        return (*((PIXELS, GRIDS) if self.images else ()), *self.extras)

    @property
    def read(self) -> tuple[str, ...]:
        """What is read of a row when it is trained on."""
        return (IDS, self.supervision, *self.carried)

    @property
    def checked(self) -> tuple[str, ...]:
        """What is read when the file is validated."""
        return (*self.read, *self.beside, *((SHARED, CHOSEN) if self.pairs else ()))


def _check_present(names: Sequence[str], where: str, extras: Sequence[str]) -> None:
    missing = [IDS] if IDS not in names else []
    if MASK not in names and LABELS not in names:
        missing.append(MASK)
    if missing:
        raise StoreError(
            f"{where}: has no column {' and '.join(missing)}, only {', '.join(names) or 'none'}; a token store needs "
            "input_ids, and loss_mask or labels (for text give the source a `path` and the format of its rows)"
        )
    for name in extras:
        if name in _KNOWN:
            raise StoreError(f"{where}: extras: {name} is read already; name columns without a meaning of their own")
        if name not in names:
            raise StoreError(f"{where}: extras: has no column {name}, only {', '.join(names)}")
    for name in (*_KNOWN, *extras):
        if names.count(name) > 1:
            raise StoreError(f"{where}: has {names.count(name)} columns called {name}; rename or remove all but one")


def decode(batch: pa.RecordBatch, columns: StoreColumns, where: str, first_row: int = 0) -> Chunk:
    """Ids and masks of a record batch, in place as far as its layout allows. Values are not checked.

    Args:
        batch: the rows, with ``input_ids`` and what supervises them.
        columns: what is in it.
        where: the file, for messages.
        first_row: number in the file of the first row, for messages.

    Raises:
        StoreError: a column does not hold lists of numbers, or a null among them.
    """
    labels = columns.supervision == LABELS
    with decoding(where):
        ids = ragged(batch.column(IDS), f"{where}, column {IDS}", first_row=first_row, bits=False)
        mask = ragged(
            batch.column(columns.supervision),
            f"{where}, column {columns.supervision}",
            first_row=first_row,
            bits=not labels,
            floats=not labels,
            labels=labels,
        )
    return ids, mask
