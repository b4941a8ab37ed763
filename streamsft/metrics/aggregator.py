"""`Aggregator`: merges numbers over batches and ranks, with one collective per log step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

import numpy as np

from streamsft.comm import Comm, LocalComm
from streamsft.errors import MetricError, StateError
from streamsft.metrics import builtin as built_in
from streamsft.metrics import saved
from streamsft.metrics.exchange import Exchange
from streamsft.metrics.ledger import Layout, Ledger
from streamsft.metrics.metric import Metric
from streamsft.metrics.record import INTERVAL, TOTAL, Schema
from streamsft.metrics.reducers import Mean, Reducer
from streamsft.metrics.stats import SampleStats, SourceInfo

__all__ = ["Aggregator"]

_VERSION = 1


@final
class Aggregator:
    """Collects the statistics of batches, and numbers of the run, and turns them into log records.

    Each rank feeds in what it sees (`update`, `observe`); at a log step all ranks call `log`, which merges what
    came since the last one over all ranks and returns the same record everywhere. Whatever each rank has seen,
    the record equals that of one process which saw it all: counts exactly, sums to 1e-12, quantiles within 1 %.

    Keys: ``<prefix><source or mix node>/<metric>`` and ``data/<metric>`` (the prefix without its trailing
    underscore) since the run began, with ``_interval`` appended for the same since the last log step. A run
    metric is logged since the last log step under its own name, with ``_total`` appended since the run began.
    The built-in metrics are listed in `streamsft.metrics.builtin`. What has no value yet is left out.

    Args:
        sources: the sources of the run, in any order.
        metrics: the user's metrics, whose values come in `SampleStats.values`.
        run_metrics: name → reducer of numbers that are not of a sample, such as ``train/loss``.
        builtin: whether to report the built-in metrics.
        prefix: what comes before a source's name.
        comm: the ranks; their sources and metrics must be the same.

    Raises:
        MetricError: two numbers would be logged under one key.
    """

    def __init__(
        self,
        sources: Iterable[SourceInfo],
        metrics: Sequence[Metric] = (),
        run_metrics: Mapping[str, Reducer] | None = None,
        *,
        builtin: bool = True,
        prefix: str = "data_",
        comm: Comm | None = None,
    ) -> None:
        self.sources = tuple(sorted(sources, key=lambda s: s.name))
        self._schema = Schema(self.sources, metrics, dict(run_metrics or {}), builtin, prefix)
        self._run = {name: i for i, name in enumerate(self._schema.run_metrics, self._schema.first_run)}
        self._layout = Layout(self._schema.entries)
        self._pending = Ledger(self._layout)
        self._totals = Ledger(self._layout)
        self._exchange = Exchange(comm or LocalComm(), self._layout)

    @property
    def collectives(self) -> int:
        """All-gathers made so far: one for each `log` and each `gather_state`."""
        return self._exchange.collectives

    def update(self, stats: SampleStats) -> None:
        """Take in the statistics of a batch (or micro-batch) of this rank. Local.

        Raises:
            MetricError: a metric's values are missing, or a source index is out of range.
        """
        source = stats.source.astype(np.int64)
        if len(source) and not 0 <= source.min() <= source.max() < len(self.sources):
            raise MetricError(f"a batch has source index {source.max()}, but there are {len(self.sources)} sources")
        parts = self._pending.parts
        if self._schema.builtin:
            built_in.Tallies().update(parts[0][0], source, stats)
            built_in.LENGTHS.update(*parts[1], source, stats.tokens.astype(np.float64))
            parts[2][0][0] += (stats.packs, stats.slots)
        for i, (metric, reducer) in enumerate(self._schema.user, self._schema.first_user):
            if metric.name not in stats.values:
                raise MetricError(f"metric {metric.name!r}: the batch has no values of it; give it to the loader too")
            reducer.update(*parts[i], source, stats.values[metric.name])

    def observe(self, name: str, value: float, weight: float = 1.0) -> None:
        """Take in one number of a run metric. Local.

        Args:
            name: one of the declared run metrics.
            value: the number; with a weight, a mean of that many things (a loss per token, say).
            weight: how much it counts in a `Mean`; the other reducers know no weights.

        Raises:
            MetricError: the name is not declared, or its reducer knows no weights.
        """
        if name not in self._run:
            raise MetricError(f"run metric {name!r} is not declared; declared are {sorted(self._run)}")
        reducer, part = self._schema.run_metrics[name], self._pending.parts[self._run[name]]
        group, values = np.zeros(1, np.int64), np.array([value], np.float64)
        if isinstance(reducer, Mean):
            reducer.update(*part, group, values, np.array([weight], np.float64))
        elif weight == 1.0:
            reducer.update(*part, group, values)
        else:
            raise MetricError(f"run metric {name!r}: only Mean takes weights, this is {reducer.layout}")

    def log(self) -> dict[str, float]:
        """The record of this log step, the same on all ranks. Collective: one all-gather.

        Raises:
            MetricError: ranks declare different sources or metrics; raised on all of them.
        """
        delta = self._gather()
        self._totals.merge(delta)
        self._pending.clear()
        return (
            self._schema.constants()
            | self._schema.numbers(self._totals, "", TOTAL)
            | self._schema.numbers(delta, INTERVAL, "")
        )

    def gather_state(self) -> dict[str, Any]:
        """Totals and what came since the last log step, as JSON, the same on all ranks. Collective: one all-gather."""
        delta = self._gather()
        return {"version": _VERSION, "totals": saved.dump(self._totals), "pending": saved.dump(delta)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `gather_state` gave, on any number of ranks. Local, but to be called on all.

        Metrics and sources that are new start from nothing; metrics no longer declared are left out.

        Raises:
            StateError: the state has another version or sources that this run lacks, or is damaged.
            MetricError: a metric is now reduced in another way.
        """
        if state.get("version") != _VERSION:
            raise StateError(f"metrics state has version {state.get('version')!r}, this program reads {_VERSION}")
        if not state.keys() >= {"totals", "pending"}:
            raise StateError(f"metrics state has only {sorted(state)}; it must have 'totals' and 'pending'")
        totals, pending = Ledger(self._layout), Ledger(self._layout)
        saved.load(totals, state["totals"])
        saved.load(pending, state["pending"])
        self._totals = totals
        self._pending = pending if self._exchange.comm.rank == 0 else Ledger(self._layout)

    def _gather(self) -> Ledger:
        return Ledger.merged(self._layout, self._exchange.gather(self._pending.vector()))
