"""SIGTERM and SIGINT as a wish to stop, to be granted at the next step border."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self, final

__all__ = ["StopSignals", "signal_name"]

_IMPATIENT_S = 2.0
"""A second Ctrl-C counts as one only after this time: terminal and launcher may both deliver the first."""


@final
class StopSignals:
    """Notes SIGTERM and SIGINT while it is entered; a second SIGINT, some seconds later, interrupts at once.

    Outside the main thread, where Python allows no handlers, it notes nothing.
    """

    def __init__(self) -> None:
        self.number = 0
        """The signal that came first, 0 while there is none."""
        self._since = 0.0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.number and number == signal.SIGINT and time.monotonic() - self._since > _IMPATIENT_S:
            raise KeyboardInterrupt
        if not self.number:
            self.number, self._since = number, time.monotonic()


def signal_name(number: int) -> str:
    """Return for example ``SIGTERM``."""
    return signal.Signals(number).name
