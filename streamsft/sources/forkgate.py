"""Operations in whose middle no process is to be forked off.

The S3 client of Arrow holds a lock while it is asked for something. A process forked off meanwhile inherits it locked,
by a thread that it has not, and would wait for ever where it makes a client of its own. So forks wait for operations
under way, and operations for a fork. What a fork did not wait for long enough is refused in the new process.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, final

from streamsft.errors import StoreError

__all__ = ["GATE", "RENEWING", "ForkGate", "ForkLock", "OfProcess"]

_LONGEST: Final = 60.0  # seconds; clients give up by themselves after some


@final
class ForkGate:
    """Lets operations pass, or one fork.

    Args:
        longest: seconds that a fork waits.
    """

    def __init__(self, longest: float = _LONGEST) -> None:
        self._longest = longest
        self._broken = False
        self._reset()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._under_way = self._forks = 0

    def watch_forks(self) -> None:
        """Have forks of this process wait from now on."""
        os.register_at_fork(before=self._close, after_in_parent=self._open, after_in_child=self._start_over)

    @contextmanager
    def passing(self) -> Iterator[None]:
        """An operation; on threads only that fork nothing in it.

        Raises:
            StoreError: this process was forked off in the middle of one.
        """
        if self._broken:
            raise StoreError(
                "this process was forked off while a thread of its parent read from the storage, whose client it "
                "therefore cannot use; start processes another way (loader.start_method: spawn)"
            )
        with self._changed:
            self._changed.wait_for(lambda: not self._forks)
            self._under_way += 1
        try:
            yield
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()

    def _close(self) -> None:
        self._changed.acquire()  # until after the fork
        self._forks += 1
        self._changed.wait_for(lambda: not self._under_way, self._longest)

    def _open(self) -> None:
        self._forks -= 1
        self._changed.notify_all()
        self._changed.release()

    def _start_over(self) -> None:
        self._broken = self._broken or self._under_way > 0
        self._reset()


GATE: Final = ForkGate()
"""The one of this process."""
GATE.watch_forks()


@final
class ForkLock:
    """A lock that is free in a process that was forked off, whoever held it in the parent. Lives as long as it."""

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


RENEWING: Final = ForkLock()
"""Held while something makes anew what it must not use of the process that this one was forked off from."""


class OfProcess(ABC):
    """Holds locks, threads or open files of one process; a process that is forked off from it begins with its own."""

    _process = 0  # none has this number

    @abstractmethod
    def _begin(self) -> None:
        """Hold nothing yet. What is begun here does not begin anything else of this kind."""

    def _begin_here(self) -> None:
        """Begin unless this process has; to be called before what `_begin` sets is used."""
        if self._process != os.getpid():
            with RENEWING:
                if self._process != os.getpid():
                    self._begin()
                    self._process = os.getpid()  # last: what other threads see begun is whole
