"""What to do where the system has refused to write."""

from __future__ import annotations

import errno
import os
from typing import Final

__all__ = ["way_out"]

_FULL: Final = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))


def way_out(why: str | OSError, otherwise: str) -> str:
    """What to do about a file that could not be written: free some space on a full disk, else `otherwise`.

    Args:
        why: the error, or what the system said.
        otherwise: what to do where there is space.
    """
    return "free some space" if any(reason in str(why) for reason in _FULL) else otherwise
