"""Running something in a process that is forked off."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable

__all__ = ["in_child"]


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
