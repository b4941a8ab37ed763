"""Telling how far a long count has come."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from streamsft.stream.skipping import Told

__all__ = ["quietly", "telling"]

_PATIENCE_S = 1.0


@contextmanager
def telling(what: str) -> Iterator[Told]:
    """A function to be called with what is done and the whole amount; draws a bar on standard error after a second."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    bars = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bars.add_task(what, total=1)
    began = time.monotonic()

    def told(done: int, total: int) -> None:
        bars.update(task, completed=done, total=max(1, total))
        if not bars.live.is_started and time.monotonic() - began > _PATIENCE_S:
            bars.start()

    try:
        yield told
    finally:
        if bars.live.is_started:
            bars.stop()


@contextmanager
def quietly() -> Iterator[None]:
    """Log nothing of streamsft but errors: for trials of which nobody needs to hear."""
    log = logging.getLogger("streamsft")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
