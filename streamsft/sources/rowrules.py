"""What `validation` holds the columns of tokenized rows to, one rule at a time; each names the row that breaks it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamsft.errors import StoreError
from streamsft.sources.columns import Ragged, ragged
from streamsft.sources.tokennames import ATTENTION, CHOSEN, IDS, MASK, SHARED, UNSUPERVISED
from streamsft.types import Bools, Int32s

__all__ = [
    "beside_of",
    "check_beside",
    "check_labels",
    "check_mask",
    "largest_of",
    "lengths_of",
    "named",
    "pairs_of",
    "row_of",
    "span",
]


def span(column: Ragged, first: int, last: int) -> tuple[int, int]:
    """Where the values of rows [first, last) begin and end."""
    return int(column.offsets[first]), int(column.offsets[last])


def named(at: tuple[str, int], row: int) -> str:
    """The name of row number `row` behind `at`."""
    return f"{at[0]}{at[1] + row}"


def row_of(at: tuple[str, int], offsets: NDArray[Any], place: int) -> str:
    """Names the row that holds the value at `place` behind the first of these rows."""
    return f"{at[0]}{at[1] + int(np.searchsorted(offsets - offsets[0], place, side='right')) - 1}"


def largest_of(values: NDArray[Any]) -> int:
    """The largest value, negative ones being larger than any other; -1 without one."""
    if not len(values):
        return -1
    kind = values.dtype
    return int((values if kind.kind in "bu" else values.view(f"u{kind.itemsize}")).max())


def lengths_of(ids: Ragged, others: dict[str, Ragged], first: int, last: int, at: tuple[str, int]) -> Int32s:
    """Tokens of rows [first, last), int32[rows], which all columns must agree on.

    Raises:
        StoreError: it breaks the rule; names the row.
    """
    lengths = np.diff(ids.offsets[first : last + 1])
    for name, column in others.items():
        found = np.diff(column.offsets[first : last + 1])
        wrong = lengths != found
        if wrong.any():
            row = int(np.argmax(wrong))
            raise StoreError(
                f"{at[0]}{at[1] + row}: input_ids has {lengths[row]:,} entries, {name} {found[row]:,}; they must be "
                "equally long: write one for each token"
            )
    return lengths.astype(np.int32)


def check_mask(marks: NDArray[Any], offsets: NDArray[Any], at: tuple[str, int]) -> None:
    """A loss mask holds 0 and 1.

    Raises:
        StoreError: it breaks the rule; names the row.
    """
    if not len(marks) or marks.dtype == np.bool_:
        return
    if marks.dtype.kind != "f" and largest_of(marks) <= 1:
        return
    wrong = ~((marks == 0) | (marks == 1))
    if wrong.any():
        place = int(np.argmax(wrong))
        raise StoreError(
            f"{row_of(at, offsets, place)}: loss_mask holds {marks[place]}; write 1 for each token that the model is "
            "trained to predict, 0 for the others"
        )


def check_labels(labels: NDArray[Any], ids: NDArray[Any], offsets: NDArray[Any], at: tuple[str, int]) -> None:
    """Labels are the ids at their own places, or -100.

    Raises:
        StoreError: it breaks the rule; names the row.
    """
    wrong = (labels != UNSUPERVISED) & (labels != ids)
    if wrong.any():
        place = int(np.argmax(wrong))
        raise StoreError(
            f"{row_of(at, offsets, place)}: labels holds {labels[place]} where input_ids has {ids[place]}; a label is "
            "the id at its own place (the model shifts them), or -100 where nothing is trained"
        )


def pairs_of(batch: pa.RecordBatch, where: str) -> Int32s:
    """`shared_length` and `chosen_length` of a record batch, int32[rows, 2]."""
    found = []
    for name in (SHARED, CHOSEN):
        column = batch.column(name)
        if not pa.types.is_integer(column.type) or column.null_count:
            raise StoreError(f"{where}, column {name}: is {column.type} or has a null; write whole numbers")
        found.append(column.to_numpy(zero_copy_only=False).astype(np.int32))
    return np.stack(found, axis=1)


def beside_of(batch: pa.RecordBatch, name: str, where: str, first_row: int) -> Ragged:
    """A column that is checked and then not used, as flat values and offsets.

    Raises:
        StoreError: it breaks the rule; names the row.
    """
    column = f"{where}, column {name}"
    return ragged(batch.column(name), column, first_row=first_row, bits=name == ATTENTION, floats=name == ATTENTION)


def check_beside(
    name: str, found: NDArray[Any], ids: Int32s, supervised: Bools, lengths: Int32s, at: tuple[str, int]
) -> None:
    """Check a column that is not read when training: `attention_mask`, or `labels` beside `loss_mask`."""
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
    if name == ATTENTION:
        wrong = found != 1
        if wrong.any():
            place = int(np.argmax(wrong))
            raise StoreError(
                f"{row_of(at, offsets, place)}: attention_mask holds {found[place]}, so the row is padded; store rows "
                "without padding (packing fills the slots), or without this column if no token is padding"
            )
        return
    check_labels(found, ids, offsets, at)
    wrong = (found != UNSUPERVISED) != supervised
    if wrong.any():
        place = int(np.argmax(wrong))
        raise StoreError(
            f"{row_of(at, offsets, place)}: labels holds {found[place]} where {MASK} says {int(supervised[place])}; "
            f"they must agree, or leave one of them out beside {IDS}"
        )
