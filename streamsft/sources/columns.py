"""Token columns of Arrow record batches, in whatever layout, as flat numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamsft.errors import StoreError
from streamsft.sources.rowids import RowIds
from streamsft.sources.tokennames import UNSUPERVISED
from streamsft.types import Bools, Int32s, Ints

__all__ = ["Ragged", "TokenColumns", "ragged"]

_LISTS = "write one list of numbers per row"


@final
@dataclass(frozen=True, slots=True)
class Ragged:
    """One chunk of a list column: row i is ``values[offsets[i]:offsets[i + 1]]``.

    Attributes:
        values: the flat values in their stored type; uint8[bytes] of packed bits when `bit_offset` >= 0.
        offsets: int32 or int64[rows + 1], not decreasing; the first may be above 0.
        bit_offset: position in bits of value 0 in `values`, or -1 when values are not packed bits.
        labels: whether values are labels of which a mask is to be made: False where a label is -100.
    """

    values: NDArray[Any]
    offsets: NDArray[Any]
    bit_offset: int = -1
    labels: bool = False

    @property
    def plain(self) -> bool:
        """Whether the values are what they are read as."""
        return self.bit_offset < 0 and not self.labels

    def slice(self, start: int, stop: int) -> NDArray[Any]:
        """The values numbered `start` to `stop`: a view, or bool[stop - start] made from bits or labels."""
        if self.bit_offset >= 0:
            return _unpack(self.values, start + self.bit_offset, stop + self.bit_offset)
        values = self.values[start:stop]
        return values != UNSUPERVISED if self.labels else values


def ragged(
    array: pa.Array, where: str, *, first_row: int = 0, bits: bool = True, floats: bool = False, labels: bool = False
) -> Ragged:
    """Read one chunk of a list column without copying, as far as its layout allows.

    Lists, large lists and fixed-size lists of integers or booleans, sliced or not, are read in place.
    List views and dictionaries are decoded into memory.

    Args:
        array: the chunk.
        where: what holds it, for messages.
        first_row: number of its first row, for messages.
        bits: whether lists of booleans will do, which are no token ids.
        floats: whether lists of floating-point numbers will do, for masks of 0.0 and 1.0.
        labels: whether the lists are labels; see `Ragged`.

    Raises:
        StoreError: the column holds no lists of integers or booleans, a null row, or a null among the values of a row.
    """
    while isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    if pa.types.is_dictionary(kind):
        decoded = array.dictionary_decode()
        return ragged(decoded, where, first_row=first_row, bits=bits, floats=floats, labels=labels)
    is_view = pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind)
    if array.null_count:
        row = first_row + int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
        raise StoreError(
            f"{where}, row {row}: has no list, but null or nothing; remove the row, or write one, which may be empty"
        )
    if pa.types.is_null(kind):
        return Ragged(np.empty(0, np.int32), np.zeros(len(array) + 1, np.int32))
    if not is_view and not _is_list(kind):
        raise StoreError(f"{where}: needs lists of integers or booleans, found {kind}; {_LISTS}")
    if is_view:
        values, offsets = array.flatten(), _offsets_of_lengths(array)
    else:
        values, offsets = array.values, _offsets(array)
    found = _with_values(values, offsets, where, first_row, floats)
    if found.bit_offset >= 0 and not bits:
        raise StoreError(f"{where}: needs lists of integers, found {kind}; write token ids{' or -100' * labels}")
    return replace(found, labels=True) if labels else found


def _offsets(array: pa.Array) -> NDArray[Any]:
    """The offsets of a chunk."""
    kind = array.type
    if pa.types.is_fixed_size_list(kind):
        return np.asarray((array.offset + np.arange(len(array) + 1, dtype=np.int64)) * kind.list_size)
    if len(array) == 0:
        return np.zeros(1, np.int64)
    width = np.int64 if pa.types.is_large_list(kind) else np.int32
    return np.frombuffer(array.buffers()[1], width)[array.offset : array.offset + len(array) + 1]


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _offsets_of_lengths(array: pa.Array) -> Ints:
    """Offsets into ``array.flatten()``, which has the rows of a view one after the other."""
    import pyarrow.compute as pc  # slow to import, rarely needed

    lengths = pc.list_value_length(array).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(array) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _with_values(values: pa.Array, offsets: NDArray[Any], where: str, first_row: int, floats: bool) -> Ragged:
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
        nulls = values.slice(first, last - first).is_null().to_numpy(zero_copy_only=False)
        row = first_row + int(np.searchsorted(offsets - first, int(np.argmax(nulls)), side="right")) - 1
        raise StoreError(f"{where}, row {row}: has a null among its values; remove the row or write a number")
    kind = values.type
    if pa.types.is_boolean(kind):
        return Ragged(np.frombuffer(values.buffers()[1], np.uint8), offsets, values.offset)
    if not pa.types.is_integer(kind) and not (floats and pa.types.is_floating(kind)):
        raise StoreError(f"{where}: needs lists of integers or booleans, found lists of {kind}; {_LISTS}")
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
        whole: the bytes that all chunks lie in, uint8[bytes], where it is a single memory map.

    Where ids are int32 and masks one byte wide (every store that streamsft writes) rows are views on the memory
    map; other layouts are converted as they are read and not kept, so that memory does not grow as rows are read.
    """

    def __init__(
        self, chunks: Sequence[tuple[Ragged, Ragged]], bounds: Ints, whole: NDArray[np.uint8] | None = None
    ) -> None:
        chunks = [pair for pair in chunks if len(pair[0].offsets) > 1]
        rows = np.cumsum([0] + [len(ids.offsets) - 1 for ids, _ in chunks])
        self._bounds = bounds
        self.chunks = len(chunks)
        self._first_row = rows[1:-1].astype(np.int64)
        before = bounds[rows[:-1]]
        self._ids = _Column([ids for ids, _ in chunks], before, whole)
        self._masks = _Column([mask for _, mask in chunks], before, whole, mask=True)

    def read(self, index: Ints) -> tuple[list[Int32s], list[Bools]]:
        """Ids int32[n] and masks bool[n] of the rows `index` (int64[k], each in [0, rows)).

        Raises:
            IndexError: a row that is not there.
        """
        chunk, starts, stops = self._places(index)
        return self._ids.read(chunk, starts, stops, np.int32), self._masks.read(chunk, starts, stops, np.bool_)

    def read_ids(self, index: Ints) -> RowIds:
        """Ids of the rows `index`; no row is touched where a single map holds them as int32."""
        return self._ids.stretches(*self._places(index))

    def _places(self, index: Ints) -> tuple[Ints, Ints, Ints]:
        """Chunk, first token and end of rows, the tokens numbered over all chunks."""
        if len(index) and index.min() < 0:
            raise IndexError(f"row {index.min()}: rows are numbered from 0")
        return self._first_row.searchsorted(index, "right"), self._bounds[index], self._bounds[index + 1]


@final
class _Column:
    """One token column: per chunk its flat values and what to take from a token's number to find it there."""

    def __init__(
        self, chunks: Sequence[Ragged], before: Ints, whole: NDArray[np.uint8] | None, *, mask: bool = False
    ) -> None:
        self._values = [c.values for c in chunks]
        self._shift = before - np.array([c.offsets[0] for c in chunks], np.int64)
        self.labels = bool(chunks) and all(c.labels for c in chunks)
        self._mixed = None if self.labels or all(c.plain for c in chunks) else chunks
        self._flat: NDArray[Any] | None = None
        self._memory: memoryview | None = None
        types = {values.dtype for values in self._values if len(values)}
        bytewide = bool(types) and all(kind.itemsize == 1 for kind in types)
        if mask and bytewide and self._mixed is None and not self.labels:
            self._values = [values.view(np.bool_) for values in self._values]  # 0 and 1, as has been checked
            types = {np.dtype(np.bool_)}
        self.dtype = types.pop() if len(types) == 1 and self._mixed is None else None
        if self.dtype is not None and whole is not None:
            self._join(whole)

    def _join(self, whole: NDArray[np.uint8]) -> None:
        """Address all chunks in one array, which spares the look-up of a chunk for every row."""
        assert self.dtype is not None
        size = self.dtype.itemsize
        places = [values.ctypes.data - whole.ctypes.data for values in self._values]
        if all(0 <= place < len(whole) and place % size == 0 for place in places):
            self._flat = whole[: len(whole) // size * size].view(self.dtype)
            self._shift -= np.array(places, np.int64) // size
            if self.dtype == np.int32:
                self._memory = self._flat.data

    def read(self, chunk: Ints, starts: Ints, stops: Ints, dtype: Any) -> list[Any]:
        """Per row the values from token number `starts` to `stops`, which lie in the chunk numbered `chunk`."""
        rows = self._slices(chunk, starts, stops)
        if self.dtype == dtype or not rows:
            return rows
        if self.labels:
            return _cut(np.concatenate(rows) != UNSUPERVISED, stops - starts)
        return _cut(np.concatenate(rows, dtype=dtype, casting="unsafe"), stops - starts)

    def stretches(self, chunk: Ints, starts: Ints, stops: Ints) -> RowIds:
        """What `read` gives as int32, left where it lies where that takes no conversion."""
        if self._memory is None:
            return RowIds.of(self.read(chunk, starts, stops, np.int32))
        shift = self._shift[chunk]
        return RowIds([self._memory], np.zeros(len(chunk), np.int64), starts - shift, stops - shift)

    def _slices(self, chunk: Ints, starts: Ints, stops: Ints) -> list[NDArray[Any]]:
        """What `read` gives, in the stored type."""
        shift = self._shift[chunk]
        first, last = (starts - shift).tolist(), (stops - shift).tolist()
        if self._flat is not None:
            flat = self._flat
            return [flat[a:b] for a, b in zip(first, last, strict=True)]
        values, places = self._values, chunk.tolist()
        if self._mixed is None:
            return [values[c][a:b] for c, a, b in zip(places, first, last, strict=True)]
        mixed = self._mixed
        return [mixed[c].slice(a, b) for c, a, b in zip(places, first, last, strict=True)]


def _cut(flat: NDArray[Any], lengths: Ints) -> list[Any]:
    """The rows, so many values each, that lie end to end in `flat`."""
    stops = np.cumsum(lengths)
    return [flat[a:b] for a, b in zip((stops - lengths).tolist(), stops.tolist(), strict=True)]
