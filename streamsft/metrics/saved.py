"""Ledgers as JSON: for checkpoints, by the names of metrics and groups, free of ranks and of slot positions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from streamsft.errors import MetricError, StateError
from streamsft.metrics.ledger import Ledger
from streamsft.types import Floats, Ints

__all__ = ["dump", "load"]


def dump(ledger: Ledger) -> dict[str, Any]:
    """The states that have seen something: entry key → {metric, groups: {name: [ints, floats]}}, slots by index."""
    saved: dict[str, Any] = {}
    for entry, (ints, floats) in zip(ledger.layout.entries, ledger.parts, strict=True):
        zero_ints, zero_floats = entry.reducer.zero(1)
        groups = {}
        for row, name in enumerate(entry.groups):
            state = [_sparse(ints[row], zero_ints[0]), _sparse(floats[row], zero_floats[0])]
            if any(state):
                groups[name] = state
        saved[entry.key] = {"metric": entry.metric, "groups": groups}
    return saved


def load(ledger: Ledger, saved: dict[str, Any]) -> None:
    """Put what `dump` gave into `ledger`, which must be new.

    A metric or group that was not saved starts from nothing; a saved metric that is no longer declared is left out.

    Raises:
        MetricError: a metric is now reduced in another way than it was saved with.
        StateError: a group that was saved no longer exists, or the saved states are damaged.
    """
    entries = {entry.key: k for k, entry in enumerate(ledger.layout.entries)}
    declared = {entry.metric for entry in ledger.layout.entries}
    for key, item in saved.items():
        if key not in entries:
            if item["metric"] in declared:
                raise MetricError(
                    f"the checkpoint has the metric {key!r}, which is now reduced differently: "
                    f"{[k for k in entries if k.startswith(item['metric'] + ': ')]}; use another name for the new one"
                )
            continue
        k = entries[key]
        names = ledger.layout.entries[k].groups
        for name, (ints, floats) in item["groups"].items():
            if name not in names:
                raise StateError(f"the checkpoint has metrics of {name!r}; the sources are now {list(names)}")
            row = names.index(name)
            _fill(ledger.parts[k][0][row], ints, key)
            _fill(ledger.parts[k][1][row], floats, key)


def _sparse(values: Ints | Floats, zero: Ints | Floats) -> dict[str, int | float | str]:
    """The slots that differ from `zero`; JSON has no infinities and NaN, so these become text."""
    changed = np.flatnonzero(values != zero)
    return {str(i): v if math.isfinite(v) else str(v) for i, v in zip(changed, values[changed].tolist(), strict=True)}


def _fill(row: Ints | Floats, saved: dict[str, int | float | str], key: str) -> None:
    try:
        for slot, value in saved.items():
            row[int(slot)] = float(value) if isinstance(value, str) else value
    except (IndexError, ValueError) as error:
        raise StateError(f"the saved state of the metric {key!r} is damaged: {error}") from error
