"""A thread that keeps the next items of an iterator ready."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

__all__ = ["in_background"]

T = TypeVar("T")


def in_background(start: Callable[[], Iterator[T]], ahead: int | queue.Queue[T | BaseException]) -> Iterator[T]:
    """Iterate over ``start()`` in a thread.

    The items and their order are those of the iterator. An exception is raised where its item would have
    come. Closing the generator stops the thread.

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
        while thread.is_alive():  # make room for an item that the thread is waiting to hand over
            try:
                ready.get(timeout=0.01)
            except queue.Empty:
                thread.join(timeout=0.01)
