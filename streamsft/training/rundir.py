"""The directory of a run: who may use it, what it belongs to, and where it goes on from.

::

    run.json              format version, the fingerprint of the run's stream, and the edits of its mix so far
    lock                  held while a run is in progress
    checkpoints/          see `streamsft.training.checkpoint`
    audit/rank-<r>.jsonl  see `streamsft.training.audit`
    legs.jsonl            when the run was begun and gone on with, behind which step, on how many ranks
    metrics.jsonl         and whatever else the sinks write
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, final

from streamsft.errors import RunError
from streamsft.refusals import way_out
from streamsft.training.checkpoint import Checkpoints
from streamsft.training.comparing import former_mix, is_edited, run_record
from streamsft.training.durable import why_unwritten, write_file
from streamsft.training.edits import describe_edit, edit_record
from streamsft.training.stored import StoredCheckpoint

__all__ = ["RunDirectory", "check_free"]

_log = logging.getLogger(__name__)

_VERSION = 1
_LOCK_WAIT_S = 20.0
"""A killed run's processes may take a moment to go; the lock is waited for this long."""
_TELL_S = 1.0
_TRACES = ("run.json", "checkpoints", "audit", "metrics.jsonl")
_UNLOCKABLE = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


@final
class RunDirectory:
    """One run's directory, locked against a second run until `close`. Made on rank 0 alone.

    Args:
        path: the directory; it and its parents are made.
        fresh: move an earlier run's directory aside, to the first free of ``<path>.1``, ``<path>.2``, …

    Raises:
        RunError: another process is using the directory, or it cannot be made or moved.
    """

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        self.path = path
        self.moved_to: Path | None = None
        with _reported(path):
            path.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(path)
            if fresh and any((path / name).exists() for name in _TRACES):
                self._move_aside()

    def _move_aside(self) -> None:
        number = 1
        while (aside := self.path.with_name(f"{self.path.name}.{number}")).exists():
            number += 1
        self.path.rename(aside)
        self._lock.close()
        self.path.mkdir()
        self._lock = _locked(self.path)
        self.moved_to = aside
        _log.info("moved the earlier run in %s to %s", self.path, aside)

    def begin(
        self,
        fingerprint: Mapping[str, Any],
        *,
        keep: int,
        accept_changes: bool = False,
        mix: Mapping[str, Any] | None = None,
    ) -> StoredCheckpoint | None:
        """Return the checkpoint to go on from, None for step 0, and mark the run as begun.

        Args:
            fingerprint: JSON object of what defines the stream (`Loader.fingerprint`).
            keep: how many checkpoints are kept.
            accept_changes: take another mix from here on, and note the change.
            mix: the mix as the config has it, for messages.

        Raises:
            RunError: the directory holds a run of another stream, or cannot be read or written.
        """
        try:
            return self._begin(fingerprint, keep, accept_changes, mix or {})
        except OSError as error:
            why = why_unwritten(error, self.path)
            fix = way_out(why, "choose another train.run_dir")
            raise RunError(f"run directory {self.path}: {why}; {fix}") from error

    def _begin(
        self, fingerprint: Mapping[str, Any], keep: int, accept_changes: bool, mix: Mapping[str, Any]
    ) -> StoredCheckpoint | None:
        fingerprint = json.loads(json.dumps(fingerprint))
        checkpoints = Checkpoints(self.path)
        stored = checkpoints.newest()
        record = run_record(self.path)
        theirs = stored.fingerprint if stored is not None else record.get("fingerprint") if record else None
        mixes = (former_mix(self.path, stored), mix)
        edited = theirs is not None and is_edited(
            self.path, theirs, fingerprint, mixes=mixes, accept_changes=accept_changes
        )
        step = stored.step if stored is not None else 0
        checkpoints.clean(after=step, keep=keep)
        if record is None and stored is None:
            self._refuse_unmarked()
        edits = [edit for edit in (record or {}).get("edits", ()) if edit["step"] < step]  # the others are undone
        if edited:
            assert theirs is not None
            edits.append(edit_record(step, theirs, fingerprint))
            _log.info("%s", describe_edit(edits[-1]))
        self._write_record(
            record, {"version": _VERSION, "fingerprint": fingerprint, **({"edits": edits} if edits else {})}
        )
        return stored

    def _write_record(self, old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> None:
        if new != old:
            write_file(self.path / "run.json", json.dumps(new, indent=1).encode())

    def close(self) -> None:
        """Let go of the directory."""
        self._lock.close()

    def _refuse_unmarked(self) -> None:
        """Refuse files that would be rewound although no run of ours wrote them: ours begins with its `run.json`."""
        found = [name for name in ("metrics.jsonl", "audit") if (self.path / name).exists()]
        if any((self.path / name).stat().st_size for name in found):
            raise RunError(
                f"run directory {self.path} has {' and '.join(found)}, but no run.json: it is not a run that can be "
                "gone on with; choose another train.run_dir, or move it aside with --fresh"
            )


def check_free(path: Path) -> None:
    """See that a run could use the directory `path`, leaving nothing behind.

    Raises:
        RunError: another process is using it, or it cannot be made or written to.
    """
    if (path / "lock").exists():
        with _reported(path):
            _locked(path).close()
    place = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not place.is_dir():
        raise RunError(f"run directory {path}: {place} is a file; choose another train.run_dir")
    if not os.access(place, os.W_OK | os.X_OK):
        raise RunError(f"run directory {path}: {place} cannot be written to; choose another train.run_dir")


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(f"run directory {path}: {error.strerror or error}; choose another train.run_dir") from error


def _locked(path: Path) -> IO[bytes]:
    """Return the locked lock file of `path`. The lock is the process's own: forked workers do not keep it."""
    file = (path / "lock").open("ab")
    start = time.monotonic()
    told = False
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except OSError as error:
            if error.errno in _UNLOCKABLE:
                _log.warning("the file system of %s has no locks; make sure that only one run uses it", path)
                return file
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                file.close()
                raise
        waited = time.monotonic() - start
        if waited > _LOCK_WAIT_S:
            file.close()
            raise RunError(f"run directory {path} is in use by another process; wait for it, or end it")
        if waited > _TELL_S and not told:
            told = True
            _log.info("waiting up to %.0f s for another process to let go of %s", _LOCK_WAIT_S, path)
        time.sleep(0.05)
