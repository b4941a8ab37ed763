"""The rules for tokenized rows that are Python objects; `validation` has them for Arrow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsft.errors import StoreError
from streamsft.sources.tokennames import ATTENTION, CHOSEN, IDS, LABELS, MASK, SHARED, UNSUPERVISED
from streamsft.types import Bools, Int32s

__all__ = ["checked_row"]

_MAX_ID = np.iinfo(np.int32).max


def checked_row(row: Mapping[str, Any], where: str) -> tuple[Int32s, Bools]:
    """Ids int32[n] and mask bool[n] of a row with ``input_ids`` and ``loss_mask`` or ``labels``.

    Raises:
        StoreError: a field is missing, is no flat list, has another length than ``input_ids``, or holds something
            else than it should.
    """
    missing = [] if IDS in row else [IDS]
    if MASK not in row and LABELS not in row:
        missing.append(MASK)
    if missing:
        raise StoreError(f"{where}: has no {' and no '.join(missing)}, only {', '.join(map(str, row))}")
    if SHARED in row or CHOSEN in row:
        raise StoreError(
            f"{where}: has a {SHARED}, so it is a preference pair, which JSON does not hold; write Arrow or Parquet"
        )
    ids = _numbers(row[IDS], f"{where}, {IDS}", "iu")
    _check(ids, (ids < 0) | (ids > _MAX_ID), f"{where}: {IDS}", f"allowed are 0 to {_MAX_ID:,}")
    found: list[Bools] = []
    for name in (MASK, LABELS, ATTENTION):
        if name in row:
            values = _numbers(row[name], f"{where}, {name}", "iu" if name == LABELS else "iubf")
            if len(values) != len(ids):
                raise StoreError(
                    f"{where}: {IDS} has {len(ids):,} entries, {name} {len(values):,}; they must be equally long"
                )
            found += _supervised(name, values, ids, where)
    if len(found) > 1 and (found[0] != found[1]).any():
        raise StoreError(f"{where}: {MASK} and {LABELS} do not agree on what is trained on; leave one of them out")
    return ids.astype(np.int32), found[0]


def _supervised(name: str, values: NDArray[Any], ids: NDArray[Any], where: str) -> list[Bools]:
    """What `values` say is supervised, checked; nothing where they are an attention mask."""
    if name == LABELS:
        fix = f"a label is the id at its own place, or {UNSUPERVISED}"
        _check(values, (values != UNSUPERVISED) & (values != ids), f"{where}: {LABELS}", fix)
        return [values != UNSUPERVISED]
    if name == ATTENTION:
        _check(values, values != 1, f"{where}: {ATTENTION}", "so the row is padded; store rows without padding")
        return []
    _check(values, ~((values == 0) | (values == 1)), f"{where}: {MASK}", "write 1 where a token is trained on, else 0")
    return [values.astype(np.bool_)]


def _check(values: NDArray[Any], wrong: Bools, what: str, fix: str) -> None:
    if wrong.any():
        raise StoreError(f"{what} holds {values[int(np.argmax(wrong))]}; {fix}")


def _numbers(values: Any, where: str, kinds: str) -> NDArray[Any]:
    """`values` as a flat array of numbers of these `kinds`, as numpy calls them."""
    if values is None:
        raise StoreError(f"{where}: is null; remove the row, or write a list, which may be empty")
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError) as error:
        raise StoreError(f"{where}: needs a flat list of integers ({error})") from error
    if array.ndim != 1:
        found = type(values).__name__ if array.ndim == 0 else f"lists in it, {list(array.shape)}"
        raise StoreError(f"{where}: needs a flat list of integers, found {found}")
    if not len(array):
        return array.astype(np.int32)
    mixed = "b" not in kinds and isinstance(values, list) and bool in set(map(type, values))  # numpy makes them 1 and 0
    if array.dtype.kind not in kinds or mixed:
        wrong = [value for value in np.asarray(values, object).tolist() if _kind(value) not in kinds]
        held = wrong[0] if wrong else max(values, key=abs)  # a whole number that no array has room for
        raise StoreError(f"{where}: needs a flat list of integers, and holds {held!r}; write the row again")
    return array


def _kind(value: Any) -> str:
    """The kind of a value, as numpy calls it."""
    return np.asarray(value).dtype.kind if not isinstance(value, int) or isinstance(value, bool) else "i"
