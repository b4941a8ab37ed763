"""What a scan learns of each row, kept in memory while it is little and in a temporary file when it is much."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, Any, final

import numpy as np
from numpy.typing import NDArray

from streamsft.sources.index import RowIndex, RowStats
from streamsft.sources.tokennames import CHOSEN, SHARED
from streamsft.types import Bools, Int32s, Ints

__all__ = ["RowFacts"]

_SPILL_BYTES = 16 << 20
_CHUNK = 1 << 20


@final
class RowFacts:
    """The per-row columns of a store whose rows are gone through in order; rows are numbered from 0.

    Memory is bounded, whatever the number of rows.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._length = _Growing(np.int32)
        self._supervised = _Growing(np.int32)
        self._first_supervised = _Growing(np.int32)
        self._whole = _Growing(np.bool_)
        self._byte = _Growing(np.int64)
        self._shared = _Growing(np.int32)
        self._chosen = _Growing(np.int32)
        self._runs: list[list[int]] = []  # file, number of the first row in it, rows

    def append(
        self,
        lengths: Int32s,
        stats: RowStats,
        *,
        file: int,
        file_row: int,
        whole: Bools | None = None,
        byte: Ints | None = None,
        pairs: Int32s | None = None,
    ) -> None:
        """Add k rows.

        Args:
            lengths: int32[k], tokens.
            stats: their supervised counts.
            file: number of the file that they are in.
            file_row: number in it of the first of them; the others follow.
            whole: bool[k], True where a row must not be cut; none is by default.
            byte: int64[k], where each begins in a text file. Given for all rows of a store, or for none.
            pairs: int32[k, 2], as of `RowIndex.pairs`. Given for all rows of a store, or for none.
        """
        self._length.append(lengths)
        self._supervised.append(stats.supervised)
        self._first_supervised.append(stats.first_supervised)
        if whole is not None or self._whole.size:
            self._whole.append(np.zeros(self.rows - self._whole.size, np.bool_))
            self._whole.append(np.zeros(len(lengths), np.bool_) if whole is None else whole)
        if byte is not None:
            self._byte.append(byte)
        if pairs is not None:
            self._shared.append(pairs[:, 0])
            self._chosen.append(pairs[:, 1])
        last = self._runs[-1] if self._runs else None
        if last is not None and last[0] == file and last[1] + last[2] == file_row:
            last[2] += len(lengths)
        else:
            self._runs.append([file, file_row, len(lengths)])
        self.rows += len(lengths)

    @property
    def further(self) -> list[str]:
        """Which columns there are of those that only some stores have."""
        columns = {"whole": self._whole, "byte": self._byte, SHARED: self._shared, CHOSEN: self._chosen}
        return [name for name, column in columns.items() if column.size]

    def column(self, name: str) -> Iterable[NDArray[Any]]:
        """A column of `RowIndex` but for `bounds`, chunk by chunk."""
        if name == "row":
            return (np.arange(first, min(first + _CHUNK, self.rows)) for first in range(0, self.rows, _CHUNK))
        if name == "file":
            return (np.full(count, file, np.int32) for file, _, count in self._parts())
        if name == "file_row":
            return (np.arange(first, first + count, dtype=np.int64) for _, first, count in self._parts())
        stored: dict[str, _Growing] = {
            "length": self._length,
            "supervised": self._supervised,
            "first_supervised": self._first_supervised,
            "whole": self._whole,
            "byte": self._byte,
            SHARED: self._shared,
            CHOSEN: self._chosen,
        }
        return stored[name].chunks()

    def _parts(self) -> Iterator[tuple[int, int, int]]:
        """File, number of the first row in it, and rows, a bounded number at a time."""
        for file, first, count in self._runs:
            for at in range(0, count, _CHUNK):
                yield file, first + at, min(_CHUNK, count - at)

    def total(self, name: str) -> int:
        """The sum of a column."""
        return sum(int(chunk.sum(dtype=np.int64)) for chunk in self.column(name))

    def index(self) -> RowIndex:
        """All columns in memory."""

        def joined(name: str, dtype: Any) -> NDArray[Any]:
            return np.concatenate([np.empty(0, dtype), *self.column(name)], dtype=dtype)

        length = joined("length", np.int32)
        bounds = np.zeros(len(length) + 1, np.int64)
        np.cumsum(length, out=bounds[1:])
        number = joined("row", np.int64)
        return RowIndex(
            bounds=bounds,
            row=number,
            file_row=number if len(self._runs) <= 1 else joined("file_row", np.int64),
            length=length,
            supervised=joined("supervised", np.int32),
            first_supervised=joined("first_supervised", np.int32),
            file=joined("file", np.int32),
            whole=joined("whole", np.bool_) if self._whole.size else None,
            byte=joined("byte", np.int64) if self._byte.size else None,
            shared_length=joined(SHARED, np.int32) if self._shared.size else None,
            chosen_length=joined(CHOSEN, np.int32) if self._chosen.size else None,
        )


@final
class _Growing:
    """An array that grows at its end."""

    def __init__(self, dtype: Any) -> None:
        self.size = 0
        self._dtype = np.dtype(dtype)
        self._parts: list[NDArray[Any]] = []
        self._waiting = 0
        self._file: IO[bytes] | None = None

    def append(self, values: NDArray[Any]) -> None:
        part = np.array(values, self._dtype)  # a copy: what is given may be a view that pins a whole piece
        self._parts.append(part)
        self.size += len(part)
        self._waiting += part.nbytes
        if self._waiting >= _SPILL_BYTES:
            self._spill()

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as this does
        for part in self._parts:
            self._file.write(part.tobytes())
        self._parts.clear()
        self._waiting = 0

    def chunks(self) -> Iterator[NDArray[Any]]:
        """All values in order; again each time it is called."""
        if self._file is not None:
            self._file.flush()
            self._file.seek(0)
            while data := self._file.read(_CHUNK * self._dtype.itemsize):
                yield np.frombuffer(data, self._dtype)
            self._file.seek(0, 2)
        yield from self._parts
