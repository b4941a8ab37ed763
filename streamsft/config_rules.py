"""What must hold between the keys of a config: names, one kind of input per source, what goes with what.

These rules read the plain values, so that they are all told at once with the types that are wrong,
each at the key it is about.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from streamsft.config_pairs import pair_rules
from streamsft.config_weights import weight_rules
from streamsft.config_yaml import Issue, KeyPath, dotted
from streamsft.errors import ConfigError
from streamsft.types import check_name

__all__ = ["HELD", "INPUTS", "check_rules"]

INPUTS = ("path", "store", "hub")
"""A source names exactly one of these."""

HELD = ".holdout"
"""What the rows that a source holds out are called, behind its name."""

_FOR_HUB = ("config", "split", "revision", "data_files")
_FOR_TEXT = ("format", "columns", "train_on", "on_bad_row")
_MIX = "mix"


def check_rules(data: Mapping[str, Any], without_tokenizer: Collection[str] = ()) -> list[Issue]:
    """Issues with the mix of the config `data`, with what a source needs elsewhere in it, with sets to evaluate, and
    with how it is trained.

    Sources in `without_tokenizer` need none.
    """
    mix, train = data.get(_MIX), data.get("train")
    issues = list(_train_rules(train)) if isinstance(train, dict) else []
    if not isinstance(mix, dict) or not isinstance(mix.get("sources"), dict):
        return issues
    issues.extend(weight_rules(mix["sources"], (_MIX, "sources")))
    seen: dict[str, KeyPath] = {_MIX: (_MIX,)}
    texts = []
    for path, node in _nodes(mix["sources"], (_MIX, "sources")):
        issues.extend(_name_rules(path, seen))
        if "sources" not in node:
            issues.extend(_source_rules(node, path))
            issues.extend(_streaming_rules(node, path))
            issues.extend(_group_rules(node, path))
            if "store" not in node and node.get("format") != "tokens" and path[-1] not in without_tokenizer:
                texts.append(path)
    issues.extend(_eval_rules(data.get("eval"), mix["sources"], texts))
    nodes = [(path, node) for path, node in _nodes(mix["sources"], (_MIX, "sources")) if "sources" not in node]
    issues.extend(pair_rules(data, nodes))
    for path, node in _nodes(mix["sources"], (_MIX, "sources")):
        if node.get("holdout") is not None and f"{path[-1]}{HELD}" in seen:
            taken = dotted(seen[f"{path[-1]}{HELD}"])
            issues.append(Issue((*path, "holdout"), f"its held rows are called {path[-1]}{HELD}, the name of {taken}"))
    if texts and data.get("tokenizer") is None:
        issues.append(
            Issue(
                ("tokenizer",),
                f"missing: {dotted(texts[0])} is text and needs one; if it holds tokens, say format: tokens there",
            )
        )
    return issues


def _eval_rules(section: Any, sources: Mapping[str, Any], texts: list[KeyPath]) -> Iterator[Issue]:
    """Sets are sources, or the rows that one of the mix holds out; those that are text are added to `texts`."""
    sets = section.get("sets") if isinstance(section, dict) else None
    held = {f"{path[-1]}{HELD}" for path, node in _nodes(sources, ()) if node.get("holdout") is not None}
    for name, value in sets.items() if isinstance(sets, dict) else ():
        path: KeyPath = ("eval", "sets", name)
        try:
            check_name(str(name), "evaluation set")
        except ConfigError as error:
            yield Issue(path, str(error))
        if isinstance(value, dict):
            yield from _source_rules(value, path)
            if "store" not in value and value.get("format") != "tokens":
                texts.append(path)
        elif isinstance(value, str) and value not in held:
            known = f"those are {', '.join(sorted(held))}" if held else "no source has a holdout"
            yield Issue(path, f"{value!r} is not what a source of the mix holds out; {known}; for files give a path")


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


def _train_rules(train: Mapping[str, Any]) -> Iterator[Issue]:
    """Steps to skip are a first and a last one; saving beside training goes with weights in parts."""
    if train.get("async_save") is True and train.get("parallel") != "fsdp":
        yield Issue(("train", "async_save"), "it goes with parallel: fsdp; else checkpoints are written between steps")
    stretches = train.get("skip_steps")
    for at, stretch in enumerate(stretches if isinstance(stretches, list) else ()):
        numbers = isinstance(stretch, list) and all(type(step) is int for step in stretch)
        if not numbers or len(stretch) != 2 or not 1 <= stretch[0] <= stretch[1]:
            yield Issue(
                ("train", "skip_steps", at), f"{stretch!r} is not a first and a last step from 1, such as [120, 140]"
            )


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
            if key in node and not (key == "format" and node[key] == "tokens"):
                yield Issue((*path, key), f"{key!r} is about text, and a store holds tokens and masks already")
    elif node.get("format") == "text" and node.get("train_on") is not None:
        what = "'train_on' is about conversations; plain text (format: text) is trained on whole"
        yield Issue((*path, "train_on"), what)
    elif node.get("format") == "tokens":
        for key in ("columns", "train_on", "holdout"):
            if node.get(key) is not None:
                yield Issue(
                    (*path, key), f"{key!r} is about text, and the rows of this source are tokens (format: tokens)"
                )
        if "hub" in given and not node.get("streaming"):
            yield Issue(
                (*path, "format"), "tokens of the hub are read with streaming: true; or download them to a path"
            )
    if node.get("extras") is not None and (node.get("streaming") or "hub" in given):
        yield Issue((*path, "extras"), "they are read of token stores, which are neither streamed nor on the hub")


def _streaming_rules(node: Mapping[str, Any], path: KeyPath) -> Iterator[Issue]:
    if node.get("store") is not None:
        if node.get("streaming"):
            yield Issue((*path, "streaming"), "a store is mapped from disk as it is; streaming is for path and hub")
        if node.get("holdout") is not None:
            yield Issue((*path, "holdout"), "a store no longer has the rows to decide by; hold out of its path or hub")
    if node.get("shuffle_window") is not None:
        if not node.get("streaming"):
            yield Issue(
                (*path, "shuffle_window"), "it goes with streaming: true; else each pass is shuffled as a whole"
            )
        elif node.get("shuffle") == "none":
            yield Issue((*path, "shuffle_window"), "it has no effect beside shuffle: none; keep one")


def _group_rules(node: Mapping[str, Any], path: KeyPath) -> Iterator[Issue]:
    by_groups = node.get("shuffle") == "row_groups"
    if node.get("shuffle_groups") is not None and not by_groups:
        yield Issue((*path, "shuffle_groups"), "it goes with shuffle: row_groups; else rows are shuffled, not groups")
    if node.get("store") is None:
        for key in ("tier", "io"):
            if node.get(key) is not None:
                yield Issue((*path, key), f"{key!r} is about row groups, so it goes with 'store', of Parquet files")
        if by_groups:
            yield Issue((*path, "shuffle"), "row_groups are those of a 'store' of Parquet files; else use rows or none")
