"""Decoding the blocks of files that cannot be mapped: row groups, and compressed record batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, final

from streamsft.errors import StoreError
from streamsft.sources.arrowfiles import ArrowFile
from streamsft.sources.blockrows import Block, DecodedBlock
from streamsft.sources.files import check_unchanged
from streamsft.sources.forkgate import OfProcess
from streamsft.sources.parquetfiles import ParquetFile
from streamsft.sources.paths import RawFile
from streamsft.sources.storecolumns import StoreColumns

__all__ = ["BlockLoader"]

_OPEN = 64
"""Files kept open at a time."""


@final
class BlockLoader(OfProcess):
    """Decodes blocks of files; a file is opened when it is first read, and again in a forked process.

    Args:
        files: the files, by number.
        kind: what they are.
        extras: columns that travel with the rows.
    """

    def __init__(self, files: Sequence[RawFile], kind: Literal["arrow", "parquet"], extras: Sequence[str]) -> None:
        self._files = list(files)
        self._kind = kind
        self._extras = tuple(extras)

    def _begin(self) -> None:
        self._open: dict[int, ArrowFile | ParquetFile] = {}  # in the order of their last use

    def __call__(self, block: Block) -> DecodedBlock:
        """The rows of a block.

        Raises:
            DataError: its file cannot be read, or is not what it was.
        """
        self._begin_here()
        path = self._files[block.file].path
        file = self._open.pop(block.file, None)
        if file is None:
            check_unchanged(self._files[block.file])
            file = ParquetFile(path) if self._kind == "parquet" else ArrowFile(path)
        self._open[block.file] = file
        if len(self._open) > _OPEN:
            del self._open[next(iter(self._open))]
        columns = StoreColumns.of(file.schema, path, self._extras)
        if isinstance(file, ParquetFile):
            batch = file.group(block.number, columns.read)
        else:
            batch = file.batch(block.number, block.byte, columns.read)
        if batch.num_rows != block.rows:
            raise StoreError(
                f"{path}: a block of {block.rows:,} rows now has {batch.num_rows:,}; the file is damaged, or has "
                "changed since the store was opened: write or copy it again"
            )
        return DecodedBlock.of(batch, columns, path)
