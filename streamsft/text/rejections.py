"""Rows that were left out: counted by reason, and written down one by one."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, final

from streamsft.errors import StoreError
from streamsft.refusals import way_out

__all__ = ["REJECTED_FILE", "Rejections", "read_rejections"]

REJECTED_FILE = "rejected.jsonl"
_RECORD = ("source", "file", "line", "file_row", "row", "reason", "detail")

logger = logging.getLogger("streamsft")


@final
class Rejections:
    """Counts rejected rows of a source and writes each to a file of JSON lines.

    A line has `source`, `file`, `line` (from 1; null where the format has no lines), `file_row` and
    `row` (its numbers in its file and in the source, from 0), `reason` and `detail`. The first row of
    each reason is logged.

    Args:
        source: the source's name.
        path: the file, or None to count only.
    """

    def __init__(self, source: str, path: Path | None) -> None:
        self.counts: Counter[str] = Counter()
        self.first: dict[str, str] = {}
        self._source = source
        self._path = path
        self._file: IO[str] | None = None

    def add(self, *, file: str, line: int | None, file_row: int, row: int, reason: str, detail: str) -> None:
        """Note one row.

        Raises:
            StoreError: it cannot be written.
        """
        self.counts[reason] += 1
        if reason not in self.first:
            self.first[reason] = f"{file}:{file_row if line is None else line}: {detail}"
            logger.warning("source %s: first row rejected as %s: %s", self._source, reason, self.first[reason])
        if self._path is None:
            return
        record = {"source": self._source, "file": file, "line": line, "file_row": file_row, "row": row}
        text = json.dumps({**record, "reason": reason, "detail": detail}) + "\n"
        try:
            if self._file is None:
                self._file = self._path.open("w", encoding="utf-8")
            self._file.write(text)
        except OSError as error:
            raise _cannot_write(self._path, error) from error

    def count(self, reason: str) -> None:
        """Count a row that is left out without being wrong."""
        self.counts[reason] += 1

    def close(self) -> None:
        """Complete the file.

        Raises:
            StoreError: it cannot be written.
        """
        if self._file is not None:
            assert self._path is not None
            try:
                self._file.close()
            except OSError as error:
                raise _cannot_write(self._path, error) from error

    def __str__(self) -> str:
        firsts = {reason: f" (first: {first})" for reason, first in self.first.items()}
        return ", ".join(f"{count:,} {reason}{firsts.get(reason, '')}" for reason, count in self.counts.items())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif self._file is not None:
            with suppress(OSError):  # what is being raised says more
                self._file.close()


def read_rejections(folder: Path) -> Iterator[dict[str, Any]]:
    """The rejected rows that were listed in `folder`, in order.

    Raises:
        StoreError: the list is damaged.
    """
    if not (path := folder / REJECTED_FILE).exists():
        return
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                record = json.loads(line)
                yield {name: record[name] for name in _RECORD}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path}: is no list of rejected rows ({error}); build the store again") from error


def _cannot_write(path: Path, error: OSError) -> StoreError:
    fix = way_out(error, "choose another folder")
    return StoreError(f"{path}: cannot be written ({error.strerror or error}); {fix}, then run again")
