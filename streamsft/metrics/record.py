"""What a log record holds: which numbers there are, what they are called, and how they are read from a ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import final

import numpy as np

from streamsft.errors import MetricError
from streamsft.metrics import builtin as built_in
from streamsft.metrics.histograms import Buckets, Histogram
from streamsft.metrics.ledger import Entry, Layout, Ledger, fold
from streamsft.metrics.metric import Metric, key_names
from streamsft.metrics.quantiles import Quantiles
from streamsft.metrics.reducers import Mergeable, Reducer
from streamsft.metrics.stats import SourceInfo
from streamsft.types import Floats, Ints, check_name

__all__ = ["INTERVAL", "TOTAL", "Schema", "evaluation_group", "is_evaluation"]

INTERVAL = "_interval"
TOTAL = "_total"
_EVALUATION = "eval"


def evaluation_group(name: str = "") -> str:
    """What the keys of an evaluation set begin with, before the slash; without a name those of all sets together."""
    return f"{_EVALUATION}_{name}" if name else _EVALUATION


def is_evaluation(key: str) -> bool:
    """Whether a key is one of an evaluation: ``eval/loss``, ``eval_<set>/loss``."""
    group = key.partition("/")[0]
    return group == _EVALUATION or group.startswith(f"{_EVALUATION}_")


@final
class Schema:
    """The declared sources and metrics: the entries of their ledgers and the keys of their numbers.

    Raises:
        MetricError: a name is used twice, or two numbers would be logged under one key.
    """

    def __init__(
        self,
        sources: Sequence[SourceInfo],
        metrics: Sequence[Metric],
        run_metrics: Mapping[str, Reducer],
        builtin: bool,
        prefix: str,
    ) -> None:
        self.sources = tuple(sources)
        self.metrics = metrics
        self.run_metrics = run_metrics
        self.builtin = builtin and bool(sources)
        self.prefix = prefix
        self.root = prefix.rstrip("_") or "data"
        self.nodes = _nodes(sources)
        self.user = [(metric, reducer) for metric in metrics for reducer in metric.reducers]
        names = tuple(s.name for s in sources)
        built = [
            Entry("samples", built_in.Tallies(), names),
            Entry("length", built_in.LENGTHS, names),
            Entry("slots", built_in.Slots(), ("",)),
            Entry("share_supervised", built_in.SHARES, names),
            Entry("supervised_turns", built_in.TURNS, names),
        ]
        reasons = sorted({check_name(reason, "reason") for s in sources for reason in s.reasons} - {built_in.OTHER})
        self.reasons = {reason: at for at, reason in enumerate([*reasons, built_in.OTHER], len(built))}
        """Which entry counts the rows of streaming sources that were refused for a reason."""
        built += [Entry(f"refused {reason}", built_in.Refusals(), names) for reason in self.reasons]
        names_of_io = sorted({check_name(name, "count") for s in sources for name in s.io})
        self.io = {name: at for at, name in enumerate(names_of_io, len(built))}
        """Which entry counts what is read of sources that count it."""
        built += [Entry(f"io {name}", built_in.Refusals(), names) for name in self.io]
        self.entries = built if self.builtin else []
        self.first_user = len(self.entries)
        self.entries += [Entry(f"sample {metric.name}", reducer, names) for metric, reducer in self.user]
        self.first_run = len(self.entries)
        self.entries += [Entry(f"run {name}", reducer, ("",)) for name, reducer in run_metrics.items()]
        self._check(metrics)
        self.layout = Layout(self.entries)

    def of(self, sources: Sequence[SourceInfo]) -> Schema:
        """The same metrics of other sources."""
        return Schema(sources, self.metrics, self.run_metrics, self.builtin, self.prefix)

    def numbers(self, ledger: Ledger, suffix: str, run_suffix: str) -> dict[str, float]:
        """Every number that `ledger` has a value for, by key."""
        record: dict[str, float] = {}
        if self.builtin:
            self._built_in(record, ledger, suffix)
        for i, (metric, reducer) in enumerate(self.user, self.first_user):
            keys = metric.keys
            for node, members in self.nodes.items():
                for name, value in reducer.result(*_rolled(reducer, ledger.parts[i], members)).items():
                    record[f"{self.prefix}{node}/{keys[reducer.layout, name]}{suffix}"] = value
        for i, (name, reducer) in enumerate(self.run_metrics.items(), self.first_run):
            keys = key_names(name, [reducer])
            ints, floats = ledger.parts[i]
            for part, value in reducer.result(ints[0], floats[0]).items():
                record[keys[reducer.layout, part] + run_suffix] = value
        return record

    def constants(self, asked: Mapping[str, float]) -> dict[str, float]:
        """The numbers that are known from the start, and the shares `asked` for at the step."""
        record: dict[str, float] = {}
        for node, members in self.nodes.items() if self.builtin else ():
            for name, value in built_in.constants([self.sources[i] for i in members], asked).items():
                record[f"{self.prefix}{node}/{name}"] = value
        return record

    def histograms(self, ledger: Ledger) -> dict[str, Buckets]:
        """The distributions that `ledger` has values for, per node and of the run, by key."""
        found: dict[str, Buckets] = {}
        for entry, part in zip(self.entries, ledger.parts, strict=True):
            reducer = entry.reducer
            if not isinstance(reducer, Quantiles | Histogram):
                continue
            kind, _, name = entry.metric.rpartition(" ")
            nodes = {name: [0]} if kind == "run" else {f"{self.prefix}{n}/{name}": m for n, m in self.nodes.items()}
            for key, members in nodes.items():
                if buckets := reducer.buckets(*_rolled(reducer, part, members)):
                    found[key] = buckets
        return found

    def rejections(self, totals: Ledger, delta: Ledger) -> dict[str, float]:
        """The rejected rows: those known from the start, and those refused while reading; of an interval the latter."""
        if not self.builtin:
            return {}
        counted = [np.stack([ledger.parts[at][0][:, 0] for at in self.reasons.values()]) for ledger in (totals, delta)]
        record: dict[str, float] = {}
        for node, members in self.nodes.items():
            refused, lately = (
                dict(zip(self.reasons, rows[:, members].sum(axis=1).tolist(), strict=True)) for rows in counted
            )
            numbers = built_in.rejections([self.sources[i] for i in members], refused, lately, INTERVAL)
            record |= {f"{self.prefix}{node}/{name}": value for name, value in numbers.items()}
        return record

    def reading(self, ledger: Ledger, suffix: str) -> dict[str, float]:
        """What was read of the sources that count it."""
        record: dict[str, float] = {}
        for node, members in self.nodes.items() if self.builtin and self.io else ():
            if any(self.sources[member].io for member in members):
                counts = {name: int(ledger.parts[at][0][members, 0].sum()) for name, at in self.io.items()}
                numbers = built_in.reading(counts)
                record |= {f"{self.prefix}{node}/{name}{suffix}": value for name, value in numbers.items()}
        return record

    def _built_in(self, record: dict[str, float], ledger: Ledger, suffix: str) -> None:
        tallies, slots = self.entries[0].reducer, self.entries[2].reducer
        spreads = {"length": 1, "share_supervised": 3, "supervised_turns": 4}
        packed = slots.result(*(a[0] for a in ledger.parts[2]))
        total = tallies.result(*_rolled(tallies, ledger.parts[0], range(len(self.sources))))
        whole = {k: total[k] for k in ("samples", "documents", "tokens", "supervised_tokens")} | packed
        if packed["slots"]:
            whole["packing_efficiency"] = total["tokens"] / packed["slots"]
            whole["documents_per_pack"] = total["documents"] / packed["packs"]
        record |= {f"{self.root}/{name}{suffix}": value for name, value in whole.items()}
        for node, members in self.nodes.items():
            tally = tallies.result(*_rolled(tallies, ledger.parts[0], members))
            if suffix != INTERVAL:
                tally |= built_in.passes([self.sources[i] for i in members], tally)
            del tally["documents"]
            tally.pop("last_pass", None)
            for what in ("samples", "tokens"):
                if total[what]:
                    tally[f"share_{what}"] = tally[what] / total[what]
            for what, at in spreads.items():
                spread = self.entries[at].reducer.result(*_rolled(self.entries[at].reducer, ledger.parts[at], members))
                tally |= {f"{what}_{name}": value for name, value in spread.items()}
            record |= {f"{self.prefix}{node}/{name}{suffix}": value for name, value in tally.items()}

    def _check(self, metrics: Sequence[Metric]) -> None:
        _once("metric", (m.name for m in metrics))
        for name in self.run_metrics:
            for part in name.split("/"):
                check_name(part, "run metric")
        per_node = list(built_in.NAMES) if self.builtin else []
        if self.builtin:
            per_node += {f"rejected_{reason}" for s in self.sources for reason in s.rejected} | {
                f"rejected_{reason}" for reason in self.reasons
            }
            per_node += built_in.reading(dict.fromkeys(self.io, 1))
            per_node += {f"dropped_{reason}" for s in self.sources for reason in s.dropped}
        per_node += [key for metric in metrics for key in metric.keys.values()]
        keys = [f"{self.prefix}{node}/{key}" for node in self.nodes for key in per_node]
        keys += [f"{self.root}/{key}" for key in built_in.RUN_NAMES if self.builtin]
        keys += [key + INTERVAL for key in keys]
        run = [key for name, reducer in self.run_metrics.items() for key in key_names(name, [reducer]).values()]
        _once("logged key", [*keys, *run, *(key + TOTAL for key in run)])


def _nodes(sources: Sequence[SourceInfo]) -> dict[str, list[int]]:
    """Every source and every mix node, with the indices of the sources in it."""
    groups: dict[str, list[int]] = {}
    for i, source in enumerate(sources):
        for group in source.groups:
            groups.setdefault(group, []).append(i)
    _once("source or mix node", [*(s.name for s in sources), *groups])
    return {s.name: [i] for i, s in enumerate(sources)} | groups


def _rolled(reducer: Mergeable, part: tuple[Ints, Floats], members: Sequence[int]) -> tuple[Ints, Floats]:
    """The states of several sources merged into one, int64[ints] and float64[floats]."""
    if len(members) == 1:
        return part[0][members[0]], part[1][members[0]]
    index = list(members)
    ints, floats = fold(reducer, part[0][index][:, None], part[1][index][:, None])
    return ints[0], floats[0]


def _once(what: str, names: Iterable[str]) -> None:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise MetricError(f"{what} {twice[0]!r} is there twice; give each one a name of its own")
