"""How all ranks come to agree on where a run goes on from."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from streamsft.comm import Comm, agreeing, gather_json
from streamsft.errors import RunError
from streamsft.metrics.jsonlines import JsonLines
from streamsft.refusals import way_out
from streamsft.training.checkpoint import Checkpoints
from streamsft.training.durable import write_file
from streamsft.training.rundir import RunDirectory
from streamsft.training.settings import TrainSettings
from streamsft.training.stored import StoredCheckpoint

__all__ = ["LEGS_FILE", "Start", "opened"]

LEGS_FILE = "legs.jsonl"
"""A line for each time that the run was begun or gone on with: behind which step, when, on how many ranks."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where a run goes on from.

    Attributes:
        stored: the checkpoint; None for step 0.
        moved_to: where an earlier run was moved.
    """

    stored: StoredCheckpoint | None
    moved_to: Path | None

    @property
    def step(self) -> int:
        """The last step that is already made."""
        return 0 if self.stored is None else self.stored.step


@contextmanager
def opened(
    settings: TrainSettings,
    fingerprint: Mapping[str, Any],
    *,
    config_record: Mapping[str, Any] | None,
    fresh: bool,
    accept_changes: bool,
    comm: Comm,
    mix: Mapping[str, Any] | None = None,
) -> Iterator[Start]:
    """Hold the run directory while the context lasts; collective.

    Rank 0 locks the directory, decides, and tells the others, which must see the same file system.

    Raises:
        RunError: on all ranks; see `RunDirectory`. Also when the ranks' data differ.
    """
    _check_same(fingerprint, comm)
    run_dir = settings.run_dir
    directory: RunDirectory | None = None
    plan: dict[str, str | None] = {}
    try:
        with agreeing(comm):
            if comm.rank == 0:
                directory = RunDirectory(run_dir, fresh=fresh)
                newest = Checkpoints(run_dir).newest()
                plan["checkpoint"] = newest.path.name if newest is not None else None
        _check_content(run_dir, gather_json(comm, plan)[0]["checkpoint"], comm)
        with agreeing(comm):
            if directory is not None:
                stored = directory.begin(fingerprint, keep=settings.keep, accept_changes=accept_changes, mix=mix)
                if config_record is not None:
                    _write_config(run_dir, config_record)
                step = stored.step if stored is not None else 0
                if stored is None or step < settings.steps:  # else nothing is gone on with
                    _note_leg(run_dir, step=step, ranks=comm.size)
                plan["checkpoint"] = stored.path.name if stored is not None else None
                plan["moved_to"] = str(directory.moved_to) if directory.moved_to is not None else None
        plan = gather_json(comm, plan)[0]
        name, moved_to = plan["checkpoint"], plan["moved_to"]
        with agreeing(comm):
            stored = Checkpoints(run_dir).read(name) if name is not None else None
        yield Start(stored=stored, moved_to=Path(moved_to) if moved_to is not None else None)
    finally:
        if directory is not None:
            directory.close()


def _check_content(run_dir: Path, name: str | None, comm: Comm) -> None:
    """See that the checkpoint `name` holds what was written, before anything is removed; each rank reads a part of it.

    Raises:
        RunError: on all ranks; it does not.
    """
    with agreeing(comm):
        if name is not None:
            Checkpoints(run_dir).read(name).check_content(comm.rank, comm.size)


def _write_config(run_dir: Path, config_record: Mapping[str, Any]) -> None:
    try:
        write_file(run_dir / "config.json", json.dumps(dict(config_record), indent=1).encode())
    except OSError as error:
        raise _unwritten(run_dir / "config.json", error) from error


def _note_leg(run_dir: Path, *, step: int, ranks: int) -> None:
    """Note that the run begins or goes on behind `step`; legs that began later are undone."""
    legs = JsonLines(run_dir / LEGS_FILE)
    try:
        legs.rewind(step)
        legs.append({"step": step, "time": time.time(), "ranks": ranks})
        legs.close()
    except OSError as error:
        raise _unwritten(run_dir / LEGS_FILE, error) from error


def _unwritten(path: Path, error: OSError) -> RunError:
    fix = way_out(error, "see that train.run_dir can be written to")
    return RunError(f"{path} cannot be written: {error.strerror}; {fix}, then run again")


def _check_same(fingerprint: Mapping[str, Any], comm: Comm) -> None:
    """Refuse ranks that would read different data."""
    text = json.dumps(fingerprint, sort_keys=True).encode()
    digests = gather_json(comm, hashlib.blake2b(text, digest_size=16).hexdigest())
    others = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if others:
        raise RunError(
            f"ranks {', '.join(map(str, others))} have another stream than rank 0: the config or the data differ "
            "between machines; give all ranks the same files"
        )
