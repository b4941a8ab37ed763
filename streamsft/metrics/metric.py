"""`Metric`: a number of one's own, measured on every sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from streamsft.errors import MetricError
from streamsft.metrics.reducers import Counts, Reducer
from streamsft.types import Floats, Sample, check_name, lacking

__all__ = ["Metric", "checked_metrics", "key_names", "measure"]


_REDUCER = ("ints", "floats", "suffixes", "layout", "zero", "update", "merge", "result")


@final
@dataclass(frozen=True, slots=True)
class Metric:
    """A value of a sample and the reducers that it goes through, per source and per mix node.

    It is logged under its name when it has one reducer with one result (``turns``), else under name and the
    result's suffix (``turns_mean``, ``turns_p95``). Measured after overflow, on what is in the batch: each
    fragment of a split row is a sample of its own, with `Sample.start` above 0.

    Args:
        name: letters, digits, ``_``, ``.`` and ``-``.
        value: the value of a sample, a finite number; with `Counts`, the name of its category. Must be
            picklable (a module's function, not a lambda) for loaders with worker processes.
        reducers: a list of one or more; `Counts` only alone.

    Raises:
        MetricError: no list of reducers, the same one twice, `Counts` beside others, or no function.
    """

    name: str
    value: Callable[[Sample], float | str]
    reducers: Sequence[Reducer]

    def __post_init__(self) -> None:
        check_name(self.name, "metric")
        if not callable(self.value):
            raise MetricError(
                f"metric {self.name!r}: {self.value!r} is no function; give one from a sample to a number"
            )
        object.__setattr__(self, "reducers", _checked_reducers(self.name, self.reducers))
        layouts = [r.layout for r in self.reducers]
        if not layouts or len(set(layouts)) != len(layouts):
            raise MetricError(f"metric {self.name!r}: give one or more reducers, each once; got {layouts}")
        if len(layouts) > 1 and any(isinstance(r, Counts) for r in self.reducers):
            raise MetricError(f"metric {self.name!r}: Counts reduces names, other reducers numbers; make two metrics")

    @property
    def keys(self) -> dict[tuple[str, str], str]:
        """(reducer's layout, suffix) → the name that the number is logged under."""
        return key_names(self.name, self.reducers)

    def measure(self, sample: Sample) -> float:
        """The value of `sample` as a float; for `Counts`, the index of its category (their number for others).

        Raises:
            MetricError: the value is not a finite number. What the value function itself raises is passed on
                with a note that says on which sample.
        """
        try:
            value = self.value(sample)
        except Exception as error:
            error.add_note(f"metric {self.name!r}: its value function failed on {_where(sample)}")
            raise
        first = self.reducers[0]
        if isinstance(first, Counts):
            return float(_index(first.categories, value, self.name, sample))
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise MetricError(f"metric {self.name!r}: {value!r} on {_where(sample)} is not a finite number")
        return number


def checked_metrics(metrics: Iterable[Any], where: str = "metrics") -> tuple[Any, ...]:
    """The user's metrics, if they come as a list.

    Raises:
        MetricError: it is one by itself, or something else.
    """
    if not isinstance(metrics, Iterable) or isinstance(metrics, str | Mapping):
        raise MetricError(f"{where}: give a list of metrics, such as [Metric(...)], not a {type(metrics).__name__}")
    found = tuple(metrics)
    for metric in found:
        if missing := lacking(metric, ("name", "measure")):
            raise MetricError(f"{where}: {metric!r} is no Metric: it lacks {', '.join(missing)}")
    return found


def _checked_reducers(name: str, reducers: Any) -> tuple[Reducer, ...]:
    if not isinstance(reducers, Iterable) or isinstance(reducers, str | Mapping):
        raise MetricError(f"metric {name!r}: give a list of reducers, such as [Mean()], not {reducers!r}")
    found = tuple(reducers)
    for reducer in found:
        if isinstance(reducer, type):
            raise MetricError(
                f"metric {name!r}: {reducer.__name__} is a class; give an object of it: {reducer.__name__}()"
            )
        if missing := lacking(reducer, _REDUCER):
            raise MetricError(f"metric {name!r}: {reducer!r} is no reducer: it lacks {', '.join(missing)}")
    return found


def key_names(name: str, reducers: Sequence[Reducer]) -> dict[tuple[str, str], str]:
    """(reducer's layout, suffix) → the name that the number is logged under: `name` alone if there is only one.

    Raises:
        MetricError: two reducers use the same suffix.
    """
    pairs = [(r.layout, suffix) for r in reducers for suffix in r.suffixes]
    if len({suffix for _, suffix in pairs}) != len(pairs):
        raise MetricError(f"metric {name!r}: two of its results would be called the same: {[s for _, s in pairs]}")
    return {pair: name if len(pairs) == 1 else f"{name}_{pair[1]}" for pair in pairs}


def measure(metrics: Iterable[Metric], samples: Sequence[Sample]) -> dict[str, Floats]:
    """Every metric on every sample: name → float64[len(samples)], as `SampleStats.values` wants it."""
    return {m.name: np.array([m.measure(s) for s in samples], np.float64) for m in metrics}


def _index(categories: tuple[str, ...], value: Any, name: str, sample: Sample) -> int:
    if not isinstance(value, str):
        raise MetricError(f"metric {name!r}: {value!r} on {_where(sample)} is not the name of a category")
    return categories.index(value) if value in categories else len(categories)


def _where(sample: Sample) -> str:
    return f"source {sample.source!r}, row {sample.row}, pass {sample.pass_index}"
