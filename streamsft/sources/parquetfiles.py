"""Parquet files of tokenized rows, read as they are, a row group at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, final

import pyarrow as pa

from streamsft.errors import StoreError
from streamsft.sources.damage import checked_schema, decoding
from streamsft.sources.tokennames import IDS

__all__ = ["ARROW", "PARQUET", "ParquetFile", "rows_at_a_time"]

ARROW = b"ARROW1"
"""The first bytes of an Arrow file in the random-access format."""

PARQUET = b"PAR1"
"""The first and last bytes of a Parquet file."""

_STREAMED = b"\xff\xff\xff\xff"  # the first bytes of an Arrow stream
_TOKENS = 4 << 20  # decoded at a time while a file is validated


def rows_at_a_time(group: Any) -> int:
    """How many rows of a row group, given by its metadata, to decode at once: about four million tokens."""
    tokens = max((c.num_values for c in map(group.column, range(group.num_columns)) if _is_ids(c)), default=0)
    return max(1, min(int(group.num_rows), int(group.num_rows) * _TOKENS // max(1, int(tokens))))


def _is_ids(column: Any) -> bool:
    return str(column.path_in_schema).split(".")[0] == IDS


@final
class ParquetFile:
    """One Parquet file.

    Raises:
        StoreError: it is no Parquet file, or is damaged.
    """

    def __init__(self, path: str) -> None:
        import pyarrow.parquet as pq

        self.path = path
        with self._reading():
            with open(path, "rb") as file:
                head = file.read(len(ARROW))
            if head.startswith((ARROW, _STREAMED)):
                raise StoreError(f"{path}: is an Arrow file; name it so, with .arrow at its end")
            self._file = pq.ParquetFile(path, memory_map=True, pre_buffer=False)
            self.schema: pa.Schema = checked_schema(self._file.schema_arrow)
            self.metadata = self._file.metadata

    @property
    def groups(self) -> int:
        """Number of row groups."""
        return int(self.metadata.num_row_groups)

    def batches(self, group: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of a row group in bounded pieces, with some columns only."""
        with self._reading():
            metadata, behind = self.metadata.row_group(group), 0
            rows = rows_at_a_time(metadata)
            for batch in self._file.iter_batches(
                batch_size=rows, row_groups=[group], columns=list(columns), use_threads=False
            ):
                yield batch.select(list(columns))
                behind += batch.num_rows
        if behind != metadata.num_rows:
            raise StoreError(
                f"{self.path}: is damaged (row group {group} holds {behind:,} rows, and {metadata.num_rows:,} by the "
                "footer); write or copy it again"
            )

    def group(self, group: int, columns: Sequence[str]) -> pa.RecordBatch:
        """All rows of a row group, with some columns only."""
        with self._reading():
            table = self._file.read_row_group(group, columns=list(columns), use_threads=False)
            batches = table.select(list(columns)).combine_chunks().to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)

    def _reading(self) -> AbstractContextManager[None]:
        return decoding(self.path, "is no Parquet file, or damaged")
