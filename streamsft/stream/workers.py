"""Worker processes: each plans every step and reads the tokens of its own ones. The one place that uses torchdata."""

from __future__ import annotations

import logging
import math
import multiprocessing
import pickle
import signal
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import cycle
from typing import Any, Literal

from torch.utils.data._utils import signal_handling
from torchdata.stateful_dataloader import StatefulDataLoader

from streamsft.errors import ConfigError, DataError
from streamsft.sources.lastread import LastRead, Where
from streamsft.stream.materialize import RawBatch
from streamsft.stream.rawsteps import RawSteps
from streamsft.stream.shipping import in_turn, keep_memory, widen
from streamsft.stream.watch import HangError, Processes, Watch, leave_to_parent
from streamsft.text.streaming import check_portable

__all__ = ["StartMethod", "check_picklable", "check_workers", "worker_batches"]

StartMethod = Literal["fork", "spawn", "forkserver"]

_log = logging.getLogger(__name__)

_REPLACED = 3  # times in a row that workers are started anew with no batch between


def worker_batches(
    steps: RawSteps,
    workers: int,
    start_method: StartMethod | None,
    prefetch: int,
    timeout: float | None = None,
) -> Iterator[RawBatch]:
    """The batches of `steps` in order, made by `workers` processes.

    `RawSteps` deals steps to the workers in turn, worker 0 first. When the one that is waited for hangs, all are
    killed, and others go on behind the last batch that was given out: a step is a function of the state before it.

    Args:
        steps: what to make.
        workers: number of processes.
        start_method: how they are started; None is Python's default on this system.
        prefetch: messages that each worker keeps ready, of a few batches each.
        timeout: seconds without a message, and without anything read, after which a worker hangs; None waits.

    Raises:
        StreamsftError: what a worker raised, where its batch would have come.
        ConfigError: a source cannot be sent to a process; names it.
        DataError: a worker died, or one hung again and again; says which, and what it read last.
    """
    step, lanes, hung = steps.step, dict(steps.lanes), 0
    while True:
        last_read = LastRead(steps.mixes.names, workers)
        try:
            for raw in _made(steps.behind(step, lanes, last_read), workers, start_method, prefetch, timeout):
                hung, step = 0, raw.documents.end.step
                lanes |= raw.documents.end.lanes
                yield raw
            return
        except HangError as hangs:
            hung += 1
            told = _told(hangs.worker, last_read, steps.where, timeout)
            if hung > _REPLACED:
                raise DataError(
                    f"{told}; so did those that took its place, {_REPLACED} times. Look at what reading there waits "
                    "for, or raise loader.timeout, then start the same command again to go on from the last checkpoint"
                ) from None
            _log.warning("%s. Its batch is made again, by other workers", told)


def _told(worker: int | None, last_read: LastRead, where: Where, timeout: float | None) -> str:
    if worker is None:
        return "the loader's workers have not started within loader.timeout and 300 s"
    return f"a loader worker hangs: {last_read.told(worker, where)}, then nothing for {timeout:g} s (loader.timeout)"


def _made(
    steps: RawSteps, workers: int, start_method: StartMethod | None, prefetch: int, timeout: float | None
) -> Iterator[RawBatch]:
    """The batches that one set of workers makes.

    Raises:
        HangError: the worker that is waited for.
    """
    assert steps.last_read is not None
    processes = Processes(start_method)
    with warnings.catch_warnings():
        # torchdata 0.11 calls what newer releases of torch deprecate
        warnings.filterwarnings("ignore", message=".*set_vital.*")
        loader = StatefulDataLoader(
            steps,
            batch_size=None,
            num_workers=workers,
            prefetch_factor=prefetch,
            worker_init_fn=_begin,
            multiprocessing_context=processes.context,
            snapshot_every_n_steps=None,
        )
    try:
        with Watch(timeout, processes, steps.last_read) as watch:
            for data in in_turn(_received(_started(loader, steps, watch), steps, workers, watch), workers):
                yield RawBatch.from_bytes(data, steps.mixes)
    finally:
        del loader  # so workers end by themselves, save those that hang
        processes.kill()


def _begin(worker: int) -> None:
    """What a worker does before it says that it has started."""
    leave_to_parent()


def _started(loader: StatefulDataLoader[bytes], steps: RawSteps, watch: Watch) -> Iterator[bytes]:
    try:
        with _own_child_handler(), watch.waiting(None):
            batches: Iterator[bytes] = iter(loader)
    except _PICKLING:
        for leaf in steps.mixes.leaves:
            if leaf.streams:
                check_portable(leaf.streamed)
        check_picklable("source", {leaf.name: leaf.source for leaf in steps.mixes.leaves})
        raise
    _unknown_to_torch(batches)
    widen(batches)
    keep_memory()
    return batches


def _unknown_to_torch(batches: Any) -> None:
    """Let torch's handler of SIGCHLD, which another loader of this process may have set, not raise for these workers.

    Who waits for one that is dead is told anyway, within five seconds.
    """
    if getattr(batches, "_worker_pids_set", False):
        forget: Any = signal_handling
        forget._remove_worker_pids(id(batches))
        batches._worker_pids_set = False


def _received(messages: Iterator[bytes], steps: RawSteps, workers: int, watch: Watch) -> Iterator[bytes]:
    """What the workers send in turn, until they have all ended."""
    assert steps.last_read is not None
    for worker in cycle(range(workers)):
        try:
            with watch.waiting(worker):
                message = next(messages, None)
        except RuntimeError as error:
            if "DataLoader worker (pid" not in str(error):  # what a worker raised says "worker process"
                raise
            raise DataError(
                f"a loader worker died: {steps.last_read.dead(str(error), steps.where)} ({error}). Often the system "
                "stopped it for want of memory: lower loader.workers, then start the same command again to go on from "
                "the last checkpoint"
            ) from error
        if message is None:
            return
        yield message


@contextmanager
def _own_child_handler() -> Iterator[None]:
    """Keep the handler of SIGCHLD that there is.

    torch sets one that raises wherever the main thread is when a worker dies, be it between a rank's collectives or in
    the middle of a checkpoint. Without it, torch finds within five seconds that the worker it waits for is dead.
    """
    if threading.current_thread() is not threading.main_thread():  # where none can be set
        yield
        return
    before = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL if before is None else before)


_PICKLING = (pickle.PicklingError, AttributeError, TypeError)  # what pickle raises for what it cannot write


def check_picklable(what: str, values: Mapping[str, Any]) -> None:
    """Refuse what no spawned process could be given.

    Raises:
        ConfigError: one of `values` cannot be pickled; names it.
    """
    for name, value in values.items():
        try:
            pickle.dumps(value)
        except _PICKLING as error:
            raise ConfigError(
                f"{what} {name!r} cannot be sent to loader workers ({error}); use functions and classes defined at the "
                "top of a module, open files and locks only where they are used, or set loader.workers to 0"
            ) from error


def check_workers(workers: int, start_method: str | None, prefetch: int = 1, timeout: float | None = None) -> None:
    """Refuse settings that no worker could be started with.

    Raises:
        ConfigError: `workers` is negative, `start_method` is unknown on this system, `prefetch` below 1, or `timeout`
            no positive number.
    """
    if timeout is not None and not 0 < timeout < math.inf:
        raise ConfigError(f"loader.timeout: {timeout!r} is not a number of seconds > 0")
    if not isinstance(prefetch, int) or prefetch < 1:
        raise ConfigError(f"loader.prefetch: {prefetch!r} is not a number of batches >= 1")
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 0:
        raise ConfigError(f"loader.workers: {workers!r} is not a number of processes >= 0")
    methods = multiprocessing.get_all_start_methods()
    if start_method is not None and start_method not in methods:
        raise ConfigError(f"loader.start_method: {start_method!r} is none of {', '.join(methods)}")
