"""Putting encoded chunks into a store, in order, with the numbers of their rows."""

from __future__ import annotations

from typing import final

import numpy as np

from streamsft.errors import DataError, EmptySourceError
from streamsft.sources.rawrows import Chunk
from streamsft.sources.writer import StoreWriter
from streamsft.text.holdout import HELD_OUT
from streamsft.text.jobs import TRANSFORM_REASON, EncodedChunk
from streamsft.text.rejections import Rejections
from streamsft.text.sides import NOT_HELD

__all__ = ["Filling", "bad_row_error"]


@final
class Filling:
    """Fills a store.

    Args:
        writer: the store.
        rejections: where rejected rows go.
        name: the source's name.
        files: names of its files.
        stop_at_bad: raise at the first bad row; one that a user's function left out is not bad.
    """

    def __init__(
        self, writer: StoreWriter, rejections: Rejections, *, name: str, files: tuple[str, ...], stop_at_bad: bool
    ) -> None:
        self._writer = writer
        self._rejections = rejections
        self._name = name
        self._files = files
        self._stop_at_bad = stop_at_bad
        self._file = self._row = self._file_row = 0

    def add(self, chunk: Chunk, encoded: EncodedChunk) -> None:
        """Add the next chunk.

        Raises:
            DataError: a row is bad, with `stop_at_bad`.
            StoreError: writing failed.
        """
        if chunk.file != self._file:
            self._file, self._file_row = chunk.file, 0
        for rejected in encoded.rejected:
            if rejected.reason == HELD_OUT:
                self._rejections.count(HELD_OUT)
            if rejected.reason in (HELD_OUT, NOT_HELD):
                continue
            file_row = self._file_row + rejected.index
            if self._stop_at_bad and rejected.reason != TRANSFORM_REASON:
                place = f"{self._files[chunk.file]}:{file_row if rejected.line is None else rejected.line}"
                raise bad_row_error(self._name, place, rejected.reason, rejected.detail)
            self._rejections.add(
                file=self._files[chunk.file],
                line=rejected.line,
                file_row=file_row,
                row=self._row + rejected.index,
                reason=rejected.reason,
                detail=rejected.detail,
            )
        self._writer.append(
            encoded.input_ids,
            encoded.loss_mask,
            encoded.lengths,
            self._row + encoded.index,
            np.full(len(encoded.index), chunk.file, np.int32),
            self._file_row + encoded.index,
            encoded.pairs,
        )
        self._row += encoded.rows
        self._file_row += encoded.rows

    def check_not_empty(self) -> None:
        """Raises EmptySourceError if no row was accepted."""
        if self._writer.rows:
            return
        files = f"{self._files[0]} and {len(self._files) - 1} more files" if len(self._files) > 1 else self._files[0]
        if self._row == 0:
            raise EmptySourceError(f"source {self._name}: {files}: there are no rows")
        if not self._rejections.counts:
            raise EmptySourceError(f"source {self._name}: {files}: none of the {self._row:,} rows is held out")
        raise EmptySourceError(
            f"source {self._name}: {files}: all {self._row:,} rows were rejected: {self._rejections}"
        )


def bad_row_error(name: str, place: str, reason: str, detail: str) -> DataError:
    """The error for a bad row where none is to be skipped."""
    return DataError(
        f"source {name}: {place}: {reason}: {detail}. Repair or remove the row, or leave such rows out with "
        "on_bad_row: skip"
    )
