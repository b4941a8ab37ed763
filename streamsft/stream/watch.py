"""Worker processes under watch: they are killed when the one that is waited for hangs, and end with their parent."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ctypes import c_bool
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import RawValue
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

from streamsft.sources.lastread import LastRead

__all__ = ["HangError", "Processes", "Watch", "leave_to_parent"]

_TICK_S = 1.0
_START_S = 300.0  # at least: new processes import torch, from a file system that may be slow
_JOIN_S = 5.0  # a process that waits for a disk or a network may take a moment to die
_FILLING = bytes(1 << 16)


def leave_to_parent() -> None:
    """Have this process, a worker, end when the one that it works for ends it, or is gone.

    SIGTERM and SIGINT, which a terminal or a scheduler sends to all processes of a job, are for that one alone: it may
    want some more batches, to come to a checkpoint. When it is gone, however it died, a worker ends within seconds. By
    itself it would wait for ever for somebody to take what it has made; torch's own watch asks it to end, but it sends
    its last messages first.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    starter, parent = os.getppid(), multiprocessing.parent_process()
    own = parent is None or parent.pid == starter  # else it is of a server of forks, which may end earlier

    def watch() -> None:
        while (not own or os.getppid() == starter) and (parent is None or parent.is_alive()):
            time.sleep(_TICK_S)
        os._exit(1)

    threading.Thread(target=watch, name="streamsft-parent", daemon=True).start()


@final
class HangError(Exception):
    """A worker hung, and all workers have been killed.

    Attributes:
        worker: its number: of one that a signal has stopped, which may keep others from sending, or of the one that was
            waited for; None if the workers never got to work.
    """

    def __init__(self, worker: int | None) -> None:
        super().__init__(worker)
        self.worker = worker


@final
class _Flag:
    """An event without a lock: a process that is killed while it looks at one leaves nothing locked."""

    def __init__(self) -> None:
        self._value = RawValue(c_bool, False)

    def set(self) -> None:
        self._value.value = True

    def is_set(self) -> bool:
        return self._value.value


@final
class Processes:
    """What torch starts for a loader: its worker processes, and the queue by which they send.

    Attributes:
        context: for torch, in place of multiprocessing's own of that start method; notes what it is asked for.

    Args:
        start_method: how processes start; None is Python's default.
    """

    def __init__(self, start_method: str | None) -> None:
        own: Any = multiprocessing.get_context(start_method or multiprocessing.get_start_method())
        self._owner = os.getpid()
        self._workers: list[BaseProcess] = []
        self._queues: list[Any] = []

        def process(*args: Any, **options: Any) -> Any:
            self._workers.append(own.Process(*args, **options))
            return self._workers[-1]

        def queue(*args: Any) -> Any:
            self._queues.append(own.Queue(*args))
            return self._queues[-1]

        self.context: Any = type(own)()
        self.context.Process, self.context.Queue, self.context.Event = process, queue, _Flag
        atexit.register(self.kill)  # before multiprocessing asks them to end and waits: they leave that to this process

    def stopped(self) -> int | None:
        """Number of the first worker that a signal has stopped, where the system tells."""
        for worker, process in enumerate(self._workers):
            with suppress(OSError):  # of systems without such a file, and of a process that is no more
                status = Path(f"/proc/{process.pid}/stat").read_text()
                if status.rpartition(")")[2].split()[0] == "T":
                    return worker
        return None

    def kill(self) -> None:
        """End all processes at once, stopped ones too."""
        atexit.unregister(self.kill)
        if os.getpid() != self._owner:  # a fork of that process
            return
        started = [worker for worker in self._workers if worker.pid is not None]
        for worker in started:
            worker.kill()
        for worker in started:
            worker.join(_JOIN_S)

    def release(self, back: threading.Event) -> None:
        """When all processes are dead: wake the thread that waits for them, which sets `back` then.

        It may be in the middle of a message whose sender is dead. It gets the rest as zeros, and whatever it makes of
        them is to be thrown away.
        """
        writer = self._queues[0]._writer.fileno()  # the first queue is the one that all workers send by
        os.set_blocking(writer, False)
        while not back.wait(0.01):
            with suppress(BlockingIOError):  # it has not yet read what is there
                os.write(writer, _FILLING)


@final
class Watch:
    """A thread that kills all workers when the one that is waited for has done nothing for too long.

    A worker does something as long as it sends messages or notes what it reads. Time is counted in ticks of the
    thread, so that what passes while the whole job is stopped does not count.

    Args:
        timeout: seconds; None watches nothing.
        processes: the workers.
        last_read: what they read.
    """

    def __init__(self, timeout: float | None, processes: Processes, last_read: LastRead) -> None:
        self._timeout = timeout
        self._processes = processes
        self._last_read = last_read
        self._lock = threading.Lock()
        self._waits = 0
        self._awaited: tuple[int, int | None] | None = None
        self._hung = False
        self._stopped: int | None = None
        self._ended, self._back = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="streamsft-watch", daemon=True)

    def __enter__(self) -> Self:
        if self._timeout is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._timeout is not None:
            self._thread.join()

    @contextmanager
    def waiting(self, worker: int | None) -> Iterator[None]:
        """Wait in this context for worker number `worker`, or with None for workers to start, at least 300 s.

        Raises:
            HangError: it was waited for in vain; in place of all else.
        """
        with self._lock:
            self._waits += 1
            self._awaited = (self._waits, worker)
        try:
            yield
        except Exception as error:
            if self._returned():
                raise HangError(worker if self._stopped is None else self._stopped) from error
            raise
        except BaseException:
            self._returned()
            raise
        if self._returned():  # with what the dead have left
            raise HangError(worker if self._stopped is None else self._stopped)

    def _returned(self) -> bool:
        """Note that nobody is waited for any more, and tell whether it had been in vain."""
        with self._lock:
            self._awaited = None
        if self._hung:
            self._back.set()
        return self._hung

    def _run(self) -> None:
        assert self._timeout is not None
        begins = max(self._timeout, _START_S)
        tick = min(_TICK_S, self._timeout / 4)
        seen: tuple[Any, ...] | None = None
        still = 0.0
        while not self._ended.wait(tick):
            awaited = self._awaited
            if awaited is None:
                seen = None
                continue
            now = (awaited, None if awaited[1] is None else self._last_read.count(awaited[1]))
            still = still + tick if now == seen else 0.0
            seen = now
            if still < (begins if awaited[1] is None else self._timeout):
                continue
            with self._lock:
                self._hung = self._awaited == awaited
            if self._hung:
                self._stopped = self._processes.stopped()
                self._processes.kill()
                self._processes.release(self._back)
                return
