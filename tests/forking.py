"""Running something in a process that is forked off."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable

__all__ = ["in_child", "without_waiting_for_disks"]


def without_waiting_for_disks() -> None:
    """Have `os.fsync` only look at its file in this process and its forks.

    It is slow, and what a process has written outlives its being killed. Only a machine that fails shows the
    difference, and no test makes one fail.
    """
    os.fsync = os.fstat  # type: ignore[assignment]


def in_child(holds: Callable[[], bool]) -> bool:
    """What `holds` returns in a forked process; False if it fails there, whose traceback is printed."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if holds() else 1
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
