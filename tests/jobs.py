"""Jobs for engines, in a module that imports little: every new worker imports it."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass

__all__ = ["FATAL", "WRONG", "Doubling", "Locked"]

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


class Locked:
    """Cannot be pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def run(self, item: int, /) -> int:
        return item
