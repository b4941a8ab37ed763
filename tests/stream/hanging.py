"""Sources that hang in the process that reads them; in a module of their own, which worker processes can import."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fakes import ListSource
from tests.text.transforms import characters

__all__ = ["Hanging", "HangingText", "blocks", "stops"]


def stops(flag: Path) -> None:
    """Be stopped by a signal."""
    os.kill(os.getpid(), signal.SIGSTOP)


def blocks(flag: Path) -> None:
    """Wait for a writer of a FIFO that nobody opens."""
    fifo = flag.with_suffix(f".{os.getpid()}")
    os.mkfifo(fifo)
    fifo.read_bytes()


class _Once:
    """Does something the first time that it is called in any process, while a file is there.

    Args:
        flag: the file.
        hang: what to do.
        always: do it each time.
    """

    def __init__(self, flag: Path, hang: Callable[[Path], None], *, always: bool = False) -> None:
        self.flag = flag
        self.hang = hang
        self.always = always
        flag.touch()

    def __call__(self) -> None:
        try:
            if not self.always:
                os.unlink(self.flag)
        except FileNotFoundError:
            return
        self.hang(self.flag)


class Hanging(ListSource):
    """40 rows of 2 tokens, of which reading row 7 hangs."""

    def __init__(self, name: str, flag: Path, hang: Callable[[Path], None], *, always: bool = False) -> None:
        super().__init__(name, [([row, 1], [0, 1]) for row in range(40)])
        self.once = _Once(flag, hang, always=always)

    def read(self, index: Any) -> Any:
        if 7 in index:
            self.once()
        return super().read(index)


class HangingText:
    """`tests.text.transforms.characters`, but it hangs on the row of text "hang"."""

    version = 1

    def __init__(self, flag: Path, hang: Callable[[Path], None]) -> None:
        self.once = _Once(flag, hang)

    def __call__(self, row: dict[str, Any]) -> dict[str, list[int]] | None:
        if row["text"] == "hang":
            self.once()
        return characters(row)
