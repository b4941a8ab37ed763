"""Work done by actors of a Ray cluster: each holds the job, with its tokenizer, and works on one item at a time.

Items and results travel through Ray's object store, so the machines of the cluster need the package, not the files.
An actor that is lost is replaced, and the items that it had are done again; the results are the same, in order.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any, Final, TypeVar, final

from streamsft.engine import QUIET_SECONDS, Engine, Job, place_of
from streamsft.errors import ConfigError, DataError
from streamsft.ray_connecting import Lifeline, connect
from streamsft.ray_worker import Worker, check_versions

__all__ = ["RayEngine"]

_AHEAD: Final = 4  # items per actor that are in work or wait for an earlier one
_AT_ONCE: Final = 2  # of these, the most that one actor is sent, so that it need not wait for the next
_TRIES: Final = 4
_WAIT_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 5.0

logger = logging.getLogger("streamsft")

Item = TypeVar("Item")
Result = TypeVar("Result")


@final
class RayEngine(Engine):
    """Does jobs on a Ray cluster, which is connected to when there is something to do.

    A cluster that this process is connected to already is used, and left as it is.

    Args:
        address: of a running cluster (``auto``, ``host:port``, ``ray://host:port``); by default one is started on this
            machine, and ended by `close`.
        workers: actors, each of which takes one core; by default as many as the cluster has cores.

    Raises:
        ConfigError: Ray is not installed, or `workers` is below 1; from `map`, the cluster cannot be reached.
    """

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        super().__init__()
        if workers is not None and workers < 1:
            raise ConfigError(f"processes: {workers}; give 1 or more, or leave it out")
        if find_spec("ray") is None:
            raise ConfigError("engine ray: Ray is not installed: pip install 'streamsft[ray]'")
        self._address = address
        self._workers = workers
        self._ray: Any = None
        self._ours = False
        self._lifeline: Lifeline | None = None
        self._idle: list[Any] = []  # actors of the last job, ready for the next one

    def _map(self, job: Job[Item, Result], items: Iterator[Item], *, what: str) -> Iterator[tuple[Item, Result]]:
        first = next(items, _END)
        if first is _END:
            return
        ray = self._connected()
        count = self._workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        assert self._lifeline is not None
        self._lifeline.check(what)
        pool = _Pool(ray, job, count, self._idle, self._lifeline, what=what)
        self._idle = []
        try:
            yield from pool.map(first, items)
            self._idle = pool.release()
        finally:
            pool.close()

    def _connected(self) -> Any:
        if self._ray is None:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            import ray

            if not ray.is_initialized():
                connect(ray, self._address, self._workers)
                self._ours = True
            self._ray, self._lifeline = ray, Lifeline(ray)
        return self._ray

    def close(self) -> None:
        """Leave the cluster; one that was started for this engine ends."""
        for actor in self._idle:
            self._ray.kill(actor)
        self._idle = []
        if self._ours:
            self._ray.shutdown()
        self._ray, self._ours = None, False


_END: Any = object()


@final
class _Pool:
    """Actors with one job, and what they are doing.

    An actor is given items once it has said that it is ready. A lost one is replaced by another.
    """

    def __init__(
        self, ray: Any, job: Job[Any, Any], count: int, idle: Iterable[Any], lifeline: Lifeline, *, what: str
    ) -> None:
        self._ray = ray
        self._lifeline = lifeline
        self._what = what
        self._count = count
        self._class = ray.remote(num_cpus=1, max_restarts=0)(Worker)
        try:
            self._job = ray.put(job)
        except TypeError as error:
            raise ConfigError(
                f"{what}: cannot be sent to workers: {error}. A transform must not hold open files, locks and the like"
            ) from error
        self._actors: dict[Any, set[int]] = {}  # actor → numbers of the items that it has
        self._pending: dict[Any, tuple[Any, int | None]] = {}  # what will be there → actor, and number of its item
        self._failed = 0
        self._quiet = 0.0  # seconds since anything was heard
        self._last: Exception | None = None
        for actor in idle:
            self._give(actor)
        for _ in range(count - len(self._pending)):
            self._begin()

    def map(self, first: Any, items: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
        """Each item with its result, in order."""
        waiting: dict[int, Any] = {0: first}
        queue: deque[int] = deque([0])
        done: dict[int, Any] = {}
        tries: dict[int, int] = {}
        taken, given, exhausted = 1, 0, False
        while waiting or not exhausted:  # all that was sent may come back at once
            while not exhausted and taken - given < _AHEAD * self._count:
                item = next(items, _END)
                if item is _END:
                    exhausted = True
                    break
                waiting[taken] = item
                queue.append(taken)
                taken += 1
            if not waiting:
                return
            self._send(queue, waiting)
            for number, value in self._arrived(waiting):
                if value is _END:
                    queue.appendleft(number)
                    tries[number] = tries.get(number, 1) + 1
                    self._check_tries(tries[number], waiting[number])
                else:
                    done[number] = value
            while given in done:
                yield waiting.pop(given), done.pop(given)
                tries.pop(given, None)
                given += 1

    def _send(self, queue: deque[int], items: dict[int, Any]) -> None:
        while queue and self._actors:
            actor = min(self._actors, key=lambda each: len(self._actors[each]))
            if len(self._actors[actor]) >= _AT_ONCE:
                return
            number = queue.popleft()
            self._pending[actor.run.remote(items[number])] = actor, number
            self._actors[actor].add(number)

    def _arrived(self, items: Mapping[int, Any]) -> Iterator[tuple[int, Any]]:
        """Wait for something, for an item may take as long as it takes; numbers of items with their results, or
        with `_END` where they have to be done again.

        Raises:
            StreamsftError: a job failed.
            ConfigError: actors do not start, or are of other versions.
            DataError: the cluster has ended.
        """
        ready = self._wait()
        if not ready and not self._actors:
            logger.warning("%s: still waiting for a free core of the Ray cluster", self._what)
        self._quiet = 0.0 if ready else self._quiet + _WAIT_SECONDS
        held = [number for _, number in self._pending.values() if number is not None]
        if self._quiet >= QUIET_SECONDS and held:
            self._quiet = 0.0
            logger.warning(
                "%s: no worker on the Ray cluster has finished an item for %g s%s; see what holds them up there",
                self._what, QUIET_SECONDS, place_of(items[min(held)]),
            )  # fmt: skip
        more, _ = self._ray.wait(list(self._pending), num_returns=len(self._pending), timeout=0) if ready else ([], [])
        for reference in more:
            actor, number = self._pending.pop(reference)
            try:
                value = self._ray.get(reference)
            except self._ray.exceptions.RayError as error:
                self._lost(actor, number, error)
                if number is not None:
                    yield number, _END
                continue
            if number is None:
                check_versions(value)
                self._actors[actor] = set()
                continue
            self._failed = 0
            if actor in self._actors:
                self._actors[actor].discard(number)
            succeeded, result = value
            if not succeeded:
                raise result
            yield number, result

    def _wait(self) -> list[Any]:
        """Something that has arrived, or nothing after `_WAIT_SECONDS`."""
        end = time.monotonic() + _WAIT_SECONDS
        while True:
            self._lifeline.check(self._what)
            left = end - time.monotonic()
            ready: list[Any]
            ready, _ = self._ray.wait(list(self._pending), timeout=max(0.0, min(left, _LOOK_SECONDS)))
            if ready or left <= _LOOK_SECONDS:
                return ready

    def _lost(self, actor: Any, number: int | None, error: Exception) -> None:
        """Replace an actor that is gone."""
        self._last = error
        line = str(error).partition("\n")[0]
        if number is None or actor in self._actors:
            self._ray.kill(actor)  # where it is a job or a result that was lost
        if number is None:
            self._failed += 1
            if self._failed >= _TRIES:
                raise ConfigError(
                    f"{self._what}: the workers on the Ray cluster do not start; each of its machines needs the same "
                    f"versions of streamsft and of the tokenizer's packages as this one, and room in memory: {error}"
                ) from error
            logger.warning("%s: a worker on the Ray cluster did not start, another will: %s", self._what, line)
            self._begin()
        elif actor in self._actors:
            held = len(self._actors.pop(actor))
            logger.warning(
                "%s: a worker on the Ray cluster was lost; %d of its items are done again: %s",
                self._what, held, line,
            )  # fmt: skip
            self._begin()

    def _begin(self) -> None:
        self._give(self._class.remote())

    def _give(self, actor: Any) -> None:
        self._pending[actor.take.remote(self._job)] = actor, None

    def _check_tries(self, tries: int, item: Any) -> None:
        if tries > _TRIES:
            raise DataError(
                f"{self._what}: the same item was lost with {_TRIES} workers of the Ray cluster{place_of(item)}; what "
                f"is in it takes more memory than they have, or brings them down: {self._last}"
            ) from self._last

    def release(self) -> list[Any]:
        """The actors that are ready for another job; they are no longer this pool's."""
        free = list(self._actors)
        self._actors.clear()
        return free

    def close(self) -> None:
        """End the actors."""
        if self._ray.is_initialized():  # else they have ended with the engine, and Ray would start a cluster anew
            for actor in [*self._actors, *(actor for actor, number in self._pending.values() if number is None)]:
                self._ray.kill(actor)
        self._actors.clear()
        self._pending.clear()
