"""Files that are either wholly there or not at all, whenever the process or the machine dies."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

__all__ = ["publish_directory", "remove_directory", "sync_directory", "sync_tree", "why_unwritten", "write_file"]

PARTIAL = ".partial-"
"""Name prefix of whatever is being written or removed; nothing with it is ever read."""

_OS_ERROR = re.compile(r"os error (\d+)")  # as libraries written in Rust put an errno
_FULL_BYTES = 1 << 20


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


def why_unwritten(error: BaseException, folder: Path) -> str:
    """Why a file below `folder` could not be written, with the space that is left there.

    torch's writer says of a full disk only at which byte it stood, and safetensors has an error class of its own: what
    the system said is looked for in what they raise, and else seen from the space that is left.
    """
    reason = _system_error(error)
    place = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    free = shutil.disk_usage(place).free
    if reason is None and isinstance(error, RuntimeError):
        reason = "No space left on device" if free < _FULL_BYTES else "the file system took no more bytes"
    if reason is None:
        return f"{type(error).__name__}: {error}"
    return f"{reason} ({free / 1e6:,.1f} MB are free on {place})"


def _system_error(error: BaseException) -> str | None:
    """What the system said, by the first error of it in the chain of causes."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno is not None:
            return os.strerror(seen.errno)
        if found := _OS_ERROR.search(str(seen)):
            return os.strerror(int(found[1]))
        seen = seen.__cause__ or seen.__context__
    return None
