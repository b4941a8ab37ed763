"""Reading one row group of a Parquet object: its columns' bytes in as few requests as can be, then decoded."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, final

import pyarrow as pa

from streamsft.errors import StoreError
from streamsft.sources.blockrows import Block
from streamsft.sources.damage import checked_schema, decoding
from streamsft.sources.footers import RemoteFile, check_unchanged, metadata_of, read_exactly
from streamsft.sources.forkgate import OfProcess
from streamsft.sources.objects import Objects
from streamsft.sources.rawbytes import RandomAccess
from streamsft.sources.retrying import retried

__all__ = ["GroupReader"]

_HOLE: Final = 1 << 20  # bytes that are rather read along than asked around
_FOOTERS: Final = 64  # parsed ones that are kept


class _Range(NamedTuple):
    start: int
    stop: int


@final
class GroupReader(OfProcess):
    """Reads row groups of the files of a store; thread-safe.

    Args:
        objects: where they are.
        files: the files, with footers.
        deadline: seconds that a read is tried for.
    """

    def __init__(self, objects: Objects, files: Sequence[RemoteFile], deadline: float) -> None:
        self._objects = objects
        self._files = files
        self._deadline = deadline

    def __reduce__(self) -> Any:
        files = [replace(file, footer=bytes(file.footer)) for file in self._files]
        return GroupReader, (self._objects, files, self._deadline)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._metadata: OrderedDict[int, Any] = OrderedDict()

    def name(self, file: int) -> str:
        """Where file number `file` is, for messages."""
        return self._objects.named(self._files[file].path)

    def metadata(self, file: int) -> Any:
        """The parsed footer of file number `file`."""
        self._begin_here()
        with self._lock:
            if file not in self._metadata:
                self._metadata[file] = metadata_of(self._files[file], self.name(file))
                if len(self._metadata) > _FOOTERS:
                    self._metadata.popitem(last=False)
            self._metadata.move_to_end(file)
            return self._metadata[file]

    def blocks(self) -> Iterator[Block]:
        """All row groups that hold rows, in order."""
        for number in range(len(self._files)):
            metadata = self.metadata(number)
            for group in range(metadata.num_row_groups):
                if rows := int(metadata.row_group(group).num_rows):
                    yield Block(number, group, 0, rows)

    def schema(self, file: int) -> pa.Schema:
        """The Arrow schema of file number `file`."""
        with decoding(self.name(file), "its footer is damaged"):
            return checked_schema(self.metadata(file).schema.to_arrow_schema())

    def read(self, block: Block, columns: Sequence[str]) -> tuple[pa.RecordBatch, int]:
        """All rows of a row group with some columns, and how many bytes were read for them.

        Raises:
            StoreError: the object has changed, is damaged, or cannot be read until the deadline.
        """
        return self.fetch(block, columns)()

    def fetch(self, block: Block, columns: Sequence[str]) -> Callable[[], tuple[pa.RecordBatch, int]]:
        """The first part of `read`, which waits for the storage; what it returns does the rest, and needs a core.

        Raises:
            StoreError: as `read` does.
        """
        file, metadata, name = self._files[block.file], self.metadata(block.file), self.name(block.file)
        with decoding(name, "its footer is damaged"):
            ranges = _ranges(metadata.row_group(block.number), set(columns))
        parts = retried(lambda: self._bytes(file, name, ranges), name, self._deadline)
        where = f"{name}, row group {block.number}"
        return lambda: (_decoded(metadata, file.size, block, columns, parts, where), sum(map(len, parts.values())))

    def _bytes(self, file: RemoteFile, name: str, ranges: Sequence[_Range]) -> dict[int, bytes]:
        opened = self._objects.open(file.path)
        check_unchanged(opened, file, name)
        return {part.start: read_exactly(opened, part.start, part.stop - part.start) for part in ranges}


def _ranges(group: Any, columns: set[str]) -> list[_Range]:
    """Where the bytes of some columns lie, neighbours joined."""
    found: list[_Range] = []
    for chunk in map(group.column, range(group.num_columns)):
        if chunk.path_in_schema.split(".")[0] in columns:
            starts = [chunk.data_page_offset, chunk.dictionary_page_offset]
            start = min(offset for offset in starts if offset)
            found.append(_Range(start, start + chunk.total_compressed_size))
    joined: list[_Range] = []
    for part in sorted(found):
        if joined and part.start - joined[-1].stop <= _HOLE:
            joined[-1] = _Range(joined[-1].start, max(joined[-1].stop, part.stop))
        else:
            joined.append(part)
    return joined


def _decoded(
    metadata: Any, size: int, block: Block, columns: Sequence[str], parts: dict[int, bytes], where: str
) -> pa.RecordBatch:
    import pyarrow.parquet as pq

    with decoding(where):
        source = pa.PythonFile(_Sparse(parts, size), mode="r")
        reader = pq.ParquetFile(source, metadata=metadata, pre_buffer=False)
        table = reader.read_row_group(block.number, columns=list(columns), use_threads=False)
        batches = table.select(list(columns)).combine_chunks().to_batches()
    if sum(batch.num_rows for batch in batches) != block.rows or len(batches) != 1:
        raise StoreError(f"{where}: has not the {block.rows:,} rows it had")
    return batches[0]


@final
class _Sparse(RandomAccess):
    """A file of which only some parts are here."""

    def __init__(self, parts: dict[int, bytes], size: int) -> None:
        super().__init__(size)
        self._parts = {start: pa.py_buffer(part) for start, part in parts.items()}

    def read(self, size: int = -1) -> bytes:
        return bytes(self.read_buffer(size))

    def read_buffer(self, size: int = -1) -> pa.Buffer:
        """What `read` gives, without a copy; Arrow asks for it."""
        stop = self._size if size < 0 else min(self._size, self._at + size)
        for start, part in self._parts.items():
            if start <= self._at and stop <= start + part.size:
                data = part.slice(self._at - start, stop - self._at)
                self._at = stop
                return data
        raise OSError(f"bytes {self._at} to {stop} were not read")
