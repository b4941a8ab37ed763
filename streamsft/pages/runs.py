"""What a run's directory tells: its records, distributions, legs, edits and config."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias, final

from streamsft.errors import RunError
from streamsft.metrics.record import is_evaluation
from streamsft.shown import cause

__all__ = ["Run", "Series", "read_run"]

Series: TypeAlias = "list[float | None]"

_POINTS = 2000
"""Records that are drawn of a run; of a longer one evenly spaced ones, and the last."""


@final
@dataclass(kw_only=True)
class Run:
    """A run as its directory holds it.

    Attributes:
        name: what it is called on the page.
        path: its directory.
        steps: the steps of the records that are drawn.
        times: seconds since the epoch of these.
        records: their numbers by key.
        count: records in the file, without those that are of an evaluation alone.
        evaluations: step and numbers of the records that are drawn of evaluations, oldest first.
        histograms: key → documents by bucket (lower and upper edge), since the run began.
        legs: what `legs.jsonl` says of the times that the run was begun and gone on with.
        edits: what `run.json` says of edits of the mix.
        config: the config, as a nested mapping; empty where it was not kept.
        known: names of the sources that the run knew, in any order; empty where it was not kept.
        notices: what of its files is left out, and why, a sentence each.
    """

    name: str
    path: Path
    steps: list[int]
    times: list[float]
    records: list[Mapping[str, float | None]]
    count: int
    evaluations: Sequence[tuple[int, Mapping[str, float | None]]] = ()
    histograms: Mapping[str, Counter[tuple[float, float]]] = field(default_factory=dict)
    legs: Sequence[Mapping[str, Any]] = ()
    edits: Sequence[Mapping[str, Any]] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    known: frozenset[str] = frozenset()
    notices: Sequence[str] = ()

    @property
    def last(self) -> Mapping[str, float | None]:
        """The numbers of the last record."""
        return self.records[-1]

    @property
    def prefix(self) -> str:
        """What the keys of sources begin with."""
        return str(self.config.get("metrics", {}).get("prefix", "data_"))

    @property
    def root(self) -> str:
        """What the keys of the whole run's data begin with."""
        return self.prefix.rstrip("_") or "data"

    @property
    def unit(self) -> str:
        """What weights count: ``samples`` or ``tokens``."""
        return str(self.config.get("mix", {}).get("unit", "samples"))

    @property
    def sequence_length(self) -> int | None:
        """Slots per pack; None where it was not kept."""
        return self.config.get("sequence_length")

    @cached_property
    def sources(self) -> list[str]:
        """The sources that records tell of, those with most tokens first; mix nodes are left out where known."""
        found = {key[len(self.prefix) :].partition("/")[0] for key in self.last if key.startswith(self.prefix)}
        names = found & self.known or found
        return sorted(names, key=lambda name: (-(self.of(name, "tokens") or 0), name))

    def of(self, source: str, metric: str) -> float | None:
        """A number of a source, or mix node, in the last record."""
        return self.last.get(f"{self.prefix}{source}/{metric}")

    def series(self, key: str) -> Series:
        """A key's number in each record; None where it has none."""
        return [record.get(key) for record in self.records]

    def overall(self, key: str) -> float | None:
        """The mean of a rate, which each record tells of the steps since the one before, over all of the run's time."""
        steps = [now - before for before, now in zip([0, *self.steps], self.steps, strict=False)]
        told = [(count, rate) for count, rate in zip(steps, self.series(key), strict=True) if rate]
        return sum(count for count, _ in told) / sum(count / rate for count, rate in told) if told else None

    def changes(self, metric: str) -> bool:
        """Whether a number of a source is not the same in all records."""
        return any(len(set(self.source_series(name, metric)) - {None}) > 1 for name in self.sources)

    def source_series(self, source: str, metric: str) -> Series:
        """The same of a source's metric."""
        return self.series(f"{self.prefix}{source}/{metric}")

    def reasons(self, source: str) -> dict[str, int]:
        """Why rows of a source were not used, and how many: by ``rejected_<reason>`` and ``dropped_<reason>``."""
        start = f"{self.prefix}{source}/"
        found = {}
        for key, value in self.last.items():
            name = key.removeprefix(start)
            kind, _, reason = name.partition("_")
            counted = kind in ("rejected", "dropped") and reason and not name.endswith("_interval")
            if key.startswith(start) and counted and value:
                found[name] = int(value)
        return found


def read_run(path: Path) -> Run:
    """Read what the run in directory `path` has recorded.

    Raises:
        RunError: there are no records, or a file is damaged; says which line.
    """
    file = path / "metrics.jsonl"
    cut: list[str] = []
    lines = list(_lines(file, {"step": int, "time": int | float, "metrics": dict}, cut))
    if not lines:
        raise RunError(f"{file}: no record yet; a run writes one every metrics.log_every steps")
    whole = [line for line in lines if not line["metrics"] or not all(map(is_evaluation, line["metrics"]))] or lines
    chosen = _thinned(whole)
    marks = _json(path / "run.json") or {}
    edits = marks.get("edits", [])
    known = {*marks.get("fingerprint", {}).get("sources", {}), *(name for edit in edits for name in edit["removed"])}
    return Run(
        name=path.resolve().name,
        path=path,
        steps=[int(line["step"]) for line in chosen],
        times=[float(line["time"]) for line in chosen],
        records=[line["metrics"] for line in chosen],
        count=len(whole),
        evaluations=[(int(line["step"]), line["metrics"]) for line in _thinned([*filter(_has_evaluation, lines)])],
        histograms=_histograms(path / "histograms.jsonl", cut),
        legs=list(_lines(path / "legs.jsonl", {"step": int}, cut, optional=True)),
        edits=edits,
        config=_json(path / "config.json") or {},
        known=frozenset(known),
        notices=cut,
    )


def _thinned(lines: list[Any]) -> list[Any]:
    """At most so many of the lines as are drawn: evenly spaced ones, and the last."""
    every = -(-len(lines) // _POINTS)
    return lines[::-every][::-1] if lines else []


def _has_evaluation(line: Mapping[str, Any]) -> bool:
    return any(map(is_evaluation, line["metrics"]))


def _histograms(path: Path, cut: list[str]) -> dict[str, Counter[tuple[float, float]]]:
    """The distributions since the run began: those of all intervals added up."""
    found: dict[str, Counter[tuple[float, float]]] = {}
    for line in _lines(path, {"step": int, "histograms": dict}, cut, optional=True):
        for key, buckets in line["histograms"].items():
            counts = zip(pairwise(buckets["edges"]), buckets["counts"], strict=True)
            found.setdefault(key, Counter()).update(dict(counts))
    return found


def _lines(path: Path, fields: Mapping[str, Any], cut: list[str], *, optional: bool = False) -> Iterator[Any]:
    """The records of a file of JSON Lines, which have these fields of these types.

    A last line without an end is left out, and that is added to `cut`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        if optional:
            return
        raise RunError(f"{path}: there is no such file; give the train.run_dir of a run") from error
    except OSError as error:
        raise RunError(f"{path} cannot be read: {cause(error)}; give the train.run_dir of a run") from error
    *whole, rest = text.split("\n")
    if rest:
        cut.append(
            f"{path}: the last line, {len(whole) + 1:,}, has no end and is left out: it is being written, or was when "
            "the run was killed; a resume removes it"
        )
    for number, line in enumerate(whole, 1):
        try:
            record = json.loads(line)
            for name, kind in fields.items():
                if not isinstance(record[name], kind):
                    raise ValueError(f"{name!r} is {record[name]!r}")
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path}:{number}: not a record ({error}); repair or remove the line") from error
        yield record


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {cause(error)}; repair or remove it") from error
