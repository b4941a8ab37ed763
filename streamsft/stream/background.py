"""A thread that keeps the next items of an iterator ready."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

__all__ = ["in_background"]

T = TypeVar("T")

_log = logging.getLogger(__name__)

_LEAVE_S = 30.0  # longer than a batch takes; what waits for a disk or a network may never come back


def in_background(start: Callable[[], Iterator[T]], ahead: int | queue.Queue[T | BaseException]) -> Iterator[T]:
    """Iterate over ``start()`` in a thread.

    The items and their order are those of the iterator. An exception is raised where its item would have
    come. Closing the generator stops the thread; one that does not stop within 30 s, which hangs in what it reads, is
    left behind, so that a run that failed elsewhere can end.

    Args:
        start: makes the iterator, in the thread.
        ahead: how many items the thread stays ahead at most; or an empty queue of that size, for those who want to see
            how many items wait in it.
    """
    ready: queue.Queue[T | BaseException] = queue.Queue(ahead) if isinstance(ahead, int) else ahead
    stopped = threading.Event()

    def produce() -> None:
        try:
            for item in start():
                ready.put(item)
                if stopped.is_set():
                    return
            ready.put(StopIteration())
        except BaseException as error:
            ready.put(error)

    thread = threading.Thread(target=produce, name="streamsft-loader", daemon=True)
    thread.start()
    try:
        while True:
            item = ready.get()
            if isinstance(item, StopIteration):
                return
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        _leave(thread, ready)


def _leave(thread: threading.Thread, ready: queue.Queue[T | BaseException]) -> None:
    """Wait for the thread to end, making room for an item that it is waiting to hand over."""
    end = time.monotonic() + _LEAVE_S
    while thread.is_alive():
        try:
            ready.get(timeout=0.01)
        except queue.Empty:
            thread.join(timeout=0.01)
        if time.monotonic() > end:
            _log.warning("the thread that reads has not ended in %g s: what it reads hangs", _LEAVE_S)
            return
