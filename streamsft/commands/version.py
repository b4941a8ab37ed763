"""``streamsft version``: the versions that matter in a bug report, read without importing anything."""

from __future__ import annotations

import platform
from importlib import metadata

__all__ = ["versions"]

_PACKAGES = ("streamsft", "torch", "torchdata", "datasets", "transformers", "tokenizers", "pyarrow", "numpy")


def versions() -> dict[str, str]:
    """Name → version of streamsft, of what it builds on, and of Python."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "(not installed)"
    return {**found, "python": platform.python_version()}
