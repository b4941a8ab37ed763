"""The rules for tokenized rows, wherever they come from: checked on Arrow record batches, once, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamsft.errors import StoreError
from streamsft.sources.carried import CarriedDigest, check_images
from streamsft.sources.columns import Ragged
from streamsft.sources.damage import check_buffers
from streamsft.sources.index import row_stats
from streamsft.sources.manifest import Fingerprint, Manifest
from streamsft.sources.pairs import validate_pairs
from streamsft.sources.rowfacts import RowFacts
from streamsft.sources.rowrules import (
    beside_of,
    check_beside,
    check_labels,
    check_mask,
    largest_of,
    lengths_of,
    named,
    pairs_of,
    row_of,
    span,
)
from streamsft.sources.storecolumns import StoreColumns, decode
from streamsft.sources.tokennames import CHOSEN, LABELS, SHARED, UNSUPERVISED
from streamsft.types import Bools, Int32s, Ints

__all__ = ["Checked", "Validator", "pieces"]

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
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checked:
    """Consecutive rows of a file that keep the rules, laid end to end.

    Attributes:
        first_row: number in the file of the first of them.
        ids: int32[tokens].
        supervised: bool[tokens].
        lengths: int32[rows].
        carried: the columns that travel with them.
        whole: bool[rows], True where a row holds images; None where none can.
        byte: int64[rows], where each begins in a text file; None in others.
        pairs: int32[rows, 2], `shared_length` and `chosen_length`; None of rows that are no pairs.
    """

    first_row: int
    ids: Int32s
    supervised: Bools
    lengths: Int32s
    carried: pa.RecordBatch
    whole: Bools | None = None
    byte: Ints | None = None
    pairs: Int32s | None = None


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
        for checked in self.check(batch, where, first_row=first_row, byte=byte):
            self.take(checked, where, file=file)

    def check(
        self, batch: pa.RecordBatch, where: str, *, first_row: int = 0, byte: Ints | None = None
    ) -> Iterator[Checked]:
        """The rows of a batch, a bounded number at a time, for the `take` of this validator or of another.

        Args and errors are those of `add`.
        """
        columns = self.columns_of(batch.schema, where)
        check_buffers(batch, where)
        ids, mask = decode(batch, columns, where, first_row)
        whole = check_images(batch, where, first_row) if columns.images else None
        pairs = pairs_of(batch, where) if columns.pairs else None
        beside = {name: beside_of(batch, name, where, first_row) for name in columns.beside}
        for first, last in pieces(ids.offsets):
            at = f"{where}, row ", first_row + first
            lengths = lengths_of(ids, {columns.supervision: mask, **beside}, first, last, at)
            values, supervised = self._tokens(ids, mask, columns, first, last, at)
            for name, other in beside.items():
                check_beside(name, other.slice(*span(other, first, last)), values, supervised, lengths, at)
            mine = None if pairs is None else pairs[first:last]
            if mine is not None:
                validate_pairs(mine, lengths, supervised, partial(named, at))
            yield Checked(
                first_row=first_row + first,
                ids=values,
                supervised=supervised,
                lengths=lengths,
                carried=batch.select(list(columns.carried)).slice(first, last - first),
                whole=None if whole is None else whole[first:last],
                byte=None if byte is None else byte[first:last],
                pairs=mine,
            )

    def take(self, checked: Checked, where: str, *, file: int = 0) -> None:
        """Count the next rows, which were checked.

        Args:
            checked: the rows; the columns of their file were given to `columns_of`.
            where: the file or the source, for messages.
            file: number of the file in the store.

        Raises:
            StoreError: a column that travels with them is of a kind that cannot.
        """
        lengths, pairs = checked.lengths, checked.pairs
        further: dict[str, NDArray[Any]] = {}
        for name in checked.carried.schema.names:
            further |= self._carried.parts(name, checked.carried.column(name), where)
        if pairs is not None:
            further |= {SHARED: pairs[:, 0], CHOSEN: pairs[:, 1]}
        row = np.arange(self.facts.rows, self.facts.rows + len(lengths))
        self._fingerprint.update(checked.ids, checked.supervised, lengths, row, further)
        self._largest_id = max(self._largest_id, int(checked.ids.max(initial=-1)))
        self.facts.append(
            lengths,
            row_stats(checked.supervised, lengths),
            file=file,
            file_row=checked.first_row,
            whole=checked.whole,
            byte=checked.byte,
            pairs=pairs,
        )

    def columns_of(self, schema: pa.Schema, where: str) -> StoreColumns:
        """The columns of a file of this schema, which must go with those of the files before it.

        Raises:
            StoreError: they do not, or one is missing.
        """
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
        largest = largest_of(values)
        if largest > _MAX_ID:
            place = int(np.argmax((values < 0) | (values > _MAX_ID)))
            raise StoreError(
                f"{row_of(at, offsets, place)}: input_ids holds {values[place]}; allowed are 0 to {_MAX_ID:,}: "
                "tokenize the row again, or remove it"
            )
        start, stop = span(mask, first, last)
        if columns.supervision == LABELS:
            labels = mask.values[start:stop]
            check_labels(labels, values, offsets, at)
            return values.astype(np.int32, copy=False), labels != UNSUPERVISED
        marks = mask.slice(start, stop)
        check_mask(marks, offsets, at)
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
