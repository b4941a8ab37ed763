"""Jobs for engines, in a module that imports little: every new worker imports it."""

from __future__ import annotations

import logging
import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FATAL", "WRONG", "Doubling", "Locked", "Reading", "Released"]

WRONG = -2
FATAL = -3


@dataclass(frozen=True)
class Doubling:
    """Doubles numbers; `WRONG` is an error, `FATAL` brings its worker down."""

    def run(self, item: int, /) -> int:
        if item == WRONG:
            raise KeyError("minus two")
        if item == FATAL:
            os.kill(os.getpid(), signal.SIGKILL)
        return 2 * item


@dataclass(frozen=True)
class Reading:
    """Reads the named pipe that it is given, which takes until something writes to it."""

    def run(self, item: str, /) -> str:
        with open(item) as pipe:
            return pipe.read()


class Released(logging.Handler):
    """Writes to a named pipe when something is logged.

    Attributes:
        said: what was logged.
    """

    def __init__(self, pipe: Path) -> None:
        super().__init__()
        self.said: list[str] = []
        self._pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())
        if len(self.said) == 1:
            self._pipe.write_text("released")


class Locked:
    """Cannot be pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def run(self, item: int, /) -> int:
        return item
