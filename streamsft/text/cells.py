"""The columns of a raw row, read as a format expects them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamsft.text.conversation import RowRejected

__all__ = ["listed", "optional_list", "renamed", "text_of"]

Row = Mapping[str, Any]


def renamed(row: Row, columns: Mapping[str, str]) -> Row:
    """`row` with the mapped columns under the format's names; a column mapped away no longer counts."""
    taken = set(columns.values())
    kept = {key: value for key, value in row.items() if key not in taken}
    for name, column in columns.items():
        if column not in row:
            kept.pop(name, None)
            continue
        kept[name] = row[column]
    return kept


def listed(row: Row, column: str) -> list[Any]:
    """The list in a column.

    Raises:
        RowRejected: missing_column, or bad_content.
    """
    value = row.get(column)
    if value is None:
        raise _missing(row, column)
    if not isinstance(value, (list, tuple)):
        raise RowRejected("bad_content", f"{column} is a {type(value).__name__}, not a list of messages")
    return list(value)


def optional_list(row: Row, column: str) -> list[Any]:
    """The same, empty where there is none."""
    return [] if row.get(column) is None else listed(row, column)


def text_of(row: Row, column: str) -> str:
    """The text in a column.

    Raises:
        RowRejected: missing_column, or bad_content.
    """
    value = row.get(column)
    if value is None:
        raise _missing(row, column)
    if not isinstance(value, str):
        raise RowRejected("bad_content", f"{column} is a {type(value).__name__}, not a text")
    return value


def _missing(row: Row, column: str) -> RowRejected:
    if column in row:
        return RowRejected("missing_column", f"column {column!r} is null")
    return RowRejected("missing_column", f"no column {column!r}; the row has {', '.join(map(str, row)) or 'none'}")
