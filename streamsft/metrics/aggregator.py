"""`Aggregator`: merges numbers over batches and ranks, with one collective per log step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

import numpy as np

from streamsft.comm import Comm, LocalComm
from streamsft.errors import MetricError, StateError
from streamsft.metrics import builtin as built_in, saved
from streamsft.metrics.exchange import Exchange
from streamsft.metrics.histograms import Buckets
from streamsft.metrics.ledger import Ledger
from streamsft.metrics.metric import Metric, checked_metrics
from streamsft.metrics.record import INTERVAL, TOTAL, Schema
from streamsft.metrics.reducers import Mean, Reducer
from streamsft.metrics.stats import SampleStats, SourceInfo, by_name

__all__ = ["Aggregator"]

_VERSION = 1
_BATCHES, _SLOTS = 128, 2**22
"""Batches, and the slots in them, that are taken in together; what they hold stays in memory until then."""


@final
class Aggregator:
    """Collects the statistics of batches, and numbers of the run, and turns them into log records.

    Each rank feeds in what it sees (`update`, `observe`); at a log step all ranks call `log`, which merges what
    came since the last one over all ranks and returns the same record everywhere. Whatever each rank has seen,
    the record equals that of one process which saw it all: counts exactly, sums to 1e-12, quantiles within 1 %.

    What batches tell is taken in many at a time, which is what keeps it cheap; a record misses none of it.

    Keys: ``<prefix><source or mix node>/<metric>`` and ``data/<metric>`` (the prefix without its trailing
    underscore) since the run began, with ``_interval`` appended for the same since the last log step. A run
    metric is logged since the last log step under its own name, with ``_total`` appended since the run began.
    The built-in metrics are listed in `streamsft.metrics.builtin`. What has no value yet is left out.

    Args:
        sources: the sources of the run, in the order that `SampleStats.source` numbers them: `Loader.sources`, taken
            after the loader's state is loaded. Those of one name are counted as one.
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
        given = tuple(sources)
        self._names = [source.name for source in given]
        self._use(Schema(by_name(given), checked_metrics(metrics), dict(run_metrics or {}), builtin, prefix))
        self._pending = Ledger(self._schema.layout)
        self._totals = Ledger(self._schema.layout)
        self._interval = Ledger(self._schema.layout)
        self._drawn: dict[str, Buckets] | None = None
        self._waiting: list[SampleStats] = []
        self._slots = 0
        self._checked = False
        self._exchange = Exchange(comm or LocalComm(), self._schema.layout)

    def _use(self, schema: Schema) -> None:
        self._schema = schema
        self._run = {name: i for i, name in enumerate(schema.run_metrics, schema.first_run)}
        rows = {source.name: row for row, source in enumerate(schema.sources)}
        self._rows = np.array([rows[name] for name in self._names], np.int64)

    @property
    def sources(self) -> tuple[SourceInfo, ...]:
        """What is reported on, in the order of names: the sources, and those that a loaded state has besides."""
        return self._schema.sources

    @property
    def collectives(self) -> int:
        """All-gathers made so far: one for each `log` and each `gather_state`."""
        return self._exchange.collectives

    @property
    def root(self) -> str:
        """What stands before the slash in the keys of the whole run's data, ``data`` by default."""
        return self._schema.root

    @property
    def run_metrics(self) -> Mapping[str, Reducer]:
        """The declared numbers that are not of a sample."""
        return self._schema.run_metrics

    @property
    def histograms(self) -> dict[str, Buckets]:
        """The distributions of what came between the last two log steps, by key, the same on all ranks. Local.

        Built in are ``<prefix><source or mix node>/length``, ``…/share_supervised`` and ``…/supervised_turns``; of
        metrics of one's own, those reduced by `Quantiles` or `Histogram`, under their names.
        """
        if self._drawn is None:
            self._drawn = self._schema.histograms(self._interval)
        return self._drawn

    def update(self, stats: SampleStats) -> None:
        """Take in the statistics of a batch (or micro-batch) of this rank. Local.

        Raises:
            MetricError: a metric's values are missing, or a source index is out of range, in this batch or, at the
                latest at the next `log`, in one before.
        """
        if not self._checked:
            self._check(stats)
            self._checked = True
        self._waiting.append(stats)
        self._slots += stats.slots
        if len(self._waiting) >= _BATCHES or self._slots >= _SLOTS:
            self._take_in()

    def _take_in(self) -> None:
        """Count what the batches since the last time told."""
        if not self._waiting:
            return
        for one in self._waiting:
            self._check_values(one)
        stats = SampleStats.join(self._waiting)
        self._forget_waiting()
        self._check(stats)
        columns, parts = stats.columns, self._pending.parts
        source = self._rows[columns.source]
        if self._schema.builtin:
            built_in.Tallies().update(parts[0][0], source, columns)
            lengths, turns = columns.tokens.astype(np.float64), columns.turns.astype(np.float64)
            slots = built_in.slots_of(built_in.LENGTHS, columns.tokens)
            built_in.LENGTHS.update(*parts[1], source, lengths, slots)
            parts[2][0][0] += (stats.packs, stats.slots)
            built_in.SHARES.update(*parts[3], source, columns.supervised / np.maximum(lengths, 1))
            built_in.TURNS.update(*parts[4], source, turns, built_in.slots_of(built_in.TURNS, columns.turns))
            for number, reason, count in stats.refused:
                entry = self._schema.io.get(reason) or self._schema.reasons.get(
                    reason, self._schema.reasons[built_in.OTHER]
                )
                parts[entry][0][self._rows[number], 0] += count
        for i, (metric, reducer) in enumerate(self._schema.user, self._schema.first_user):
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

    def log(self, asked: Mapping[str, float] | None = None) -> dict[str, float]:
        """The record of this log step, the same on all ranks. Collective: one all-gather.

        Args:
            asked: the share of each source that the weights ask for at this step (`Packer.shares`); by default what
                `SourceInfo.weight` says.

        Raises:
            MetricError: ranks declare different sources or metrics; raised on all of them.
        """
        delta = self._gather()
        self._totals.merge(delta)
        self._pending.clear()
        self._interval, self._drawn = delta, None
        return (
            self._schema.constants(asked or {})
            | self._schema.rejections(self._totals, delta)
            | self._schema.reading(self._totals, "")
            | self._schema.reading(delta, INTERVAL)
            | self._schema.numbers(self._totals, "", TOTAL)
            | self._schema.numbers(delta, INTERVAL, "")
        )

    def gather_state(self) -> dict[str, Any]:
        """Totals and what came since the last log step, as JSON, the same on all ranks. Collective: one all-gather."""
        delta = self._gather()
        return {
            "version": _VERSION,
            "sources": {source.name: source.to_json() for source in self.sources},
            "totals": saved.dump(self._totals),
            "pending": saved.dump(delta),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `gather_state` gave, on any number of ranks. Local, but to be called on all.

        Metrics and sources that are new start from nothing; metrics no longer declared are left out. Sources that are
        no longer declared, since an edit of the mix removed them, keep their numbers.

        Raises:
            StateError: the state has another version, or is damaged.
            MetricError: a metric is now reduced in another way.
        """
        if state.get("version") != _VERSION:
            raise StateError(f"metrics state has version {state.get('version')!r}, this program reads {_VERSION}")
        if not state.keys() >= {"totals", "pending"}:
            raise StateError(f"metrics state has only {sorted(state)}; it must have 'totals' and 'pending'")
        known = [SourceInfo.from_json(name, source) for name, source in state.get("sources", {}).items()]
        schema = self._schema.of(by_name([*self.sources, *known]))
        totals, pending = Ledger(schema.layout), Ledger(schema.layout)
        saved.load(totals, state["totals"])
        saved.load(pending, state["pending"])
        self._use(schema)
        self._exchange.change(schema.layout)
        self._totals = totals
        self._interval, self._drawn = Ledger(schema.layout), None
        self._forget_waiting()
        self._pending = pending if self._exchange.comm.rank == 0 else Ledger(schema.layout)

    def _forget_waiting(self) -> None:
        self._waiting.clear()
        self._slots = 0

    def _check_values(self, stats: SampleStats) -> None:
        for metric in self._schema.metrics:
            if metric.name not in stats.values:
                raise MetricError(f"metric {metric.name!r}: the batch has no values of it; give it to the loader too")

    def _check(self, stats: SampleStats) -> None:
        self._check_values(stats)
        numbers = [number for number, _, _ in stats.refused]
        if len(stats):
            numbers.append(int(stats.columns.source.view(np.uint32).max()))  # a negative one is a large one then
        if numbers and not 0 <= min(numbers) <= max(numbers) < len(self._names):
            raise MetricError(f"a batch has source index {max(numbers)}, but there are {len(self._names)} sources")

    def _gather(self) -> Ledger:
        self._take_in()
        delta = Ledger(self._schema.layout)
        for vectors in self._exchange.gather(self._pending.vector()):
            delta.merge(Ledger.merged(self._schema.layout, vectors))
        return delta
