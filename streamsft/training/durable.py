"""Files that are either wholly there or not at all, whenever the process or the machine dies."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

__all__ = ["publish_directory", "remove_directory", "sync_directory", "sync_tree", "write_file"]

PARTIAL = ".partial-"
"""Name prefix of whatever is being written or removed; nothing with it is ever read."""


def sync_directory(path: Path) -> None:
    """Make the names in directory `path` durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(path: Path) -> None:
    """Make every file and name below directory `path` durable."""
    for folder, _, names in os.walk(path):
        for name in names:
            handle = os.open(Path(folder) / name, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        sync_directory(Path(folder))


def write_file(path: Path, content: bytes) -> None:
    """Replace file `path` by `content` in one step: readers see the old contents or the new.

    Raises:
        OSError: as the file system says; `path` is then as it was.
    """
    partial = path.with_name(f"{PARTIAL}{path.name}")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    sync_directory(path.parent)


def publish_directory(partial: Path, path: Path) -> None:
    """Give the finished directory `partial` its name `path`, which must be free."""
    sync_tree(partial)
    partial.rename(path)
    sync_directory(path.parent)


def remove_directory(path: Path) -> None:
    """Remove directory `path`; one that dies half-way leaves nothing under the name `path`."""
    partial = path if path.name.startswith(PARTIAL) else path.with_name(f"{PARTIAL}{path.name}")
    if partial != path:
        if partial.exists():
            shutil.rmtree(partial)
        path.rename(partial)
    shutil.rmtree(partial)
