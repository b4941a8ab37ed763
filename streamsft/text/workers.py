"""Work spread over processes: items in, results out in the same order, few of them in memory at a time.

The worker processes run `streamsft.text.worker`, not the main script again, so that a script needs no
``if __name__ == "__main__"`` guard, and start from a clean interpreter, so that no thread or lock of
this process is copied. Each holds the job (with its tokenizer) and works on one item at a time.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from multiprocessing.connection import Connection, Pipe, wait
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, final

from streamsft.engine import QUIET_SECONDS, Engine, Job, place_of
from streamsft.errors import ConfigError, DataError

__all__ = ["LocalEngine", "WorkerPool", "map_ordered"]

_ALONE = 16  # items done in this process before starting others pays
_AHEAD = 4  # items per worker that are in work or wait for an earlier one

logger = logging.getLogger("streamsft")

Item = TypeVar("Item")
Result = TypeVar("Result")


@final
class LocalEngine(Engine):
    """Does jobs in processes of this machine.

    Args:
        processes: how many; 1 works in this process. By default this process does the first items, and if there are
            more, one per core goes on.

    Raises:
        ConfigError: fewer than 1.
    """

    def __init__(self, processes: int | None = None) -> None:
        super().__init__()
        if processes is not None and processes < 1:
            raise ConfigError(f"processes: {processes}; give 1 or more, or leave it out")
        self._processes = processes

    def _map(self, job: Job[Item, Result], items: Iterator[Item], *, what: str) -> Iterator[tuple[Item, Result]]:
        return map_ordered(job, items, self._processes, what=what)

    def close(self) -> None:
        """Nothing is left to be ended: workers live as long as their items."""


def map_ordered(
    job: Job[Item, Result], items: Iterable[Item], processes: int | None, *, what: str
) -> Iterator[tuple[Item, Result]]:
    """Each item with what `job` makes of it, in order; few items are in memory at a time.

    Args:
        job: what to do.
        items: taken as they are needed.
        processes: worker processes; 1 works in this process. None starts with the first items in this one
            and goes on in a process per core, unless the job cannot be sent there.
        what: what is being done, for messages.

    Raises:
        ConfigError: the job cannot be sent to as many processes as were asked for.
        DataError: a worker died, or the job failed.
        StreamsftError: the job raised it.
    """
    remaining = iter(items)
    if processes is None:
        yield from ((item, job.run(item)) for item in islice(remaining, _ALONE))
        processes = _portable_cores(job, what)
    if processes == 1:
        yield from ((item, job.run(item)) for item in remaining)
        return
    first = next(remaining, None)
    if first is not None:
        with WorkerPool(job, processes, what=what) as pool:
            yield from pool.map(chain((first,), remaining))


def _portable_cores(job: object, what: str) -> int:
    """The cores that this process may use; 1 where `job` cannot leave it."""
    try:
        _pickled(job)
    except _NotPortableError as error:
        logger.info("%s: works in this process alone: %s", what, error)
        return 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _NotPortableError(Exception):
    """Why a job cannot be loaded by a worker process."""


class _Pickler(pickle.Pickler):
    """Refuses what a worker process could only load by running the main script again."""

    def reducer_override(self, value: Any, /) -> Any:
        if getattr(value, "__module__", None) == "__main__" and hasattr(value, "__qualname__"):
            raise _NotPortableError(f"{value.__qualname__} is defined in the main script")
        return NotImplemented


def _pickled(job: object) -> bytes:
    """`job` as bytes; raises _NotPortableError."""
    if os.name != "posix":
        raise _NotPortableError("worker processes need a POSIX system")
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, protocol=5).dump(job)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise _NotPortableError(str(error)) from error
    return buffer.getvalue()


@final
class WorkerPool(Generic[Item, Result]):
    """`count` processes that do one job; leaving the block ends them.

    Args:
        job: picklable; every worker gets a copy.
        count: number of processes, at least 1.
        what: what is being done, for messages (``source gsm8k``).

    Raises:
        ConfigError: the job cannot be pickled.
    """

    def __init__(self, job: Job[Item, Result], count: int, *, what: str) -> None:
        self._what = what
        try:
            payload = _pickled(job)
        except _NotPortableError as error:
            raise ConfigError(
                f"{what}: cannot be sent to worker processes: {error}. Define functions at the top level of a "
                "module that can be imported (no lambdas, no functions inside functions), or set processes to 1"
            ) from error
        self._workers: dict[Connection, subprocess.Popen[bytes]] = {}
        try:
            for _ in range(count):
                connection, process = _start()
                self._workers[connection] = process
            for connection in self._workers:
                self._send(connection, payload)
        except BaseException:
            self.close()
            raise

    def map(self, items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
        """Each item with its result, in order. Items are taken as they are needed.

        Raises:
            DataError: a worker died, or its job failed with an error that is none of streamsft's.
            StreamsftError: the job raised it.
        """
        idle = list(self._workers)
        busy: dict[Connection, int] = {}
        waiting: dict[int, Item] = {}
        done: dict[int, Result] = {}
        source = iter(items)
        taken = given = 0
        exhausted = False
        while True:
            while idle and not exhausted and taken - given < _AHEAD * len(self._workers):
                item = next(source, _END)
                if isinstance(item, _End):
                    exhausted = True
                    break
                connection = idle.pop()
                self._send(connection, pickle.dumps(item, protocol=5))
                waiting[taken], busy[connection] = item, taken
                taken += 1
            if not busy and given == taken:
                return
            for ready in self._finished(busy, waiting) if given not in done else ():
                done[busy.pop(ready)] = self._receive(ready)
                idle.append(ready)
            while given in done:
                yield waiting.pop(given), done.pop(given)
                given += 1

    def close(self) -> None:
        """End the workers."""
        for connection in self._workers:
            connection.close()
        for process in self._workers.values():
            process.terminate()
        for process in self._workers.values():
            process.wait()
        self._workers.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _finished(self, busy: Mapping[Connection, int], items: Mapping[int, Item]) -> list[Connection]:
        """Wait for workers that have something to say; without a limit, for an item may take as long as it takes."""
        while not (ready := wait(list(busy), QUIET_SECONDS)):
            for connection, number in busy.items():
                logger.warning(
                    "%s: worker process %d has been at the same item for %g s or more%s; if it hangs, kill it, and the "
                    "call ends", self._what, self._workers[connection].pid, QUIET_SECONDS, place_of(items[number]),
                )  # fmt: skip
        return [connection for connection in ready if isinstance(connection, Connection)]

    def _send(self, connection: Connection, payload: bytes) -> None:
        try:
            connection.send_bytes(payload)
        except OSError as error:
            raise self._died(connection) from error

    def _receive(self, connection: Connection) -> Result:
        try:
            succeeded, value = pickle.loads(connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise self._died(connection) from error
        if not succeeded:
            raise value
        result: Result = value
        return result

    def _died(self, connection: Connection) -> DataError:
        process = self._workers[connection]
        code = process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        hint = "; if the system ran out of memory, use fewer processes" if code == -9 else ""
        return DataError(
            f"{self._what}: worker process {process.pid} {how} before its work was done{hint}. "
            "Nothing was kept; its own message, if any, is above"
        )


class _End:
    """Marks the end of the items."""


_END = _End()


def _start() -> tuple[Connection, subprocess.Popen[bytes]]:
    ours, theirs = Pipe()
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "streamsft.text.worker", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=2,  # what a user's function prints must not end up in this process's output
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": path},
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    assert isinstance(ours, Connection)
    return ours, process
