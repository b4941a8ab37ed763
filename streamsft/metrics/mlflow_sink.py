"""`MlflowSink`: records as a run of MLflow."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from streamsft.metrics.tracking import DEFAULT_PROJECT, Given, TrackedRun, need

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["MlflowSink"]

_AT_ONCE = 1000
"""Numbers that MLflow takes in one request."""


@final
class MlflowSink:
    """Numbers as a run of MLflow, which a resumed run goes on with.

    The server is ``MLFLOW_TRACKING_URI``; without one, MLflow's file store in ``mlruns`` of the run directory. Steps
    that it holds already are not given again, and what it lacks of those before is given first. The run is begun with
    the first record.

    Args:
        run_dir: the run's directory.
        project: the experiment; by default ``MLFLOW_EXPERIMENT_NAME``, or ``streamsft``.
        config: what the run was configured with; kept as the artifact ``config.json``.

    Raises:
        ConfigError: the package ``mlflow`` is not installed.
    """

    def __init__(self, run_dir: Path, *, project: str | None = None, config: Mapping[str, Any] | None = None) -> None:
        need("mlflow", "mlflow")
        self._run_dir = run_dir
        self._experiment = project or os.environ.get("MLFLOW_EXPERIMENT_NAME") or DEFAULT_PROJECT
        self._config = dict(config or {})
        self._tracked: TrackedRun | None = None
        self._client: MlflowClient | None = None
        self._held: dict[int, set[str]] = {}

    def write(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        client, tracked = self._begun()
        for one in tracked.due(step, time, metrics):
            self._log(client, tracked, one)

    def _log(self, client: MlflowClient, tracked: TrackedRun, given: Given) -> None:
        from mlflow.entities import Metric

        assert tracked.id is not None
        step, time, metrics = given
        held = self._held.get(step, set())
        new = {key: value for key, value in metrics.items() if key not in held}
        found = [Metric(key, float(value), int(time * 1000), step) for key, value in new.items()]
        for start in range(0, len(found), _AT_ONCE):
            client.log_batch(tracked.id, metrics=found[start : start + _AT_ONCE])

    def rewind(self, step: int) -> None:
        """What the run holds stays."""

    def close(self) -> None:
        if self._client is not None and self._tracked is not None:
            assert self._tracked.id is not None
            self._client.set_terminated(self._tracked.id)
            self._client = None

    def _begun(self) -> tuple[MlflowClient, TrackedRun]:
        if self._client is None or self._tracked is None:
            from mlflow import MlflowClient

            uri = os.environ.get("MLFLOW_TRACKING_URI")
            if not uri:
                os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow 3 asks before it writes files
                uri = (self._run_dir.resolve() / "mlruns").as_uri()
            client = MlflowClient(tracking_uri=uri)
            tracked = TrackedRun(self._run_dir / "trackers" / "mlflow.json")
            if tracked.id is None:
                tracked.id = self._make(client)
            else:
                client.update_run(tracked.id, status="RUNNING")
                tracked.found(self._holds(client, tracked.id))
            self._client, self._tracked = client, tracked
        return self._client, self._tracked

    def _holds(self, client: MlflowClient, run: str) -> int:
        """The last step that MLflow holds whole; of the one behind, which keys it holds is kept."""
        latest = {metric.key: int(metric.step) for metric in client.get_run(run).to_proto().data.metrics}
        last = max(latest.values(), default=0)
        self._held = {last: {key for key, step in latest.items() if step == last}}
        return max(0, last - 1)

    def _make(self, client: MlflowClient) -> str:
        experiment = client.get_experiment_by_name(self._experiment)
        number = experiment.experiment_id if experiment is not None else client.create_experiment(self._experiment)
        run: str = client.create_run(number, run_name=self._run_dir.resolve().name).info.run_id
        client.log_dict(run, self._config, "config.json")
        return run
