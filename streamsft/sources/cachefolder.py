"""Where things are kept that can be made again."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["default_cache_dir"]


def default_cache_dir() -> Path:
    """``$STREAMSFT_CACHE``, or ``streamsft`` in the user's cache folder."""
    if chosen := os.environ.get("STREAMSFT_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "streamsft"
