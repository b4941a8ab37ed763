"""What a rank writes of a run step by step: the audit, and the records of metrics."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import final

from streamsft.comm import Comm, agreeing
from streamsft.errors import RunError
from streamsft.metrics.histograms import Buckets
from streamsft.metrics.sinks import HistogramSink, Sink
from streamsft.refusals import way_out
from streamsft.training.audit import Audit, rewind_audit
from streamsft.training.settings import TrainSettings

__all__ = ["Outputs", "opened_outputs"]

_log = logging.getLogger(__name__)


@final
@dataclass(frozen=True, slots=True)
class Outputs:
    """What a rank writes step by step.

    Attributes:
        audit: None if it is not wanted.
        sinks: those of rank 0; none on the others.
    """

    audit: Audit | None
    sinks: Sequence[Sink]

    def record(self, step: int, record: Mapping[str, float], histograms: Mapping[str, Buckets] | None = None) -> None:
        """Give the sinks the record of a step, and distributions beside it.

        Raises:
            RunError: it could not be written.
        """
        try:
            at = time.time()
            for sink in self.sinks:
                sink.write(step, at, record)
                if histograms is not None and isinstance(sink, HistogramSink):
                    sink.write_histograms(step, at, histograms)
        except OSError as error:
            fix = way_out(error, "see that train.run_dir can be written to")
            raise RunError(
                f"the metrics of step {step} could not be written: {error.strerror}; {fix}, and resume"
            ) from error


@contextmanager
def opened_outputs(
    settings: TrainSettings, step: int, sinks: Callable[[], Sequence[Sink]] | Sequence[Sink], comm: Comm
) -> Iterator[Outputs]:
    """Forget what was written after `step`, and open what this rank writes; collective."""
    folder = settings.run_dir / "audit"
    with ExitStack() as stack:
        mine: Sequence[Sink] = ()
        audit = None
        with agreeing(comm):
            if comm.rank == 0:
                last = rewind_audit(folder, step)
                if settings.audit and last < step:
                    _log.warning("%s: ends at step %s, so the audit lacks steps %s to %s", folder, last, last + 1, step)
                mine = sinks() if callable(sinks) else sinks
                for sink in mine:
                    stack.callback(sink.close)
                    sink.rewind(step)
        with agreeing(comm):
            if settings.audit:
                audit = Audit(folder, rank=comm.rank, dp_size=comm.size)
                stack.callback(audit.close)
        yield Outputs(audit, mine)
