"""Token columns of Arrow record batches, in whatever layout, as flat numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamsft.errors import StoreError
from streamsft.types import Bools, Int32s, Ints

__all__ = ["Ragged", "TokenColumns", "ragged"]


@final
@dataclass(frozen=True, slots=True)
class Ragged:
    """One chunk of a list column: row i is ``values[offsets[i]:offsets[i + 1]]``.

    Attributes:
        values: the flat values in their stored type; uint8[bytes] of packed bits when `bit_offset` >= 0.
        offsets: int64[rows + 1], not decreasing; the first may be above 0.
        bit_offset: position in bits of value 0 in `values`, or -1 when values are not packed bits.
    """

    values: NDArray[Any]
    offsets: Ints
    bit_offset: int = -1

    def slice(self, start: int, stop: int) -> NDArray[Any]:
        """The values numbered `start` to `stop`: a view, or bool[stop - start] unpacked from bits."""
        if self.bit_offset < 0:
            return self.values[start:stop]
        return _unpack(self.values, start + self.bit_offset, stop + self.bit_offset)


def ragged(array: pa.Array, where: str) -> Ragged:
    """Read one chunk of a list column without copying, as far as its layout allows.

    Lists, large lists and fixed-size lists of integers or booleans, sliced or not, are read in place.
    A null row counts as an empty one. Chunks with null rows, list views and dictionaries are decoded into memory.

    Raises:
        StoreError: the column holds no lists of integers or booleans, or a null among the values of a row.
    """
    while isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    if pa.types.is_dictionary(kind):
        return ragged(array.dictionary_decode(), where)
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return ragged(array.cast(pa.large_list(kind.value_type)), where)
    if not _is_list(kind):
        raise StoreError(f"{where}: needs lists of integers or booleans, found {kind}")
    if array.null_count:
        offsets = _offsets_of_lengths(array)
        return _with_values(array.flatten(), offsets, where)
    if pa.types.is_fixed_size_list(kind):
        offsets = (array.offset + np.arange(len(array) + 1, dtype=np.int64)) * kind.list_size
    elif len(array) == 0:
        offsets = np.zeros(1, np.int64)
    else:
        width = np.int64 if pa.types.is_large_list(kind) else np.int32
        stored = np.frombuffer(array.buffers()[1], width)
        offsets = stored[array.offset : array.offset + len(array) + 1].astype(np.int64, copy=False)
    return _with_values(array.values, offsets, where)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _offsets_of_lengths(array: pa.Array) -> Ints:
    """Offsets into ``array.flatten()``, which leaves out what lies under null rows."""
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_fixed_size_list(array.type):
        lengths = np.where(valid, array.type.list_size, 0)
    else:
        lengths = np.where(valid, array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), 0)
    offsets = np.zeros(len(array) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _with_values(values: pa.Array, offsets: Ints, where: str) -> Ragged:
    while isinstance(values, pa.ExtensionArray):
        values = values.storage
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    first, last = int(offsets[0]), int(offsets[-1])
    if first < 0 or last > len(values):
        raise StoreError(f"{where}: rows reach beyond the stored values; the file is corrupt")
    if first == last:
        return Ragged(np.empty(0, np.int32), np.zeros_like(offsets))
    if values.null_count and values.slice(first, last - first).null_count:
        raise StoreError(f"{where}: a row has a null among its values; remove it or write a number")
    kind = values.type
    if pa.types.is_boolean(kind):
        return Ragged(np.frombuffer(values.buffers()[1], np.uint8), offsets, values.offset)
    if not pa.types.is_integer(kind):
        raise StoreError(f"{where}: needs lists of integers or booleans, found lists of {kind}")
    flat = np.frombuffer(values.buffers()[1], kind.to_pandas_dtype())
    return Ragged(flat[values.offset : values.offset + len(values)], offsets)


def _unpack(packed: NDArray[np.uint8], start: int, stop: int) -> Bools:
    """Bits `start` to `stop` of least-significant-first packed bytes."""
    if stop <= start:
        return np.empty(0, np.bool_)
    bits = np.unpackbits(packed[start >> 3 : (stop + 7) >> 3], bitorder="little")
    return bits[start & 7 : (start & 7) + stop - start].view(np.bool_)


@final
class TokenColumns:
    """Random access to the rows of `input_ids` and `loss_mask` over many chunks.

    Args:
        chunks: the two columns of each record batch, in row order; equal offsets up to a constant.
        bounds: int64[rows + 1], tokens before each row, over all chunks.

    Where ids are int32 and masks one byte wide (every store that streamsft writes) rows are views on the memory
    map; other layouts are converted row by row, so that memory does not grow with what has been read.
    """

    def __init__(self, chunks: Sequence[tuple[Ragged, Ragged]], bounds: Ints) -> None:
        chunks = [pair for pair in chunks if len(pair[0].offsets) > 1]
        self._bounds = bounds
        self._ids = [ids for ids, _ in chunks]
        self._masks = [mask for _, mask in chunks]
        self._direct = all(c.values.dtype == np.int32 for c in self._ids) and all(
            c.bit_offset < 0 and c.values.dtype.itemsize == 1 for c in self._masks if len(c.values)
        )
        self._id_values = [c.values for c in self._ids]
        self._mask_values = [c.values.view(np.bool_) if c.values.dtype.itemsize == 1 else c.values for c in self._masks]
        rows = np.cumsum([0] + [len(c.offsets) - 1 for c in self._ids])
        self._first_row = rows[1:-1].astype(np.int64)
        before = bounds[rows[:-1]]
        self._id_shift = before - np.array([c.offsets[0] for c in self._ids], np.int64)
        self._mask_shift = before - np.array([c.offsets[0] for c in self._masks], np.int64)
        self._same_shift = bool((self._id_shift == self._mask_shift).all())

    def read(self, index: Ints) -> tuple[list[Int32s], list[Bools]]:
        """Ids int32[n] and masks bool[n] of the rows `index` (int64[k], each in [0, rows))."""
        starts = self._bounds[index]
        stops = self._bounds[index + 1]
        chunk = self._first_row.searchsorted(index, "right")
        shift = self._id_shift[chunk]
        places = chunk.tolist()
        first, last = (starts - shift).tolist(), (stops - shift).tolist()
        if self._direct:
            values = self._id_values
            ids = [values[c][a:b] for c, a, b in zip(places, first, last, strict=True)]
        else:
            ids = [self._ids[c].slice(a, b).astype(np.int32) for c, a, b in zip(places, first, last, strict=True)]
        if not self._same_shift:
            shift = self._mask_shift[chunk]
            first, last = (starts - shift).tolist(), (stops - shift).tolist()
        if self._direct:
            flags = self._mask_values
            return ids, [flags[c][a:b] for c, a, b in zip(places, first, last, strict=True)]
        return ids, [self._masks[c].slice(a, b).astype(np.bool_) for c, a, b in zip(places, first, last, strict=True)]
