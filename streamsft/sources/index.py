"""What planning needs of every row of a token store, without its tokens."""

from __future__ import annotations

import json
import mmap
import os
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, final

import numpy as np
from numpy.typing import NDArray

from streamsft.errors import StoreError
from streamsft.sources.tokennames import CHOSEN, SHARED
from streamsft.types import Bools, Int32s, Ints

__all__ = ["INDEX_FILE", "RowIndex", "RowStats", "index_sections", "load_index", "row_stats"]

INDEX_FILE = "streamsft-index.bin"
_MAGIC = b"ssftidx3"
_PIECE = 1 << 20  # bytes that are read at a time
_SOMETIMES = (("whole", "|b1"), ("byte", "<i8"), (SHARED, "<i4"), (CHOSEN, "<i4"))
"""Columns that only some stores need."""
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
        whole: bool[rows], True where the row must not be cut, for it holds images; None where all may be.
        byte: int64[rows], where the row begins in a text file; None in other stores.
        shared_length: int32[rows], of a store of preference pairs: tokens that both answers see; None in others.
        chosen_length: int32[rows], beside it: tokens of the chosen branch, behind the shared ones.
    """

    bounds: Ints
    row: Ints
    file_row: Ints
    length: Int32s
    supervised: Int32s
    first_supervised: Int32s
    file: Int32s
    whole: Bools | None = None
    byte: Ints | None = None
    shared_length: Int32s | None = None
    chosen_length: Int32s | None = None

    @property
    def uncut(self) -> Bools | None:
        """True where the row must not be cut, for it holds images or is a pair, bool[rows]; None where all may be."""
        return self.whole if self.chosen_length is None else np.ones(len(self.row), np.bool_)

    def pairs(self, index: Ints) -> Int32s | None:
        """`shared_length` and `chosen_length` of the rows `index` (int64[k]), int32[k, 2]; None without pairs."""
        if self.shared_length is None or self.chosen_length is None:
            return None
        return np.stack([self.shared_length[index], self.chosen_length[index]], axis=1)


@final
@dataclass(frozen=True, slots=True)
class RowStats:
    """Supervised counts of some rows, see `RowIndex`."""

    supervised: Int32s
    first_supervised: Int32s


def row_stats(mask: Bools, lengths: Int32s) -> RowStats:
    """Count the supervised tokens of ragged rows: `mask` bool[sum of lengths], `lengths` int32[rows].

    Set bits are counted in words of 64 and looked for by their number: well under a nanosecond a token.
    """
    stops = np.cumsum(lengths, dtype=np.int64)
    starts = np.minimum(stops - lengths + 1, stops)
    packed = np.zeros(8 * (len(mask) // 64 + 1), np.uint8)
    bits = np.packbits(mask, bitorder="little")
    packed[: len(bits)] = bits
    words = packed.view("<u8")
    before = np.zeros(len(words) + 1, np.int64)  # set bits before each word
    np.cumsum(_ones(words), out=before[1:])
    low = before[starts >> 6] + _ones(words[starts >> 6] & _below(starts))
    count = before[stops >> 6] + _ones(words[stops >> 6] & _below(stops)) - low
    word = np.minimum(np.searchsorted(before, low, side="right") - 1, len(words) - 1)  # that holds bit number `low`
    rest = np.where(word == starts >> 6, words[word] & ~_below(starts), words[word])
    lowest = rest & (~rest + np.uint64(1))
    first = 64 * word + _ones(lowest - np.uint64(1)) - (stops - lengths)
    return RowStats(count.astype(np.int32), np.where(count > 0, first, lengths).astype(np.int32))


def _below(place: Ints) -> NDArray[np.uint64]:
    """Words whose bits below `place`, counted modulo 64, are set."""
    return np.asarray((np.uint64(1) << (place & 63).astype(np.uint64)) - np.uint64(1))


def _ones(words: NDArray[np.uint64]) -> NDArray[Any]:
    """Set bits of each word."""
    if hasattr(np, "bitwise_count"):  # numpy 2
        return np.asarray(np.bitwise_count(words))
    counted: NDArray[Any] = _ONES[np.ascontiguousarray(words).view(np.uint8).reshape(-1, 8)].sum(axis=1, dtype=np.int64)
    return counted


_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)
"""Set bits of each byte."""


def index_sections(
    column: Callable[[str], Iterable[NDArray[Any]]],
    rows: int,
    facts: Mapping[str, Any],
    further: Collection[str] = (),
) -> Iterable[bytes]:
    """The bytes of an index file, piece by piece, in memory that does not grow with the number of rows.

    Args:
        column: gives a per-row column by name, chunk by chunk; it may be asked several times.
        rows: number of rows.
        facts: JSON that is kept at the end of the file.
        further: those of the columns that only some stores have which this one has.
    """
    also = [name for name, _ in _SOMETIMES if name in further]
    checksum = 0
    for piece in _column_bytes(column, also):
        checksum = zlib.crc32(piece, checksum)
        yield piece
    footer = json.dumps({"rows": rows, "columns": also, "crc32": checksum, **facts}, sort_keys=True).encode()
    yield footer + len(footer).to_bytes(4, "little") + zlib.crc32(footer).to_bytes(4, "little") + _MAGIC


def _column_bytes(column: Callable[[str], Iterable[NDArray[Any]]], also: Collection[str]) -> Iterator[bytes]:
    """The columns of an index file, one behind the other."""
    total = np.int64(0)
    yield np.zeros(1, "<i8").tobytes()
    for chunk in column("length"):
        ends = total + np.cumsum(chunk, dtype=np.int64)
        total = ends[-1] if len(ends) else total
        yield ends.astype("<i8").tobytes()
    for name, dtype in _columns(also):
        for chunk in column(name):
            yield chunk.astype(dtype).tobytes()


def load_index(path: Path) -> tuple[RowIndex, dict[str, Any]]:
    """Map an index file into memory: its columns and the facts kept with them.

    Raises:
        StoreError: the file is missing, cut off or damaged.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
            facts = _footer(path, data)
            _check_columns(path, file, facts)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror}); build the store again") from error
    rows = facts["rows"]
    columns: dict[str, Any] = {"bounds": np.frombuffer(data, "<i8", rows + 1)}
    place = 8 * (rows + 1)
    for name, dtype in _columns(facts["columns"]):
        columns[name] = np.frombuffer(data, dtype, rows, place)
        place += columns[name].nbytes
    return RowIndex(**columns), facts


def _footer(path: Path, data: mmap.mmap | bytes) -> dict[str, Any]:
    """The facts at the end of an index file, whose columns must fill the space before them."""
    if len(data) < 24 or data[-8:] != _MAGIC:
        raise StoreError(f"{path}: is cut off or no index of a token store; build the store again")
    end = len(data) - 16 - int.from_bytes(data[-16:-12], "little")
    text = data[end:-16] if end >= 0 else b""
    facts: dict[str, Any] | None = None
    if zlib.crc32(text) == int.from_bytes(data[-12:-8], "little"):
        with suppress(ValueError):
            facts = json.loads(text)
    if facts is None or end != _size(facts):
        raise StoreError(f"{path}: is damaged; build the store again")
    return facts


def _check_columns(path: Path, file: BinaryIO, facts: Mapping[str, Any]) -> None:
    """Refuse columns that are not as they were written; they are read bit by bit, not mapped, to take no memory."""
    left, checksum = _size(facts), 0
    file.seek(0)
    while left and (piece := file.read(min(left, _PIECE))):
        checksum = zlib.crc32(piece, checksum)
        left -= len(piece)
    if left or checksum != facts["crc32"]:
        raise StoreError(f"{path}: is damaged; build the store again")


def _size(facts: Mapping[str, Any]) -> int:
    """Bytes of the columns of an index file."""
    per_row = sum(np.dtype(dtype).itemsize for _, dtype in _columns(facts["columns"]))
    return int(8 + facts["rows"] * (8 + per_row))


def _columns(also: Collection[str]) -> list[tuple[str, str]]:
    """Names and types of the columns of a file that has `also` of those that only some have."""
    return [*_COLUMNS, *(column for column in _SOMETIMES if column[0] in also)]
