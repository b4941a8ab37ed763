"""Token stores from rows that are Python objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np

from streamsft.errors import StoreError
from streamsft.sources.rowchecks import checked_row
from streamsft.sources.store import TokenStore
from streamsft.sources.writer import StoreWriter
from streamsft.types import Sample

__all__ = ["store_of_rows"]

_ROWS = 1024


def store_of_rows(rows: Iterable[Mapping[str, Any] | Sample], name: str) -> TokenStore:
    """See `TokenStore.from_rows`."""
    with StoreWriter(None, name=name) as writer:
        remaining = iter(rows)
        while chunk := list(islice(remaining, _ROWS)):
            pairs = []
            for number, row in enumerate(chunk, writer.rows):
                where = f"source {name}, row {number}"
                pairs.append(checked_row(_fields(row, where), where))
            writer.append(
                np.concatenate([ids for ids, _ in pairs]),
                np.concatenate([mask for _, mask in pairs]),
                np.array([len(ids) for ids, _ in pairs], np.int32),
                np.arange(writer.rows, writer.rows + len(pairs)),
            )
        return writer.close()


def _fields(row: Mapping[str, Any] | Sample, where: str) -> Mapping[str, Any]:
    if isinstance(row, Sample):
        return {"input_ids": row.input_ids, "loss_mask": row.loss_mask}
    if not isinstance(row, Mapping):
        raise StoreError(f"{where}: is a {type(row).__name__}; give a dict with input_ids and loss_mask, or a Sample")
    return row
