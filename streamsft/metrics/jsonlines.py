"""A file of JSON Lines that is appended to, and cut back where a run goes on from."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, final

from streamsft.errors import RunError

__all__ = ["JsonLines", "last_record"]


@final
class JsonLines:
    """Records with a ``step`` each, in the order of steps, readable as soon as written.

    The file is appended to, from the first `append` on: before, a run directory may still be moved. A last line that
    an interrupted run left unfinished is removed then.

    Args:
        path: the file; it and its folder are made with the first record.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] | None = None

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one more line."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._cut_unfinished_line()
            self._file = self.path.open("a", encoding="utf-8")
        self._file.write(json.dumps(record, allow_nan=False) + "\n")
        self._file.flush()

    def rewind(self, step: int) -> None:
        """Drop the records of later steps than `step`.

        Raises:
            RunError: a line of the file is no such record.
        """
        self.close()
        if not self.path.exists():
            return
        self._cut_unfinished_line()
        beside = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
        try:
            with beside.open("w", encoding="utf-8") as kept:
                kept.writelines(line for record, line in self._lines() if int(record["step"]) <= step)
                kept.flush()
                os.fsync(kept.fileno())
            beside.replace(self.path)
        finally:
            beside.unlink(missing_ok=True)

    def records(self, *, after: int, before: int) -> Iterator[Any]:
        """The records of steps between these, themselves left out; none where there is no file.

        Raises:
            RunError: a line of the file is no such record.
        """
        if after + 1 < before and self.path.exists():
            yield from (record for record, _ in self._lines() if after < int(record["step"]) < before)

    def close(self) -> None:
        """Close the file; nothing is held back."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _cut_unfinished_line(self) -> None:
        if not self.path.exists():
            return
        with self.path.open("rb+") as file:
            end = file.seek(0, os.SEEK_END)
            while end:
                start = max(0, end - 65536)
                file.seek(start)
                found = file.read(end - start).rfind(b"\n")
                end = start + found + 1
                if found >= 0:
                    break
            file.truncate(end)

    def _lines(self) -> Iterator[tuple[Any, str]]:
        with self.path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                try:
                    record = json.loads(line)
                    int(record["step"])
                except (ValueError, KeyError, TypeError) as error:
                    raise RunError(
                        f"{self.path}:{number}: not a metrics record ({error}); repair or remove the line"
                    ) from error
                yield record, line


def last_record(path: Path) -> Any:
    """The record of the last whole line of `path`, which is read from its end; None where there is none.

    Raises:
        RunError: the line is no such record.
    """
    if not path.exists():
        return None
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        start, tail = size, b""
        while start and tail.count(b"\n") < 2:
            start = max(0, start - 65536)
            file.seek(start)
            tail = file.read(size - start)
    line = tail[: tail.rfind(b"\n") + 1].rstrip(b"\n").rpartition(b"\n")[2]
    if not line:
        return None
    try:
        record = json.loads(line)
        int(record["step"])
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path}: the last line is no record ({error}); repair or remove it") from error
    return record
