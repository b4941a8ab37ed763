"""What a source of one's own says of its rows, held against itself and against what it gives.

The stores of this package check their rows when they are opened. Any other source is not taken at its
word: a length, a mask or an id other than it says would train a model on something else without a sign.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from streamsft.errors import DataError, StreamsftError
from streamsft.sources.base import IdsSource, Source
from streamsft.types import Bools, Int32s, Ints

__all__ = ["Promises", "is_checked", "promises_of", "read_as_promised", "read_ids_as_promised"]

_MAX_ID = np.iinfo(np.int32).max
_T = TypeVar("_T")


class Promises(NamedTuple):
    """What a source says of its rows; an entry per stored row each."""

    lengths: NDArray[Any]
    """Tokens."""
    supervised: NDArray[Any]
    """Supervised tokens at index 1 or later."""
    first_supervised: NDArray[Any]
    """Index of the first of these."""
    row_numbers: NDArray[Any]
    """Number of the row in the input."""


def is_checked(source: Any) -> bool:
    """Whether a source is one of this package, whose rows were checked when it was opened, or lies over such a one."""
    ours = type(source).__module__.partition(".")[0] == __name__.partition(".")[0]
    below = getattr(source, "store", None) if ours else None
    return ours if below is None else is_checked(below)


def promises_of(source: Source) -> Promises:
    """What `source` says of its rows.

    Raises:
        DataError: a member fails or is of another kind or length than it must be, or members contradict each other;
            names the source, and the row where it is known.
    """
    name = f"source {source.name!r}"
    rows = _of_user(lambda: len(source), f"{name}: __len__()")
    promises = Promises(*(_column(source, member, rows) for member in Promises._fields))
    _check_agreement(name, promises)
    fingerprint = _of_user(lambda: source.fingerprint, f"{name}: fingerprint")
    if not isinstance(fingerprint, str) or not fingerprint:
        raise DataError(
            f"{name}: its fingerprint is {fingerprint!r}; give a short text that changes with the contents, such as a "
            "hex digest: a resumed run knows by it that the rows are the same"
        )
    return promises


def _of_user(call: Callable[[], _T], what: str) -> _T:
    """What a user's code gives, with a failure told as one of its source; errors of this package stay as they are."""
    try:
        return call()
    except StreamsftError:
        raise
    except Exception as error:
        raise DataError(f"{what} failed: {error!r}") from error


def _column(source: Source, member: str, rows: int) -> NDArray[Any]:
    values: Any = _of_user(lambda: getattr(source, member), f"source {source.name!r}: {member}")
    kind = "int64" if member == "row_numbers" else "int32"
    if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.kind not in "iu":
        raise DataError(
            f"source {source.name!r}: {member} is {_shown(values)}; give a numpy array of whole numbers, {kind}[rows]"
        )
    if len(values) != rows:
        raise DataError(
            f"source {source.name!r}: {member} has {len(values):,} entries where __len__() says {rows:,} rows; give "
            "one for each row"
        )
    return values


def _check_agreement(name: str, promises: Promises) -> None:
    """Refuse numbers that no row can have.

    Raises:
        DataError: there are some; names the first row.
    """
    lengths, supervised, first, rows = (column.astype(np.int64, copy=False) for column in promises)
    none = supervised == 0
    wrong = (lengths < 0) | (supervised < 0) | (none & (first < lengths))
    wrong |= ~none & ((first < 1) | (first + supervised > lengths))
    if wrong.any():
        at = int(np.argmax(wrong))
        raise DataError(
            f"{name}, row {rows[at]}: lengths says {lengths[at]}, supervised {supervised[at]}, first_supervised "
            f"{first[at]}, which no row can have; supervised counts from index 1 on, first_supervised is the index of "
            "the first of them, and the length where there is none"
        )
    behind = np.diff(rows, prepend=-1) <= 0
    if behind.any():
        at = int(np.argmax(behind))
        raise DataError(
            f"{name}: row_numbers holds {rows[at]} at place {at}, "
            + (f"behind {rows[at - 1]}" if at else "the first")
            + "; they must be >= 0 and strictly increasing"
        )


def read_as_promised(source: Source, promises: Promises, index: Ints) -> tuple[list[Int32s], list[Bools]]:
    """Ids (int32[n] each, contiguous) and masks (bool[n] each) of the stored rows `index` (int64[k]).

    Raises:
        DataError: `read` failed, or gave something else than was asked for and promised; names the source and the row,
            or the rows where it is not known which.
    """
    where = _Where(source.name, promises, index, "read()")
    given: Any = _of_user(lambda: source.read(index), f"{where.all}: {where.by}")
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise DataError(f"{where.all}: read() gave {_shown(given)}; give two lists, of ids and of masks of the rows")
    ids, masks = (_rows(part, what, where) for part, what in zip(given, ("ids", "mask entries"), strict=True))
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    entries = np.fromiter(map(len, masks), np.int64, len(masks))
    wrong = (lengths != promises.lengths[index]) | (entries != lengths)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise _another_length(where, at, f"{lengths[at]} ids and {entries[at]} mask entries")
    if ids:
        _check_ids(ids, where)
        masks = _check_masks(masks, lengths, where)
    return [np.ascontiguousarray(row, np.int32) for row in ids], masks


def read_ids_as_promised(source: IdsSource, promises: Promises, index: Ints) -> list[Int32s]:
    """The same of ids alone, by `read_ids`."""
    where = _Where(source.name, promises, index, "read_ids()")
    given: Any = _of_user(lambda: source.read_ids(index), f"{where.all}: {where.by}")
    if isinstance(given, Sequence):
        given = [np.asarray(row) if isinstance(row, memoryview) else row for row in given]
    ids = _rows(given, "ids", where)
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    wrong = lengths != promises.lengths[index]
    if wrong.any():
        at = int(np.argmax(wrong))
        raise _another_length(where, at, f"{lengths[at]} ids")
    if ids:
        _check_ids(ids, where)
    return [np.ascontiguousarray(row, np.int32) for row in ids]


class _Where(NamedTuple):
    """What was asked for, for messages."""

    name: str
    promises: Promises
    stored: Ints
    by: str
    """The member that was called."""

    def row(self, at: int) -> str:
        """The row at place `at` of those that were asked for."""
        return f"source {self.name!r}, row {self.promises.row_numbers[self.stored[at]]}"

    @property
    def all(self) -> str:
        """All of them."""
        numbers = self.promises.row_numbers[self.stored[:4]].tolist()
        more = f" and {len(self.stored) - 3:,} more" if len(self.stored) > 4 else ""
        shown = ", ".join(map(str, numbers[:3] if more else numbers))
        return f"source {self.name!r}, row{'s' if len(self.stored) > 1 else ''} {shown}{more}"


def _another_length(where: _Where, at: int, gave: str) -> DataError:
    said = where.promises.lengths[where.stored[at]]
    return DataError(
        f"{where.row(at)}: {where.by} gave {gave} where lengths says {said}; the members of "
        "a source must agree, and its contents must not change"
    )


def _rows(given: Any, what: str, where: _Where) -> list[NDArray[Any]]:
    """One flat array of whole numbers for each row that was asked for."""
    found = list(given) if isinstance(given, Sequence | np.ndarray) else None
    if found is None or len(found) != len(where.stored):
        got = _shown(given) if found is None else f"{len(found):,} rows"
        raise DataError(f"{where.all}: {where.by} gave {got} of {what} where {len(where.stored):,} rows were asked for")
    kinds, dtype = ("iu", "int32[n]") if what == "ids" else ("biu", "bool[n]")
    for at, row in enumerate(found):
        if not isinstance(row, np.ndarray) or row.ndim != 1 or (row.dtype.kind not in kinds):
            raise DataError(f"{where.row(at)}: {where.by} gave {_shown(row)} of {what}; give a numpy array, {dtype}")
    return found


def _check_ids(ids: list[NDArray[Any]], where: _Where) -> None:
    flat = np.concatenate(ids)
    if len(flat) and not 0 <= flat.min() <= flat.max() <= _MAX_ID:
        for at, row in enumerate(ids):
            wrong = (row < 0) | (row > _MAX_ID)
            if wrong.any():
                raise DataError(
                    f"{where.row(at)}: {where.by} gave the token id {row[int(np.argmax(wrong))]}; allowed are 0 to "
                    f"{_MAX_ID:,}"
                )


def _check_masks(masks: list[NDArray[Any]], lengths: Ints, where: _Where) -> list[Bools]:
    """The masks as booleans."""
    if any(mask.dtype != np.bool_ for mask in masks):
        for at, mask in enumerate(masks):
            if ((mask != 0) & (mask != 1)).any():
                raise DataError(
                    f"{where.row(at)}: read() gave a mask that holds something else than 0 and 1; give True where the "
                    "model is trained to predict the token"
                )
        masks = [mask.astype(np.bool_) for mask in masks]
    supervised, first = _counted(masks, lengths)
    said = where.promises.supervised[where.stored]
    said_first = where.promises.first_supervised[where.stored]
    wrong = (supervised != said) | ((supervised > 0) & (first != said_first))
    if wrong.any():
        at = int(np.argmax(wrong))
        found = f"{supervised[at]} supervised tokens from index 1 on" + (
            f", the first at {first[at]}," if supervised[at] else ""
        )
        raise DataError(
            f"{where.row(at)}: read() gave a mask with {found} where supervised says {said[at]} and first_supervised "
            f"{said_first[at]}; the members of a source must agree, and its contents must not change"
        )
    return cast(list[Bools], masks)


def _counted(masks: list[Bools], lengths: Ints) -> tuple[Ints, Ints]:
    """Supervised tokens at index 1 or later of each mask, and the index of the first; int64[masks] each."""
    flat = np.concatenate(masks)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    flat[starts[lengths > 0]] = False
    places = np.flatnonzero(flat)
    before = places.searchsorted(starts)
    supervised = places.searchsorted(ends) - before
    return supervised, np.append(places, 0)[before] - starts


def _shown(value: Any) -> str:
    """What kind of thing a value is."""
    if isinstance(value, np.ndarray):
        return f"an array {value.dtype}{list(value.shape)}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value):,}"
    return "None" if value is None else f"a value of type {type(value).__name__}"
