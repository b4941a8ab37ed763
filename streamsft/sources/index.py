"""What planning needs of every row of a token store, without its tokens."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from streamsft.errors import StoreError
from streamsft.types import Bools, Int32s, Ints

__all__ = ["INDEX_FILE", "RowIndex", "RowStats", "index_sections", "load_index", "row_stats"]

INDEX_FILE = "streamsft-index.bin"
_MAGIC = b"ssftidx1"
_COLUMNS = (
    ("row", "<i8"),
    ("file_row", "<i8"),
    ("length", "<i4"),
    ("supervised", "<i4"),
    ("first_supervised", "<i4"),
    ("file", "<i4"),
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RowIndex:
    """Per-row columns of a store, one entry per stored row.

    Attributes:
        bounds: int64[rows + 1], tokens before each row.
        row: int64[rows], number in the source's input order, rejected rows counted.
        file_row: int64[rows], number within the file of origin.
        length: int32[rows], tokens.
        supervised: int32[rows], supervised tokens at index 1 or later.
        first_supervised: int32[rows], index >= 1 of the first of them; the length where there is none.
        file: int32[rows], number of the file of origin in the manifest's ``files``.
    """

    bounds: Ints
    row: Ints
    file_row: Ints
    length: Int32s
    supervised: Int32s
    first_supervised: Int32s
    file: Int32s


@final
@dataclass(frozen=True, slots=True)
class RowStats:
    """Supervised counts of some rows, see `RowIndex`."""

    supervised: Int32s
    first_supervised: Int32s


def row_stats(mask: Bools, lengths: Int32s) -> RowStats:
    """Count the supervised tokens of ragged rows: `mask` bool[sum of lengths], `lengths` int32[rows]."""
    stops = np.cumsum(lengths, dtype=np.int64)
    starts = stops - lengths
    places = np.flatnonzero(mask)
    if len(places) == 0:
        return RowStats(np.zeros_like(lengths), lengths.copy())
    below = np.searchsorted(places, np.minimum(starts + 1, stops))
    above = np.searchsorted(places, stops)
    count = (above - below).astype(np.int32)
    first = places[np.minimum(below, len(places) - 1)] - starts
    return RowStats(count, np.where(count > 0, first, lengths).astype(np.int32))


def index_sections(
    column: Callable[[str], Iterable[NDArray[Any]]], rows: int, facts: Mapping[str, Any]
) -> Iterable[bytes]:
    """The bytes of an index file, piece by piece, in memory that does not grow with the number of rows.

    Args:
        column: gives a per-row column by name, chunk by chunk; it may be asked several times.
        rows: number of rows.
        facts: JSON that is kept at the end of the file.
    """
    total = np.int64(0)
    yield np.zeros(1, "<i8").tobytes()
    for chunk in column("length"):
        ends = total + np.cumsum(chunk, dtype=np.int64)
        total = ends[-1] if len(ends) else total
        yield ends.astype("<i8").tobytes()
    for name, dtype in _COLUMNS:
        for chunk in column(name):
            yield chunk.astype(dtype).tobytes()
    footer = json.dumps({"rows": rows, **facts}, sort_keys=True).encode()
    yield footer + len(footer).to_bytes(8, "little") + _MAGIC


def load_index(path: Path) -> tuple[RowIndex, dict[str, Any]]:
    """Map an index file into memory: its columns and the facts kept with them.

    Raises:
        StoreError: the file is missing, cut off or damaged.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror}); build the store again") from error
    facts = _footer(path, data)
    rows = facts["rows"]
    columns: dict[str, Any] = {"bounds": np.frombuffer(data, "<i8", rows + 1)}
    place = 8 * (rows + 1)
    for name, dtype in _COLUMNS:
        columns[name] = np.frombuffer(data, dtype, rows, place)
        place += columns[name].nbytes
    return RowIndex(**columns), facts


def _footer(path: Path, data: mmap.mmap | bytes) -> dict[str, Any]:
    """The facts at the end of an index file, whose columns must fill the space before them."""
    if len(data) < 24 or data[-8:] != _MAGIC:
        raise StoreError(f"{path}: is cut off or no index of a token store; build the store again")
    end = len(data) - 16 - int.from_bytes(data[-16:-8], "little")
    try:
        facts = json.loads(data[end:-16]) if end >= 0 else None
    except ValueError:
        facts = None
    rows = facts.get("rows") if isinstance(facts, dict) else None
    per_row = 8 + sum(np.dtype(dtype).itemsize for _, dtype in _COLUMNS)
    if not isinstance(facts, dict) or not isinstance(rows, int) or end != 8 + rows * per_row:
        raise StoreError(f"{path}: is damaged; build the store again")
    return facts
