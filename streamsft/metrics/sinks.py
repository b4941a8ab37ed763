"""Where log records are written: `Sink`, and the sinks for JSON Lines and TensorBoard.

A run writes its records on rank 0 only; records are the same on all ranks. The console's sink is in
`streamsft.metrics.console`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, final

from streamsft.errors import ConfigError, RunError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

__all__ = ["JsonlSink", "Sink", "TensorBoardSink"]


class Sink(Protocol):
    """Takes the record of each log step."""

    def write(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        """Take a record: the step it was made after, seconds since the epoch, and its numbers."""

    def rewind(self, step: int) -> None:
        """Forget the records of later steps than `step`: the run goes on from there. Called before any `write`."""

    def close(self) -> None:
        """Write out what is still held back; nothing is written afterwards."""


@final
class JsonlSink:
    """One line of JSON per record, ``{"step", "time", "metrics": {key: number}}``, readable as soon as written.

    The file is appended to, from the first `write` on: before, a run directory may still be moved. A last line that
    an interrupted run left unfinished is removed then.
    Numbers that are not finite, for which JSON has no notation, become ``null``.

    Args:
        path: the file; it and its folder are made with the first record.

    Raises:
        RunError: on `rewind`, a line of the file is not such a record.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._file: IO[str] | None = None

    def write(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._cut_unfinished_line()
            self._file = self.path.open("a", encoding="utf-8")
        numbers = {key: value if math.isfinite(value) else None for key, value in metrics.items()}
        self._file.write(json.dumps({"step": step, "time": time, "metrics": numbers}, allow_nan=False) + "\n")
        self._file.flush()

    def rewind(self, step: int) -> None:
        self.close()
        if not self.path.exists():
            return
        self._cut_unfinished_line()
        beside = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
        try:
            with beside.open("w", encoding="utf-8") as kept:
                kept.writelines(line for at, line in self._lines() if at <= step)
                kept.flush()
                os.fsync(kept.fileno())
            beside.replace(self.path)
        finally:
            beside.unlink(missing_ok=True)

    def close(self) -> None:
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

    def _lines(self) -> Iterator[tuple[int, str]]:
        with self.path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield int(json.loads(line)["step"]), line
                except (ValueError, KeyError, TypeError) as error:
                    raise RunError(
                        f"{self.path}:{number}: not a metrics record ({error}); repair or remove the line"
                    ) from error


@final
class TensorBoardSink:
    """Scalars in TensorBoard event files, one tag per key.

    After `rewind`, TensorBoard hides what had been written for later steps.

    Args:
        folder: the folder for event files.

    Raises:
        ConfigError: the package ``tensorboard`` is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            import torch.utils.tensorboard
        except ImportError as error:
            raise ConfigError(
                "metrics.sinks: 'tensorboard' needs the package tensorboard: pip install 'streamsft[train]'"
            ) from error
        self._make: Any = torch.utils.tensorboard.SummaryWriter
        self.folder = Path(folder)
        self._purge: int | None = None
        self._writer: SummaryWriter | None = None

    def write(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        if self._writer is None:
            self._writer = self._make(str(self.folder), purge_step=self._purge)
        for key, value in metrics.items():
            self._writer.add_scalar(key, value, step, walltime=time)
        self._writer.flush()

    def rewind(self, step: int) -> None:
        self.close()
        self._purge = step + 1

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
