"""The rules of weights: finite, >= 0, all or none given, at any step one above 0, and where a weight is needed."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from streamsft.config_yaml import Issue, KeyPath

__all__ = ["WEIGHT_ELSEWHERE", "weight_rules"]

WEIGHT_ELSEWHERE = ("fraction", "interleave_probs", "prob", "probability", "proportion", "ratio", "sampling_weight")
"""What other tools call a weight."""

_STEP = re.compile(r"0|[1-9][0-9]*")
_HOLD = "hold"


def weight_rules(sources: Mapping[str, Any], path: KeyPath) -> Iterator[Issue]:
    """Issues with the weights of `sources`, which stand at `path`, and of those in its groups."""
    if not sources:
        yield Issue(path, "at least one source is needed")
        return
    nodes = {name: node for name, node in sources.items() if isinstance(node, dict)}
    weights = {name: node["weight"] for name, node in nodes.items() if node.get("weight") is not None}
    wrong = [issue for name, weight in weights.items() for issue in _weight_issues(weight, (*path, name, "weight"))]
    yield from wrong
    if weights and len(weights) < len(nodes):
        yield from _missing(weights, nodes, path)
    elif weights and not wrong:
        yield from _all_zero(weights, path)
    elif len(nodes) > 1 and not weights:
        yield from _uncounted(nodes, path)
    for name, node in nodes.items():
        if isinstance(node.get("sources"), dict):
            yield from weight_rules(node["sources"], (*path, name, "sources"))


def _weight_issues(weight: Any, path: KeyPath) -> Iterator[Issue]:
    if not isinstance(weight, dict):
        if not _is_weight(weight):
            yield Issue(path, f"a weight is a finite number >= 0, got {weight!r}")
        return
    for key, value in weight.items():
        if key == _HOLD:
            if not isinstance(value, bool):
                yield Issue((*path, key), f"true or false is needed, got {value!r}")
        elif not _STEP.fullmatch(key):
            yield Issue((*path, key), f"{key!r} is not a step: a weight by step has steps from 0 as keys, and hold")
        elif not _is_weight(value):
            yield Issue((*path, key), f"a weight is a finite number >= 0, got {value!r}")
    if not weight.keys() - {_HOLD}:
        yield Issue(path, "a weight by step without a step; write it as {0: 1.0, 1000: 0.2}")


def _is_weight(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and value >= 0


def _missing(weights: Mapping[str, Any], nodes: Mapping[str, Any], path: KeyPath) -> Iterator[Issue]:
    others = f"{', '.join(weights)} {'has' if len(weights) == 1 else 'have'} one"
    for name, node in nodes.items():
        keys = node.keys() - {"weight"}  # which is null where the weight is missing
        meant = difflib.get_close_matches("weight", keys, 1, 0.75) or keys & set(WEIGHT_ELSEWHERE)
        if name not in weights and not meant:  # else the key that was meant is told as unknown
            yield Issue((*path, name, "weight"), f"missing: {others}; give all of them a weight, or none")


def _all_zero(weights: Mapping[str, Any], path: KeyPath) -> Iterator[Issue]:
    """The first step at which nothing could be drawn; between the steps of schedules there is none unless at one."""
    steps = {0} | {
        int(key) for weight in weights.values() if isinstance(weight, dict) for key in weight.keys() - {_HOLD}
    }
    for step in sorted(steps):
        if not any(_at(weight, step) for weight in weights.values()):
            when = f" at step {step}" if len(steps) > 1 else ""
            yield Issue(path, f"every weight is 0{when} ({', '.join(weights)}): at least one must be above 0")
            return


def _at(weight: Any, step: int) -> float:
    """A weight at a step: that of a schedule goes over to the next linearly, or is held."""
    if not isinstance(weight, dict):
        return float(weight)
    points = sorted((int(key), float(value)) for key, value in weight.items() if key != _HOLD)
    step = min(max(step, points[0][0]), points[-1][0])
    start, value = [point for point in points if point[0] <= step][-1]
    end, later = next((point for point in points if point[0] > step), (start, value))
    return value if weight.get(_HOLD) or end == start else value + (later - value) * (step - start) / (end - start)


def _uncounted(nodes: Mapping[str, Any], path: KeyPath) -> Iterator[Issue]:
    """Without weights rows come equally often, and how many rows a streaming source has is not known."""
    for name, node in nodes.items():
        if _streams(node):
            yield Issue(
                (*path, name, "weight"),
                "missing: how many rows are streamed is not known before they are read, so it needs a weight, and "
                "those beside it too",
            )


def _streams(node: Mapping[str, Any]) -> bool:
    below = node.get("sources")
    if isinstance(below, dict):
        return any(_streams(child) for child in below.values() if isinstance(child, dict))
    return bool(node.get("streaming"))
