"""The two sides of a hold-out, while a source is tokenized: the rows to train on, and those that are held."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

from streamsft.sources.rawrows import BadRow, Chunk, Row, RowReader
from streamsft.text.holdout import HELD_OUT, HoldOut, content_hash

__all__ = ["NOT_HELD", "Side"]

NOT_HELD = "not_held"
"""The reason for which rows to train on are left out of the held ones; they are not counted."""


@final
class Side(RowReader):
    """One side of a source: the rows of the other side are there, but marked as left out, so rows keep their numbers.

    Args:
        reader: the whole source.
        holdout: which of its rows are held.
        held: the held rows, instead of those to train on.
        where: how messages begin.
    """

    def __init__(self, reader: RowReader, holdout: HoldOut, *, held: bool, where: str) -> None:
        self._reader = reader
        self._holdout = holdout
        self._held = held
        self._where = where

    @property
    def files(self) -> tuple[str, ...]:
        return self._reader.files

    @property
    def size(self) -> int:
        return self._reader.size

    def content_key(self) -> list[Any]:
        """That of the whole source, and which of its rows are on this side."""
        return [
            self._reader.content_key(),
            "held" if self._held else "kept",
            self._holdout.fraction,
            self._holdout.rows,
        ]

    def chunks(self) -> Iterator[Chunk]:
        """All rows in input order.

        Raises:
            ConfigError: a number of rows is to be held, and there are no more.
            DataError: a file cannot be read.
        """
        threshold = self._holdout.threshold_of(self._hashes(), self._where)
        for chunk in self._reader.chunks():
            yield _SideChunk(
                file=chunk.file,
                first_row=chunk.first_row,
                read=chunk.read,
                chunk=chunk,
                threshold=threshold,
                held=self._held,
            )

    def _hashes(self) -> Iterator[int]:
        for chunk in self._reader.chunks():
            yield from (content_hash(row.value) for row in chunk.rows() if not isinstance(row.value, BadRow))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _SideChunk(Chunk):
    """A chunk of which only rows whose `content_hash` is below the threshold are kept, if `held`, or the others."""

    chunk: Chunk
    threshold: int
    held: bool

    def rows(self) -> list[Row]:
        return [self._marked(row) for row in self.chunk.rows()]

    def _marked(self, row: Row) -> Row:
        if isinstance(row.value, BadRow):  # told of when the rows to train on are tokenized
            return Row(BadRow("not held", NOT_HELD), row.line) if self.held else row
        if (content_hash(row.value) < self.threshold) == self.held:
            return row
        return Row(BadRow("not held", NOT_HELD) if self.held else BadRow("held out", HELD_OUT), row.line)
