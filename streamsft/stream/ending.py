"""Iterators that are closed when the interpreter ends, while the modules that they need are still there."""

from __future__ import annotations

import atexit
from collections.abc import Generator
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakSet

__all__ = ["closed_at_exit"]

T = TypeVar("T")

_open: WeakSet[Generator[Any, None, None]] = WeakSet()


def closed_at_exit(iterator: Generator[T, None, None]) -> Generator[T, None, None]:
    """`iterator`, which ends its thread or its processes at the end of the program, if nobody has closed it before."""
    _open.add(iterator)
    return iterator


@atexit.register
def _close() -> None:
    for iterator in list(_open):
        with suppress(ValueError):  # a thread is in the middle of it
            iterator.close()
