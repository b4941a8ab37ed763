"""What must hold between the keys of a config: weights, names, one kind of input per source.

These rules read the plain values, so that they are all told at once with the types that are wrong,
each at the key it is about.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from streamsft.config_yaml import Issue, KeyPath, dotted
from streamsft.errors import ConfigError
from streamsft.types import check_name

__all__ = ["INPUTS", "WEIGHT_ELSEWHERE", "check_rules"]

INPUTS = ("path", "store", "hub")
"""A source names exactly one of these."""

WEIGHT_ELSEWHERE = ("fraction", "interleave_probs", "prob", "probability", "proportion", "ratio", "sampling_weight")
"""What other tools call a weight."""

_FOR_HUB = ("config", "split", "revision", "data_files")
_FOR_TEXT = ("format", "columns", "train_on", "on_bad_row")
_MIX = "mix"


def check_rules(data: Mapping[str, Any], without_tokenizer: Collection[str] = ()) -> list[Issue]:
    """Issues with the mix of the config `data`, and with what a source needs elsewhere in it.

    Sources in `without_tokenizer` need none.
    """
    mix = data.get(_MIX)
    if not isinstance(mix, dict) or not isinstance(mix.get("sources"), dict):
        return []
    issues = list(_mapping_rules(mix["sources"], (_MIX, "sources")))
    seen: dict[str, KeyPath] = {_MIX: (_MIX,)}
    texts = []
    for path, node in _nodes(mix["sources"], (_MIX, "sources")):
        issues.extend(_name_rules(path, seen))
        if "sources" not in node:
            issues.extend(_source_rules(node, path))
            if "store" not in node and path[-1] not in without_tokenizer:
                texts.append(path)
    if texts and data.get("tokenizer") is None:
        issues.append(Issue(("tokenizer",), f"missing: {dotted(texts[0])} is text and needs one"))
    return issues


def _nodes(sources: Mapping[str, Any], path: KeyPath) -> Iterator[tuple[KeyPath, Mapping[str, Any]]]:
    for name, node in sources.items():
        if isinstance(node, dict):
            yield (*path, name), node
            if isinstance(node.get("sources"), dict):
                yield from _nodes(node["sources"], (*path, name, "sources"))


def _name_rules(path: KeyPath, seen: dict[str, KeyPath]) -> Iterator[Issue]:
    name = str(path[-1])
    try:
        check_name(name)
    except ConfigError as error:
        yield Issue(path, str(error))
    if name in seen:
        yield Issue(path, f"the name {name!r} is taken by {dotted(seen[name])}: names are unique over the whole mix")
    seen.setdefault(name, path)


def _source_rules(node: Mapping[str, Any], path: KeyPath) -> Iterator[Issue]:
    given = [key for key in INPUTS if node.get(key) is not None]
    if len(given) != 1:
        what = f"has {' and '.join(given)}: keep one" if given else "is missing"
        yield Issue(path, f"a source names one of {', '.join(INPUTS)}; this one {what}")
    if "hub" not in given:
        for key in _FOR_HUB:
            if key in node:
                yield Issue((*path, key), f"{key!r} goes with 'hub', and this source has none")
    if given == ["store"]:
        for key in _FOR_TEXT:
            if key in node:
                yield Issue((*path, key), f"{key!r} is about text, and a store holds tokens and masks already")


def _mapping_rules(sources: Mapping[str, Any], path: KeyPath) -> Iterator[Issue]:
    """The rules of weights: finite, >= 0, one above 0, all or none given."""
    if not sources:
        yield Issue(path, "at least one source is needed")
        return
    nodes = {name: node for name, node in sources.items() if isinstance(node, dict)}
    weights = {name: node["weight"] for name, node in nodes.items() if node.get("weight") is not None}
    wrong = False
    for name, weight in weights.items():
        if problem := _weight_problem(weight):
            wrong = True
            yield Issue((*path, name, "weight"), problem)
    if weights and len(weights) < len(nodes):
        others = f"{', '.join(weights)} {'has' if len(weights) == 1 else 'have'} one"
        for name, node in nodes.items():
            meant = difflib.get_close_matches("weight", node, 1, 0.75) or node.keys() & set(WEIGHT_ELSEWHERE)
            if name not in weights and not meant:  # else the key that was meant is told as unknown
                yield Issue((*path, name, "weight"), f"missing: {others}; give all of them a weight, or none")
    elif weights and not wrong and not any(weights.values()):
        yield Issue(path, f"every weight is 0 ({', '.join(weights)}): at least one must be above 0")
    for name, node in nodes.items():
        if isinstance(node.get("sources"), dict):
            yield from _mapping_rules(node["sources"], (*path, name, "sources"))


def _weight_problem(weight: Any) -> str | None:
    number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if number and math.isfinite(weight) and weight >= 0:
        return None
    return f"a weight is a finite number >= 0, got {weight!r}"
