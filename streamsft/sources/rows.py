"""Token stores from rows that are Python objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsft.errors import StoreError
from streamsft.sources.store import TokenStore
from streamsft.sources.writer import StoreWriter
from streamsft.types import Bools, Int32s, Sample

__all__ = ["store_of_rows"]

_ROWS = 1024
_MAX_ID = np.iinfo(np.int32).max


def store_of_rows(rows: Iterable[Mapping[str, Any] | Sample], name: str) -> TokenStore:
    """See `TokenStore.from_rows`."""
    with StoreWriter(None, name=name) as writer:
        remaining = iter(rows)
        while chunk := list(islice(remaining, _ROWS)):
            pairs = [_arrays(row, f"source {name}, row {i}") for i, row in enumerate(chunk, writer.rows)]
            writer.append(
                np.concatenate([ids for ids, _ in pairs]),
                np.concatenate([mask for _, mask in pairs]),
                np.array([len(ids) for ids, _ in pairs], np.int32),
                np.arange(writer.rows, writer.rows + len(pairs)),
            )
        return writer.close()


def _arrays(row: Mapping[str, Any] | Sample, where: str) -> tuple[Int32s, Bools]:
    if isinstance(row, Sample):
        row = {"input_ids": row.input_ids, "loss_mask": row.loss_mask}
    missing = [column for column in ("input_ids", "loss_mask") if column not in row]
    if missing:
        raise StoreError(f"{where}: has no {' and no '.join(missing)}, only {', '.join(map(str, row))}")
    ids = _integers(row["input_ids"], f"{where}, input_ids", _MAX_ID).astype(np.int32)
    mask = _integers(row["loss_mask"], f"{where}, loss_mask", 1).astype(np.bool_)
    if len(ids) != len(mask):
        raise StoreError(
            f"{where}: input_ids has {len(ids):,} entries, loss_mask {len(mask):,}; they must be equally long"
        )
    return ids, mask


def _integers(values: Any, where: str, top: int) -> NDArray[Any]:
    """`values` as a flat array of integers or booleans in [0, top]; None counts as empty."""
    try:
        array = np.asarray([] if values is None else values)
    except ValueError as error:
        raise StoreError(f"{where}: needs a flat list of integers ({error})") from error
    if array.ndim != 1 or (array.dtype.kind not in "iub" and len(array)):
        raise StoreError(f"{where}: needs a flat list of integers, found {array.dtype}{list(array.shape)}")
    if len(array) and (int(array.min()) < 0 or int(array.max()) > top):
        bad = array[(array < 0) | (array > top)][0]
        raise StoreError(f"{where}: holds {bad}; allowed are 0 to {top:,}")
    return array
