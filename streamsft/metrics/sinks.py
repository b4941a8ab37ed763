"""Where log records are written: `Sink`, the sinks for JSON Lines and TensorBoard, and what keeps others harmless.

A run writes its records on rank 0 only; records are the same on all ranks. The console's sink is in
`streamsft.metrics.console`, those of experiment trackers in `streamsft.metrics.tracking` and the modules beside it.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, final, runtime_checkable

from streamsft.errors import ConfigError
from streamsft.metrics.histograms import Buckets
from streamsft.metrics.jsonlines import JsonLines

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

__all__ = ["GuardedSink", "HistogramSink", "JsonlSink", "Sink", "TensorBoardSink"]

_log = logging.getLogger(__name__)


class Sink(Protocol):
    """Takes the record of each log step."""

    def write(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        """Take a record: the step it was made after, seconds since the epoch, and its numbers."""

    def rewind(self, step: int) -> None:
        """Forget the records of later steps than `step`: the run goes on from there. Called before any `write`."""

    def close(self) -> None:
        """Write out what is still held back; nothing is written afterwards."""


@runtime_checkable
class HistogramSink(Protocol):
    """A sink that takes distributions too."""

    def write_histograms(self, step: int, time: float, histograms: Mapping[str, Buckets]) -> None:
        """Take the distributions of what came since the last log step, right behind `write`."""


@final
class JsonlSink:
    """One line of JSON per record, ``{"step", "time", "metrics": {key: number}}``, readable as soon as written.

    Distributions go to a file of their own, ``{"step", "time", "histograms": {key: {"edges", "counts"}}}``.
    Numbers that are not finite, for which JSON has no notation, become ``null``.

    Args:
        path: the file; it and its folder are made with the first record.
        histograms: the file for distributions; None writes none.

    Raises:
        RunError: on `rewind`, a line of the file is not such a record.
    """

    def __init__(self, path: str | os.PathLike[str], histograms: str | os.PathLike[str] | None = None) -> None:
        self.path = Path(path)
        self._records = JsonLines(self.path)
        self._histograms = None if histograms is None else JsonLines(Path(histograms))

    def write(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        numbers = {key: value if math.isfinite(value) else None for key, value in metrics.items()}
        self._records.append({"step": step, "time": time, "metrics": numbers})

    def write_histograms(self, step: int, time: float, histograms: Mapping[str, Buckets]) -> None:
        if self._histograms is not None and histograms:
            found = {key: buckets.to_json() for key, buckets in histograms.items()}
            self._histograms.append({"step": step, "time": time, "histograms": found})

    def rewind(self, step: int) -> None:
        self._records.rewind(step)
        if self._histograms is not None:
            self._histograms.rewind(step)

    def close(self) -> None:
        self._records.close()
        if self._histograms is not None:
            self._histograms.close()


@final
class TensorBoardSink:
    """Scalars and histograms in TensorBoard event files, one tag per key.

    After `rewind`, TensorBoard hides what had been written for later steps.

    Args:
        folder: the folder for event files.

    Raises:
        ConfigError: the package ``tensorboard`` is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            import torch.utils.tensorboard
        except ImportError as error:
            raise ConfigError(
                "metrics.sinks: 'tensorboard' needs the package tensorboard: pip install 'streamsft[train]'"
            ) from error
        self._make: Any = torch.utils.tensorboard.SummaryWriter
        self.folder = Path(folder)
        self._purge: int | None = None
        self._writer: SummaryWriter | None = None

    def write(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        if self._writer is None:
            self._writer = self._make(str(self.folder), purge_step=self._purge)
        for key, value in metrics.items():
            self._writer.add_scalar(key, value, step, walltime=time)
        self._writer.flush()

    def write_histograms(self, step: int, time: float, histograms: Mapping[str, Buckets]) -> None:
        for key, buckets in histograms.items() if self._writer is not None else ():
            assert self._writer is not None
            middles = [(a + b) / 2 for a, b in zip(buckets.edges, buckets.edges[1:], strict=False)]
            self._writer.add_histogram_raw(
                key,
                min=buckets.edges[0],
                max=buckets.edges[-1],
                num=sum(buckets.counts),
                sum=sum(middle * count for middle, count in zip(middles, buckets.counts, strict=True)),
                sum_squares=sum(middle**2 * count for middle, count in zip(middles, buckets.counts, strict=True)),
                bucket_limits=[buckets.edges[0], *buckets.edges[1:]],
                bucket_counts=[0, *buckets.counts],
                global_step=step,
                walltime=time,
            )

    def rewind(self, step: int) -> None:
        self.close()
        self._purge = step + 1

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


@final
class GuardedSink:
    """A sink whose failures are told once and do not stop the run.

    After the first one it is left alone until the run is started again: a server that is away would be waited for at
    each log step.

    Args:
        sink: what may fail.
        name: what it is called in the warning.
    """

    def __init__(self, sink: Sink, name: str) -> None:
        self.sink = sink
        self.name = name
        self.failed = False

    def write(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        self._try(f"the record of step {step}", lambda: self.sink.write(step, time, metrics))

    def write_histograms(self, step: int, time: float, histograms: Mapping[str, Buckets]) -> None:
        sink = self.sink
        if isinstance(sink, HistogramSink):
            self._try(f"the histograms of step {step}", lambda: sink.write_histograms(step, time, histograms))

    def rewind(self, step: int) -> None:
        self._try(f"going back to step {step}", lambda: self.sink.rewind(step))

    def close(self) -> None:
        self._try("its end", self.sink.close)

    def _try(self, what: str, call: Callable[[], None]) -> None:
        if self.failed:
            return
        try:
            call()
        except Exception as error:  # a tracker may raise anything, and nothing of it is worth a run
            self.failed = True
            _log.warning(
                "metrics sink %s failed at %s: %s: %s; training goes on without it, metrics.jsonl has every record",
                self.name,
                what,
                type(error).__name__,
                error,
            )
