"""The charts of what is one number a record: loss, packing, throughput; a line for each run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streamsft.metrics.record import is_evaluation
from streamsft.pages.charts import DASHES, Chart, line_trace
from streamsft.pages.runs import Run

__all__ = ["whole_charts"]


def whole_charts(runs: Sequence[Run]) -> list[Chart]:
    """The charts of what is one number a record, with a line for each run."""
    root = dict.fromkeys(run.root for run in runs)
    found = {key for run in runs for _, record in run.evaluations for key in record if is_evaluation(key)}
    losses = {"train/loss": "train", **{key: key for key in sorted(found) if key.endswith("/loss")}}
    made = [
        _whole("loss", "Loss", "Mean per supervised token.", runs, losses, ""),
        _whole("packing", "Packing efficiency", "Share of the slots that hold a token, between two records.", runs,
               {f"{name}/packing_efficiency_interval": "" for name in root}, "% of slots", scale=100),
        _whole("documents", "Documents per pack", "Between two records.", runs,
               {f"{name}/documents_per_pack_interval": "" for name in root}, "documents"),
        _whole("speed", "Throughput", "Slots, and supervised tokens, a second.", runs,
               {"train/slots_per_second": "slots", "train/supervised_tokens_per_second": "supervised tokens"},
               "per second", {"rangemode": "tozero"}),
        _whole("wait", "Waiting for data", "Seconds that a step waited for its batch, mean over steps and ranks.", runs,
               {"train/data_wait_seconds": ""}, "seconds", {"rangemode": "tozero"}),
        _whole("ready", "Batches ready", "How many the background thread had ready when a step asked.", runs,
               {"train/prefetch_depth": ""}, "batches", {"rangemode": "tozero"}),
        _whole("rate", "Learning rate", "Of the step of each record.", runs,
               {"train/lr": ""}, "", {"exponentformat": "e"}),
    ]  # fmt: skip
    return [chart for chart in made if chart.traces]


def _whole(
    name: str,
    title: str,
    note: str,
    runs: Sequence[Run],
    keys: Mapping[str, str],
    unit: str,
    axis: Mapping[str, Any] | None = None,
    scale: float = 1,
) -> Chart:
    traces = []
    for number, run in enumerate(runs):
        for place, (key, label) in enumerate(keys.items()):
            steps, series = run.steps, run.series(key)
            if is_evaluation(key):
                steps = [step for step, _ in run.evaluations]
                series = [record.get(key) for _, record in run.evaluations]
            values = [None if value is None else value * scale for value in series]
            if all(value is None for value in values):
                continue
            called = ", ".join(part for part in (run.name if len(runs) > 1 else "", label) if part) or title
            colour = number if len(runs) > 1 else place
            dash = DASHES[(place + number) % len(DASHES)] if len(runs) > 1 else DASHES[place % len(DASHES)]
            line = {"dash": dash, "width": 2}
            traces.append(line_trace(called, colour, steps, values, line=line))
    layout = {"yaxis": {"title": {"text": unit}, **(axis or {})}}
    return Chart(id=name, title=title, note=note, traces=traces, layout=layout)
