"""Directories that appear whole or not at all: written beside their place, then renamed."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import socket
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import final

__all__ = [
    "DigestFile",
    "clean_up_after_the_dead",
    "fsync_directory",
    "fsync_file",
    "is_abandoned",
    "remove",
    "temporary_name",
    "try_rename",
]

_STALE_SECONDS = 24 * 3600.0


@final
class DigestFile:
    """A binary file being written, with its size and blake2b digest kept along the way.

    Offers what pyarrow asks of a Python file that it writes to.
    """

    def __init__(self, path: Path) -> None:
        self.size = 0
        self._path = path
        self._digest = hashlib.blake2b(digest_size=16)
        self._fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0), 0o666)

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._fd < 0

    def write(self, data: bytes | memoryview) -> int:
        """Write all of `data`; raises OSError as the system does."""
        view = memoryview(data).cast("B")
        self._digest.update(view)
        done = 0
        while done < len(view):
            done += os.write(self._fd, view[done:])
        self.size += done
        return done

    def write_all(self, pieces: Iterable[bytes]) -> None:
        """Write `pieces` one after another."""
        for piece in pieces:
            self.write(piece)

    def tell(self) -> int:
        """Bytes written so far."""
        return self.size

    def flush(self) -> None:
        """Nothing is buffered here."""

    def finish(self) -> tuple[int, str]:
        """Bring everything to the disk and close; returns size and digest."""
        os.fsync(self._fd)
        self.close()
        return self.size, self._digest.hexdigest()

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def _host() -> str:
    """Identifies this machine and process namespace, so that a process number means one process."""
    parts = [socket.gethostname()]
    for source in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        try:
            parts.append(os.readlink(source) if source.endswith("pid") else Path(source).read_text())
        except OSError:
            parts.append("")  # not Linux: the host name alone has to do
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=5).hexdigest()


def temporary_name(path: Path) -> Path:
    """A name beside `path`, unique over processes and machines, that tells who is writing."""
    return path.parent / f".{path.name}.tmp-{_host()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def clean_up_after_the_dead(path: Path) -> None:
    """Remove what killed writers of `path` have left beside it; see `is_abandoned`."""
    for place in path.parent.glob(f".{_escape(path.name)}.tmp-*"):
        if is_abandoned(place):
            remove(place)


def is_abandoned(place: Path) -> bool:
    """Whether `place` has a temporary name whose writer was killed.

    That is so at once if the writer was a process of this machine, and if it was one of another machine when nothing
    in `place` has changed for a day.
    """
    owner, _, pid = place.name.rpartition(".tmp-")[2].rpartition("-")[0].partition("-")
    if not pid.isdigit():
        return False
    return not _alive(int(pid)) if owner == _host() else _untouched_for(place) > _STALE_SECONDS


def _escape(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _untouched_for(place: Path) -> float:
    """Seconds since the last change of `place` or of a file in it; 0 if it is just going away."""
    try:
        newest = max(p.stat().st_mtime for p in (place, *place.iterdir())) if place.is_dir() else place.stat().st_mtime
    except FileNotFoundError:
        return 0.0
    return time.time() - newest


def remove(place: Path) -> None:
    """Remove a file or a directory tree; one that another process is removing too is fine."""
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place, ignore_errors=True)
    else:
        with contextlib.suppress(NotADirectoryError):  # nor can there be anything below a file
            place.unlink(missing_ok=True)


def fsync_directory(path: Path) -> None:
    """Bring the names in the directory `path` to the disk, where the file system knows how.

    Where it does not, a power cut may undo a rename, which leaves a temporary name and no half of anything.
    """
    with contextlib.suppress(OSError):
        fsync_file(path)


def fsync_file(path: Path) -> None:
    """Bring what was written to `path` to the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def try_rename(source: Path, target: Path) -> bool:
    """Rename the directory `source` to `target`; False if there is something at `target` already."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            return False
        raise
    fsync_directory(target.parent)
    return True
