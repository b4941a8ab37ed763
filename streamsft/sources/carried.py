"""Columns that travel with tokenized rows: images, and what a user names."""

from __future__ import annotations

from collections import Counter
from typing import Any, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamsft.errors import StoreError
from streamsft.sources.tokennames import GRIDS, PIXELS
from streamsft.types import Bools

__all__ = ["CarriedDigest", "check_images", "values_of"]


def check_images(batch: pa.RecordBatch, where: str, first_row: int) -> Bools:
    """Which rows hold images, bool[rows].

    Raises:
        StoreError: a row has pixels without a grid, or the other way round.
    """
    pixels, grids = (_filled(batch.column(name)) for name in (PIXELS, GRIDS))
    wrong = pixels != grids
    if wrong.any():
        row = int(np.argmax(wrong))
        there, missing = (PIXELS, GRIDS) if pixels[row] else (GRIDS, PIXELS)
        raise StoreError(
            f"{where}, row {first_row + row}: has {there} but no {missing}; give the row both, or null in both"
        )
    return pixels


def values_of(column: pa.Array) -> list[Any]:
    """The values of a column as they travel with their rows.

    Lists of numbers become arrays of the stored type; lists of equally long lists of numbers become arrays of two
    dimensions; null is None; all else is what ``to_pylist`` makes of it.
    """
    while isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not _is_numeric(_innermost(column.type)) or not pa.types.is_nested(column.type):
        return list(column.to_pylist())
    return [None if not row.is_valid else _array(row.values) for row in column]


def _array(values: pa.Array) -> Any:
    if not pa.types.is_nested(values.type):
        return np.array(values.to_numpy(zero_copy_only=False))
    import pyarrow.compute as pc  # slow to import, rarely needed

    widths = pc.unique(pc.list_value_length(values).fill_null(0)).to_pylist()
    inner = values.type.value_type
    if len(widths) > 1 or pa.types.is_nested(inner):
        return values.to_pylist()
    flat = np.array(values.flatten().to_numpy(zero_copy_only=False))
    return flat.reshape(len(values), widths[0] if widths else 0)


def _innermost(kind: pa.DataType) -> pa.DataType:
    while pa.types.is_nested(kind) and hasattr(kind, "value_type"):
        kind = kind.value_type
    return kind


def _is_numeric(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _filled(column: pa.Array) -> Bools:
    """True where a row of a list column is neither null nor empty."""
    import pyarrow.compute as pc  # slow to import, rarely needed

    if pa.types.is_null(column.type):
        return np.zeros(len(column), np.bool_)
    lengths = pc.list_value_length(column).fill_null(0)
    return np.asarray(lengths.to_numpy(zero_copy_only=False)) > 0


@final
class CarriedDigest:
    """Cuts columns of any type into flat arrays that say what they hold, however they come in chunks."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def parts(self, name: str, column: pa.Array, where: str) -> dict[str, NDArray[Any]]:
        """The flat arrays of the next rows of a column, by name of column and part.

        Raises:
            StoreError: the column's type is not one that can be taken apart.
        """
        while isinstance(column, pa.ExtensionArray):
            column = column.storage
        kind = column.type
        if pa.types.is_dictionary(kind):
            return self.parts(name, column.dictionary_decode(), where)
        nulls = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)) + self._seen[name]
        self._seen[name] += len(column)
        found: dict[str, NDArray[Any]] = {f"{name}/nulls": nulls.astype("<i8")}
        if pa.types.is_struct(kind):
            for field, part in zip(kind, column.flatten(), strict=True):
                found |= self.parts(f"{name}.{field.name}", part, where)
            return found
        if pa.types.is_nested(kind):
            if pa.types.is_map(kind) or not hasattr(column, "flatten"):
                raise StoreError(f"{where}, column {name}: {kind} cannot be carried; store it as text, say as JSON")
            import pyarrow.compute as pc  # slow to import, rarely needed

            lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
            found[f"{name}/lengths"] = lengths.astype("<i8")
            return found | self.parts(f"{name}[]", column.flatten(), where)
        return found | _values(name, column)


def _values(name: str, column: pa.Array) -> dict[str, NDArray[Any]]:
    kind = column.type
    if pa.types.is_null(kind):
        return {}
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        values = column.cast(pa.uint8()) if pa.types.is_boolean(kind) else column
        filled = values.fill_null(pa.scalar(0, values.type)) if values.null_count else values
        return {f"{name}/values": np.asarray(filled.to_numpy(zero_copy_only=False))}
    if pa.types.is_temporal(kind) and kind != pa.month_day_nano_interval():
        whole = column.view(pa.int64() if kind.bit_width == 64 else pa.int32())
        return _values(name, whole)
    if pa.types.is_fixed_size_binary(kind):
        column = column.cast(pa.binary())
    elif not pa.types.is_binary(kind) and not pa.types.is_large_binary(kind):
        column = column.cast(pa.large_string())
    flat = column.cast(pa.large_binary())
    import pyarrow.compute as pc  # slow to import, rarely needed

    lengths = pc.binary_length(flat).fill_null(0).to_numpy(zero_copy_only=False)
    text = b"".join(value for value in flat.to_pylist() if value)
    return {f"{name}/lengths": lengths.astype("<i8"), f"{name}/values": np.frombuffer(text, np.uint8)}
