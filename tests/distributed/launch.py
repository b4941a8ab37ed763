"""Runs a function on N ranks: real processes that form a gloo process group."""

from __future__ import annotations

import os
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

from streamsft.comm import Comm, TorchComm, disconnect
from tests.processes import context

__all__ = ["launch"]

T = TypeVar("T")


def launch(size: int, function: Callable[..., T], *args: Any, timeout: float = 120.0) -> list[T]:
    """Call `function(comm, *args)` in `size` processes of one gloo group.

    The function, its arguments and its results must be picklable; the function is one of a module. When a rank
    fails, the others, which may be waiting for it, are ended.

    Returns:
        The results in rank order.

    Raises:
        TimeoutError: not all ranks were done within `timeout` seconds; says which.
        RuntimeError: a process died without a word; says which and its exit code.
        Exception: what the first rank to fail raised, with its traceback as a note.
    """
    with tempfile.TemporaryDirectory(prefix="streamsft-ranks-") as folder:
        processes: list[BaseProcess] = []
        pipes: list[Connection] = []
        try:
            for rank in range(size):
                receiver, sender = context().Pipe(duplex=False)
                process = context().Process(
                    target=_rank, args=(rank, size, Path(folder, "meet"), timeout, sender, function, args)
                )
                process.start()
                sender.close()
                processes.append(process)
                pipes.append(receiver)
            return _collect(processes, pipes, timeout)
        finally:
            for started in processes:
                started.kill()
                started.join()


def _collect(processes: list[BaseProcess], pipes: list[Connection], timeout: float) -> list[Any]:
    results: dict[int, Any] = {}
    deadline = time.monotonic() + timeout
    while len(results) < len(pipes):
        waiting = {pipe: rank for rank, pipe in enumerate(pipes) if rank not in results}
        ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError(f"ranks {sorted(waiting.values())} were not done within {timeout:.0f} s")
        for pipe in ready:
            assert isinstance(pipe, Connection)
            rank = waiting[pipe]
            try:
                error, trace, result = pipe.recv()
            except EOFError:
                processes[rank].join(60)
                raise RuntimeError(f"rank {rank} ended with exit code {processes[rank].exitcode}") from None
            if error is not None:
                error.add_note(f"on rank {rank}:\n{trace}")
                raise error
            results[rank] = result
    return [results[rank] for rank in range(len(pipes))]


def _rank(
    rank: int,
    size: int,
    meet: Path,
    timeout: float,
    sender: Connection,
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo", init_method=meet.as_uri(), rank=rank, world_size=size, timeout=timedelta(seconds=timeout)
        )
        comm: Comm = TorchComm()
        result = function(comm, *args)
        comm.barrier()  # nobody leaves while another rank still reads from it
    except BaseException as error:  # sent to the caller, who raises it
        sender.send((error, traceback.format_exc(), None))
        return
    sender.send((None, "", result))
    disconnect()
