"""`WandbSink`: records as a run of Weights & Biases."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from streamsft.metrics.tracking import DEFAULT_PROJECT, Given, TrackedRun, need
from streamsft.metrics.wandb_files import last_step

if TYPE_CHECKING:
    from wandb.sdk.wandb_run import Run

__all__ = ["WandbSink"]

_WRITTEN_SECONDS = 60.0  # how long W&B's service may take to write what it has taken


@final
class WandbSink:
    """Numbers as a run of Weights & Biases, which a resumed run goes on with.

    Where it runs, and as whom, is what wandb's environment variables say (``WANDB_MODE=offline``, ``WANDB_ENTITY``, …).
    Steps that it holds already are not given again; those before that it lacks, because its service was killed with the
    run before it had written them, are given first. What it holds its files say while it is offline, else the server.
    The run is begun with the first record.

    Args:
        run_dir: the run's directory; wandb's files are put there too.
        project: the project; by default ``WANDB_PROJECT``, or ``streamsft``.
        config: what the run was configured with.

    Raises:
        ConfigError: the package ``wandb`` is not installed.
    """

    def __init__(self, run_dir: Path, *, project: str | None = None, config: Mapping[str, Any] | None = None) -> None:
        need("wandb", "wandb")
        self._run_dir = run_dir
        self._project = project or os.environ.get("WANDB_PROJECT") or DEFAULT_PROJECT
        self._config = dict(config or {})
        self._tracked: TrackedRun | None = None
        self._run: Run | None = None
        self._last = 0  # the step given last

    def write(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        run, tracked = self._begun()
        self._give(run, tracked.due(step, time, metrics))

    def _give(self, run: Run, records: Iterable[Given]) -> None:
        for one in records:  # committed, or W&B keeps it until there is another step
            run.log({**one.metrics, "_timestamp": one.time}, step=one.step, commit=True)
            self._last = one.step

    def rewind(self, step: int) -> None:
        """What the run holds stays; what its files lack up to `step` is given now, as no more records may come."""
        note = self._note()
        in_files = None if note.id is None else self._in_files(note.id)
        if in_files is not None and in_files < min(step, note.step):
            run, tracked = self._begun()
            self._give(run, tracked.owed(step + 1))

    def close(self) -> None:
        if self._run is not None:
            name, offline = self._run.id, self._run.offline
            self._run.finish()
            self._run = None
            if offline:
                self._wait_until_written(name)

    def _wait_until_written(self, run: str) -> None:
        """A next leg would give again what is not written yet: `finish` may return before W&B's service has done so."""
        deadline = time.monotonic() + _WRITTEN_SECONDS
        while (self._in_files(run) or 0) < self._last:
            if time.monotonic() > deadline:
                raise OSError(f"Weights & Biases has not written step {self._last} within {_WRITTEN_SECONDS:g} s")
            time.sleep(0.05)

    def _begun(self) -> tuple[Run, TrackedRun]:
        if self._run is None or self._tracked is None:
            import wandb

            tracked = self._note()
            tracked.id = tracked.id or uuid.uuid4().hex[:12]
            in_files = self._in_files(tracked.id)
            self._run_dir.mkdir(parents=True, exist_ok=True)
            self._run = wandb.init(
                project=self._project,
                id=tracked.id,
                name=self._run_dir.resolve().name,
                dir=str(self._run_dir),
                config=self._config,
                resume="allow",
                allow_val_change=True,
                settings=wandb.Settings(console="off", login_timeout=30),
            )
            at_server = self._run.starting_step - 1 if self._run.resumed else 0
            tracked.found(in_files if self._run.offline else at_server)
            self._tracked = tracked
        return self._run, self._tracked

    def _note(self) -> TrackedRun:
        return TrackedRun(self._run_dir / "trackers" / "wandb.json")

    def _in_files(self, run: str) -> int | None:
        """The last step in W&B's files of earlier legs; None where they are not here any more."""
        found = [last_step(file) for file in (self._run_dir / "wandb").glob(f"*run-*-{run}*/run-{run}.wandb")]
        return max(found, default=None)
