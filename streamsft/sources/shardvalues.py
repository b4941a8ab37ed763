"""Rows of shards that are not decoded yet: what a reader of files hands to an encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, final

import numpy as np

from streamsft.errors import StoreError
from streamsft.sources.rawrows import BadRow, decode_batch, parse_json_row
from streamsft.types import Bools, Int32s

__all__ = ["ArrowValue", "JsonValue", "Piece", "PlainValue", "decode_values", "place_of"]

Decoded: TypeAlias = "dict[str, Any] | BadRow"
Prune: TypeAlias = Callable[[Decoded], Decoded]


@final
@dataclass(frozen=True, slots=True)
class JsonValue:
    """A row as the text of a JSON object.

    Attributes:
        text: the bytes as they are in the file.
        file: the file's name.
        line: the line the row starts on, from 1.
    """

    text: bytes
    file: str
    line: int

    @property
    def place(self) -> str:
        """Where the row is, as ``file:line``."""
        return f"{self.file}:{self.line}"


@final
@dataclass(frozen=True, slots=True)
class PlainValue:
    """A row that is Python objects already.

    Attributes:
        row: the row, or why there is none.
        file: the file's name.
        line: the line it starts on, from 1; its number from 0 where the format has no lines.
    """

    row: Decoded
    file: str
    line: int

    @property
    def place(self) -> str:
        """Where the row is, as ``file:line``."""
        return f"{self.file}:{self.line}"


@final
class Piece:
    """Some rows of a columnar file.

    Args:
        batch: the rows, an Arrow record batch.
        prune: drops the null keys that a columnar file pads structs with.
        file: the file's name.
        first: number in its file of the first row.
        step: how far apart the rows are in their file.
    """

    def __init__(self, batch: Any, prune: Prune, file: str, first: int, step: int = 1) -> None:
        self._batch = batch
        self._prune = prune
        self.file = file
        self.first = first
        self.step = step

    def decode(self, index: Sequence[int]) -> list[Decoded]:
        """Rows `index`."""
        whole = len(index) == self._batch.num_rows and index == range(len(index))
        return [self._prune(row) for row in decode_batch(self._batch if whole else self._batch.take(list(index)))]

    def tokens(self, index: int) -> tuple[Int32s, Bools] | None:
        """The token ids and the mask of a row as views, where the piece holds them as what they should be."""
        columns = self._columns
        if columns is None:
            return None
        ids, id_offsets, mask, mask_offsets = columns
        return (
            ids[id_offsets[index] : id_offsets[index + 1]],
            mask[mask_offsets[index] : mask_offsets[index + 1]],
        )

    @cached_property
    def _columns(self) -> tuple[Int32s, list[int], Bools, list[int]] | None:
        from streamsft.sources.columns import ragged

        names = self._batch.schema.names
        if "input_ids" not in names or "loss_mask" not in names:
            return None
        columns = [self._batch.column(name) for name in ("input_ids", "loss_mask")]
        if any(column.null_count for column in columns):
            return None
        try:
            ids, mask = ragged(columns[0], self.file, bits=False), ragged(columns[1], self.file)
        except StoreError:  # decoding the rows one by one tells which of them is wrong, and how
            return None
        first, last = int(ids.offsets[0]), int(ids.offsets[-1])
        start, stop = int(mask.offsets[0]), int(mask.offsets[-1])
        tokens, marks = ids.slice(first, last), mask.slice(start, stop)
        usable = (
            np.array_equal(ids.offsets - first, mask.offsets - start)
            and not (len(tokens) and (tokens.min() < 0 or tokens.max() > np.iinfo(np.int32).max))
            and (marks.dtype == np.bool_ or not len(marks) or (marks.min() >= 0 and marks.max() <= 1))
        )
        if not usable:
            return None
        offsets = (ids.offsets - first).tolist()
        flags = marks.view(np.bool_) if marks.dtype.itemsize == 1 else marks.astype(np.bool_)
        return tokens.astype(np.int32, copy=False), offsets, flags, offsets


@final
@dataclass(frozen=True, slots=True, eq=False)
class ArrowValue:
    """Row number `index` of a piece."""

    piece: Piece
    index: int

    @property
    def place(self) -> str:
        """Where the row is, as ``file:row``, rows numbered from 0."""
        return f"{self.piece.file}:{self.piece.first + self.index * self.piece.step}"


def decode_values(values: Sequence[Any]) -> list[Decoded]:
    """The rows that `values` stand for, in order; mappings are rows already."""
    rows: list[Decoded] = [_NOT_YET] * len(values)
    pieces: dict[int, tuple[Piece, list[int], list[int]]] = {}
    for place, value in enumerate(values):
        match value:
            case JsonValue():
                rows[place] = parse_json_row(value.text)
            case ArrowValue():
                _, places, index = pieces.setdefault(id(value.piece), (value.piece, [], []))
                places.append(place)
                index.append(value.index)
            case PlainValue():
                rows[place] = value.row
            case Mapping():
                rows[place] = dict(value)
            case _:
                rows[place] = BadRow(f"the row is a {type(value).__name__}, not a mapping")
    for piece, places, index in pieces.values():
        for place, row in zip(places, piece.decode(index), strict=True):
            rows[place] = row
    return rows


def place_of(value: Any) -> str:
    """Where a value comes from, as ``file:row``; '' where it does not say."""
    return str(getattr(value, "place", ""))


_NOT_YET = BadRow("not decoded yet")
