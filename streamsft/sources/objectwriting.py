"""Parquet files to object storage: a store that readers see once it is whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, final
from urllib.parse import urlsplit

import pyarrow as pa

from streamsft.errors import StoreError
from streamsft.sources.addresses import shown
from streamsft.sources.objectclients import writable
from streamsft.sources.objects import UNFINISHED, Objects
from streamsft.sources.retrying import reason_of

__all__ = ["ObjectTarget"]

WriteFile = Callable[[Iterator[pa.Table], Any], bool]
"""Writes the next file to a sink; False if nothing was left to write."""


@final
class ObjectTarget:
    """A file or a folder at an address that a store is written to.

    A folder holds an object `UNFINISHED` until `finish`: whoever opens it before is refused. Objects themselves appear
    once they are whole.

    Args:
        address: an address that ends in ``.parquet``, or of a folder; nothing may be there.

    Raises:
        StoreError: something is there, or the storage refuses.
    """

    def __init__(self, address: str) -> None:
        Objects(address)  # refuses credentials
        self.address = address.rstrip("/")
        self.single = self.address.endswith(".parquet")
        self._written: list[str] = []
        self._filesystem, self._path = self._tried(lambda: writable(self.address))
        if self._tried(self._exists):
            raise StoreError(
                f"{shown(self.address)}: exists already, or is what a call that was stopped has left; remove it, or "
                "choose another place"
            )

    @property
    def files(self) -> list[str]:
        """Addresses of what was written."""
        scheme = urlsplit(self.address).scheme
        return [f"{scheme}://{path}" for path in self._written]

    def write(self, groups: Iterator[pa.Table], write_file: WriteFile) -> int:
        """Write all groups; returns the number of files. What was written goes if that fails.

        Raises:
            StoreError: the storage refuses.
        """
        try:
            if self.single:
                return int(self._put(self._path, groups, write_file))
            with self._filesystem.open_output_stream(f"{self._path}/{UNFINISHED}", compression=None) as mark:
                mark.write(b"remove this folder, unless something writes to it now\n")
            number = 0
            while self._put(f"{self._path}/part-{number:05}.parquet", groups, write_file):
                number += 1
            return number
        except BaseException as error:
            self.discard()
            if isinstance(error, OSError):
                raise self._failed(error) from error
            raise

    def finish(self) -> None:
        """Let readers have it."""
        if not self.single:
            self._tried(lambda: self._filesystem.delete_file(f"{self._path}/{UNFINISHED}"))

    def discard(self) -> None:
        """Remove what was written; where storage does not answer, the mark stays, which goes last."""
        marks = [] if self.single else [f"{self._path}/{UNFINISHED}"]
        with suppress(OSError):  # what led here is told
            for path in [*self._written, *marks]:
                with suppress(FileNotFoundError):
                    self._filesystem.delete_file(path)
        self._written.clear()

    def _put(self, path: str, groups: Iterator[pa.Table], write_file: WriteFile) -> bool:
        first = next(groups, None)
        if first is None:
            return False
        self._written.append(path)
        with self._filesystem.open_output_stream(path, compression=None) as sink:
            return write_file(chain((first,), groups), sink)

    def _exists(self) -> bool:
        import pyarrow.fs as pafs

        if self._filesystem.get_file_info(self._path).is_file:
            return True
        within = pafs.FileSelector(self._path, recursive=True, allow_not_found=True)
        return any(info.is_file for info in self._filesystem.get_file_info(within))

    def _tried(self, attempt: Callable[[], Any]) -> Any:
        try:
            return attempt()
        except (OSError, pa.ArrowException) as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> StoreError:
        return StoreError(
            f"{shown(self.address)}: cannot be written ({reason_of(error)}); see that it may be, then again"
        )
