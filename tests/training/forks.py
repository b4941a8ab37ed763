"""Runs in forked processes, which may be killed at any access to the file system."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

__all__ = ["in_fork", "in_ranks"]

_CHANGES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "open")


def in_fork(function: Callable[[], object], *, below: Path | None = None, kill_at: int | None = None) -> int:
    """Call `function` in a fork of this process and return its exit status: 0, or -9 if it was killed.

    Args:
        below: a directory.
        kill_at: number, from 1, of the file operation below that directory at which the process is killed with
            SIGKILL, before it takes effect.
    """
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        torch.set_num_threads(1)  # the threads of the parent are not here
        if below is not None and kill_at is not None:
            _kill_at(kill_at, str(below))
        function()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def in_ranks(
    size: int, function: Callable[[], object], *, below: Path | None = None, kill_at: int | None = None
) -> list[int]:
    """Call `function` in `size` forks of this process, the ranks of one gloo group, and return their exit statuses.

    Rank 0 may be killed as in `in_fork`.
    """
    with tempfile.TemporaryDirectory(prefix="streamsft-ranks-") as folder:
        meet = Path(folder, "meet")
        pids = []
        for rank in range(size):
            pids.append(os.fork())
            if not pids[-1]:
                if rank == 0 and below is not None and kill_at is not None:
                    _kill_at(kill_at, str(below))
                _be_rank(rank, size, meet, function)
        return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def _be_rank(rank: int, size: int, meet: Path, function: Callable[[], object]) -> NoReturn:
    try:
        torch.set_num_threads(1)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", init_method=meet.as_uri(), rank=rank, world_size=size)
        function()
        dist.barrier()  # nobody leaves while another rank still reads from it
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _kill_at(number: int, prefix: str) -> None:
    left = number

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if event in _CHANGES and arguments and str(arguments[0]).startswith(prefix):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
