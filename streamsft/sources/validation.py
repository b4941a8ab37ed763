"""The rules for tokenized rows, wherever they come from: checked on Arrow record batches, once, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamsft.errors import StoreError
from streamsft.sources.carried import CarriedDigest, check_images
from streamsft.sources.columns import Ragged, ragged
from streamsft.sources.index import row_stats
from streamsft.sources.manifest import Fingerprint, Manifest
from streamsft.sources.pairs import validate_pairs
from streamsft.sources.rowfacts import RowFacts
from streamsft.sources.storecolumns import StoreColumns, decode
from streamsft.sources.tokennames import ATTENTION, CHOSEN, IDS, LABELS, MASK, SHARED, UNSUPERVISED
from streamsft.types import Bools, Int32s, Ints

__all__ = ["Validator", "pieces"]

_PIECE_TOKENS = 1 << 20
_PIECE_ROWS = 50_000
_MAX_ID = np.iinfo(np.int32).max


def pieces(
    offsets: NDArray[Any], limit: int = _PIECE_TOKENS, most_rows: int = _PIECE_ROWS
) -> Iterator[tuple[int, int]]:
    """Cut ragged rows into runs [first, last) of at most `limit` tokens; a longer row is a run of its own."""
    rows, first = len(offsets) - 1, 0
    while first < rows:
        target = min(int(offsets[first]) + limit, int(offsets[-1]))  # of the offsets' own type, or they would be copied
        last = int(np.searchsorted(offsets, offsets.dtype.type(target), side="right")) - 1
        last = min(max(last, first + 1), first + most_rows, rows)
        yield first, last
        first = last


@final
class Validator:
    """Goes through the rows of a store in order, batch by batch, and learns what planning needs of them.

    The same for all stores: it takes record batches and does not ask where they come from::

        validator = Validator(extras=("language",))
        for batch in batches:  # with all columns of `StoreColumns.checked`; others are passed over
            validator.add(batch, "rows.parquet", file=0, first_row=first)
        manifest = validator.manifest(files=["rows.parquet"])
        index = validator.facts.index()

    Checking takes a few bytes for each token of at most a million at a time, and 13 bytes a row on disk.

    Args:
        extras: columns that travel with their rows beside the tokens.
    """

    def __init__(self, *, extras: Sequence[str] = ()) -> None:
        self.facts = RowFacts()
        self._extras = tuple(extras)
        self._fingerprint = Fingerprint()
        self._carried = CarriedDigest()
        self._largest_id = -1
        self._schema: pa.Schema | None = None
        self._columns: StoreColumns | None = None

    def add(
        self, batch: pa.RecordBatch, where: str, *, file: int = 0, first_row: int = 0, byte: Ints | None = None
    ) -> None:
        """Check the next rows.

        Args:
            batch: the rows; see `StoreColumns.checked` for what it must have.
            where: the file or the source, for messages.
            file: number of the file in the store.
            first_row: number in the file of the first row.
            byte: int64[rows], where each row begins in a text file.

        Raises:
            StoreError: a column is missing, or a row breaks a rule; names file, row, value and what to do.
        """
        columns = self._columns_of(batch.schema, where)
        ids, mask = decode(batch, columns, where, first_row)
        whole = check_images(batch, where, first_row) if columns.images else None
        pairs = _pairs(batch, where) if columns.pairs else None
        beside = {name: _beside(batch, name, where, first_row) for name in columns.beside}
        for first, last in pieces(ids.offsets):
            at = f"{where}, row ", first_row + first
            lengths = _lengths(ids, {columns.supervision: mask, **beside}, first, last, at)
            values, supervised = self._tokens(ids, mask, columns, first, last, at)
            for name, other in beside.items():
                _check_beside(name, other.slice(*_span(other, first, last)), values, supervised, lengths, at)
            further: dict[str, NDArray[Any]] = {}
            for name in columns.carried:
                further |= self._carried.parts(name, batch.column(name).slice(first, last - first), where)
            mine = None if pairs is None else pairs[first:last]
            if mine is not None:
                validate_pairs(mine, lengths, supervised, partial(_named, at))
                further |= {SHARED: mine[:, 0], CHOSEN: mine[:, 1]}
            row = np.arange(self.facts.rows, self.facts.rows + len(lengths))
            self._fingerprint.update(values, supervised, lengths, row, further)
            self.facts.append(
                lengths,
                row_stats(supervised, lengths),
                file=file,
                file_row=first_row + first,
                whole=None if whole is None else whole[first:last],
                byte=None if byte is None else byte[first:last],
                pairs=mine,
            )

    def _columns_of(self, schema: pa.Schema, where: str) -> StoreColumns:
        if self._columns is None or schema != self._schema:
            before, self._schema = self._columns, schema
            self._columns = StoreColumns.of(schema, where, self._extras)
            if before is not None and before.pairs != self._columns.pairs:
                has, others = ("has pairs", "have none") if self._columns.pairs else ("has no pairs", "have")
                raise StoreError(f"{where}: {has}, and the files before it {others}; make them two sources")
            if before is not None and before.images != self._columns.images:
                has, others = ("has images", "have none") if self._columns.images else ("has no images", "have")
                raise StoreError(f"{where}: {has}, and the files before it {others}; make them two sources")
        return self._columns

    def _tokens(
        self, ids: Ragged, mask: Ragged, columns: StoreColumns, first: int, last: int, at: tuple[str, int]
    ) -> tuple[Int32s, Bools]:
        offsets = ids.offsets[first : last + 1]
        values = ids.slice(int(offsets[0]), int(offsets[-1]))
        largest = _largest(values)
        if largest > _MAX_ID:
            place = int(np.argmax((values < 0) | (values > _MAX_ID)))
            raise StoreError(
                f"{_row(at, offsets, place)}: input_ids holds {values[place]}; allowed are 0 to {_MAX_ID:,}: tokenize "
                "the row again, or remove it"
            )
        self._largest_id = max(self._largest_id, largest)
        start, stop = _span(mask, first, last)
        if columns.supervision == LABELS:
            labels = mask.values[start:stop]
            _check_labels(labels, values, offsets, at)
            return values.astype(np.int32, copy=False), labels != UNSUPERVISED
        marks = mask.slice(start, stop)
        _check_mask(marks, offsets, at)
        supervised = marks.view(np.bool_) if marks.dtype.itemsize == 1 else marks.astype(np.bool_)
        return values.astype(np.int32, copy=False), supervised

    @property
    def carried(self) -> tuple[str, ...]:
        """The columns that travel with the rows."""
        return self._extras if self._columns is None else self._columns.carried

    def manifest(self, files: Sequence[str] = ()) -> Manifest:
        """What the rows seen so far make up.

        Args:
            files: names of the files, in the order of their numbers.
        """
        return Manifest(
            rows=self.facts.rows,
            tokens=self.facts.total("length"),
            supervised=self.facts.total("supervised"),
            largest_id=self._largest_id,
            fingerprint=self._fingerprint.hexdigest(),
            files=tuple(files),
        )


def _span(column: Ragged, first: int, last: int) -> tuple[int, int]:
    return int(column.offsets[first]), int(column.offsets[last])


def _named(at: tuple[str, int], row: int) -> str:
    return f"{at[0]}{at[1] + row}"


def _row(at: tuple[str, int], offsets: NDArray[Any], place: int) -> str:
    """Names the row that holds the value at `place` behind the first of these rows."""
    return f"{at[0]}{at[1] + int(np.searchsorted(offsets - offsets[0], place, side='right')) - 1}"


def _largest(values: NDArray[Any]) -> int:
    """The largest value, negative ones being larger than any other; -1 without one."""
    if not len(values):
        return -1
    kind = values.dtype
    return int((values if kind.kind in "bu" else values.view(f"u{kind.itemsize}")).max())


def _lengths(ids: Ragged, others: dict[str, Ragged], first: int, last: int, at: tuple[str, int]) -> Int32s:
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


def _check_mask(marks: NDArray[Any], offsets: NDArray[Any], at: tuple[str, int]) -> None:
    if not len(marks) or marks.dtype == np.bool_:
        return
    if marks.dtype.kind != "f" and _largest(marks) <= 1:
        return
    wrong = ~((marks == 0) | (marks == 1))
    if wrong.any():
        place = int(np.argmax(wrong))
        raise StoreError(
            f"{_row(at, offsets, place)}: loss_mask holds {marks[place]}; write 1 for each token that the model is "
            "trained to predict, 0 for the others"
        )


def _check_labels(labels: NDArray[Any], ids: NDArray[Any], offsets: NDArray[Any], at: tuple[str, int]) -> None:
    wrong = (labels != UNSUPERVISED) & (labels != ids)
    if wrong.any():
        place = int(np.argmax(wrong))
        raise StoreError(
            f"{_row(at, offsets, place)}: labels holds {labels[place]} where input_ids has {ids[place]}; a label is "
            "the id at its own place (the model shifts them), or -100 where nothing is trained"
        )


def _pairs(batch: pa.RecordBatch, where: str) -> Int32s:
    """`shared_length` and `chosen_length` of a record batch, int32[rows, 2]."""
    found = []
    for name in (SHARED, CHOSEN):
        column = batch.column(name)
        if not pa.types.is_integer(column.type) or column.null_count:
            raise StoreError(f"{where}, column {name}: is {column.type} or has a null; write whole numbers")
        found.append(column.to_numpy(zero_copy_only=False).astype(np.int32))
    return np.stack(found, axis=1)


def _beside(batch: pa.RecordBatch, name: str, where: str, first_row: int) -> Ragged:
    column = f"{where}, column {name}"
    return ragged(batch.column(name), column, first_row=first_row, floats=name == ATTENTION)


def _check_beside(
    name: str, found: NDArray[Any], ids: Int32s, supervised: Bools, lengths: Int32s, at: tuple[str, int]
) -> None:
    """Check a column that is not read when training: `attention_mask`, or `labels` beside `loss_mask`."""
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
    if name == ATTENTION:
        wrong = found != 1
        if wrong.any():
            place = int(np.argmax(wrong))
            raise StoreError(
                f"{_row(at, offsets, place)}: attention_mask holds {found[place]}, so the row is padded; store rows "
                "without padding (packing fills the slots), or without this column if no token is padding"
            )
        return
    _check_labels(found, ids, offsets, at)
    wrong = (found != UNSUPERVISED) != supervised
    if wrong.any():
        place = int(np.argmax(wrong))
        raise StoreError(
            f"{_row(at, offsets, place)}: labels holds {found[place]} where {MASK} says {int(supervised[place])}; "
            f"they must agree, or leave one of them out beside {IDS}"
        )
