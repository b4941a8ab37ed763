"""A thread that keeps the next items of an iterator ready."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

__all__ = ["in_background"]

T = TypeVar("T")


def in_background(start: Callable[[], Iterator[T]], depth: int) -> Iterator[T]:
    """Iterate over ``start()`` in a thread that stays at most `depth` items ahead.

    The items and their order are those of the iterator. An exception is raised where its item would have
    come. Closing the generator stops the thread.
    """
    ready: queue.Queue[T | BaseException] = queue.Queue(maxsize=depth)
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
