"""`TrackioSink`: records as a run of trackio."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from streamsft.metrics.tracking import DEFAULT_PROJECT, TrackedRun, need

if TYPE_CHECKING:
    from trackio.run import Run

__all__ = ["TrackioSink"]


@final
class TrackioSink:
    """Numbers as a run of trackio, which a resumed run goes on with.

    Where it is kept is what trackio's environment variables say (``TRACKIO_DIR``, ``TRACKIO_SPACE_ID``, …); by default
    on this machine, shown by ``trackio show``. Steps that it holds already are not given again; on this machine those
    before that it lacks, because it was killed with the run before it had written them, are given first. The run is
    begun with the first record. What trackio prints goes to standard error.

    Args:
        run_dir: the run's directory.
        project: the project; by default ``TRACKIO_PROJECT``, or ``streamsft``.
        config: what the run was configured with.

    Raises:
        ConfigError: the package ``trackio`` is not installed.
    """

    def __init__(self, run_dir: Path, *, project: str | None = None, config: Mapping[str, Any] | None = None) -> None:
        need("trackio", "trackio")
        self._run_dir = run_dir
        self._project = project or os.environ.get("TRACKIO_PROJECT") or DEFAULT_PROJECT
        self._config = dict(config or {})
        self._tracked: TrackedRun | None = None
        self._run: Run | None = None

    def write(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        run, tracked = self._begun()
        for one in tracked.due(step, time, metrics):
            run.log(one.metrics, step=one.step)

    def rewind(self, step: int) -> None:
        """What the run holds stays."""

    def close(self) -> None:
        if self._run is not None:
            with redirect_stdout(sys.stderr):
                self._run.finish()  # type: ignore[no-untyped-call]
            self._run = None

    def _begun(self) -> tuple[Run, TrackedRun]:
        if self._run is None or self._tracked is None:
            import trackio

            tracked = TrackedRun(self._run_dir / "trackers" / "trackio.json")
            # trackio knows a run by its name, and another directory of the same name is another run.
            tracked.id = tracked.id or f"{self._run_dir.resolve().name}-{uuid.uuid4().hex[:6]}"
            with redirect_stdout(sys.stderr):
                self._run = trackio.init(
                    self._project,
                    name=tracked.id,
                    config=self._config,
                    resume="allow",
                    embed=False,
                    auto_log_gpu=False,
                    auto_log_cpu=False,
                )
            tracked.found(self._holds(self._run))
            self._tracked = tracked
        return self._run, self._tracked

    def _holds(self, run: Run) -> int | None:
        """The last step in trackio's database on this machine; None where it is kept elsewhere."""
        from trackio.sqlite_storage import SQLiteStorage

        if not getattr(run, "_is_local", False) or getattr(run, "_storage_mode", "sqlite") != "sqlite":
            return None
        return SQLiteStorage.get_max_step_for_run(self._project, run.name) or 0
