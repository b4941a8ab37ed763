"""Arrow files of tokenized rows, of the stream and of the random-access format, mapped into memory."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamsft.errors import StoreError
from streamsft.sources.damage import checked_schema, decoding
from streamsft.sources.manifest import check_footer
from streamsft.sources.parquetfiles import ARROW, PARQUET

__all__ = ["ArrowFile", "Placed"]


class Placed(NamedTuple):
    """A record batch, and where it lies in its file."""

    batch: pa.RecordBatch
    number: int
    byte: int
    """Where it begins in a stream; 0 in the random-access format, which finds it by number."""


@final
class ArrowFile:
    """One Arrow file, mapped into memory. Nothing of it is read before it is asked for.

    Raises:
        StoreError: it is cut off, or is no Arrow file.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        with self._reading():
            with open(path, "rb") as file:
                size = file.seek(0, 2)
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else None
            self._source = pa.BufferReader(pa.py_buffer(self._map or b""))
            self.bytes: NDArray[np.uint8] = np.frombuffer(self._map or b"", np.uint8)
            self._indexed = self.bytes[: len(ARROW)].tobytes() == ARROW
            if self.bytes[: len(PARQUET)].tobytes() == PARQUET:
                raise StoreError(f"{path}: is a Parquet file; name it so, with .parquet at its end")
            if not self._indexed:
                check_footer(Path(path))
            self._source.seek(0)
            self.schema: pa.Schema = checked_schema(self._opener()(self._source).schema)

    def batches(self, columns: Sequence[str]) -> Iterator[Placed]:
        """All record batches, with some columns only."""
        with self._reading():
            self._source.seek(0)
            reader = self._opener()(self._source, options=self._only(columns))
            if self._indexed:
                for number in range(reader.num_record_batches):
                    yield Placed(_ordered(reader.get_batch(number), columns), number, 0)
                return
            number = 0
            while True:
                byte = self._source.tell()
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    return
                yield Placed(_ordered(batch, columns), number, byte)
                number += 1

    def batch(self, number: int, byte: int, columns: Sequence[str]) -> pa.RecordBatch:
        """One record batch, by its place."""
        with self._reading():
            self._source.seek(0)
            reader = self._opener()(self._source, options=self._only(columns))
            if self._indexed:
                return _ordered(reader.get_batch(number), columns)
            if "dictionary" in str(self.schema):  # whose values stand between the batches
                for _ in range(number):
                    reader.read_next_batch()
            else:
                self._source.seek(byte)
            return _ordered(reader.read_next_batch(), columns)

    def maps(self, batch: pa.RecordBatch) -> bool:
        """Whether the buffers of a batch are parts of the file: not so where they are compressed."""
        start = self.bytes.ctypes.data
        stop = start + len(self.bytes)
        buffers = [buffer for column in batch.columns for buffer in column.buffers() if buffer is not None]
        return all(start <= buffer.address < stop for buffer in buffers if buffer.size)

    def forget(self) -> None:
        """Count what was read of the file as this process's memory no longer; it stays in the system's cache."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def _opener(self) -> Any:
        return pa.ipc.open_file if self._indexed else pa.ipc.open_stream

    def _only(self, columns: Sequence[str]) -> Any:
        return pa.ipc.IpcReadOptions(included_fields=sorted(self.schema.get_field_index(name) for name in columns))

    def _reading(self) -> AbstractContextManager[None]:
        return decoding(self.path)


def _ordered(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    batch.validate()  # in no time, for it looks at no row
    return batch.select(list(columns))
