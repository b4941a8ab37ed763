"""What must hold between the keys of a config where preference pairs are trained on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from streamsft.config_yaml import Issue, KeyPath

__all__ = ["pair_rules"]

_PREFERENCE = "preference"


def pair_rules(data: Mapping[str, Any], sources: Iterable[tuple[KeyPath, Mapping[str, Any]]]) -> Iterator[Issue]:
    """Issues with pairs in the config `data`, whose mix has `sources`.

    Pairs that are only detected are not seen; sources of weight 0 are not looked at.
    """
    train, packing, evaluation = (_section(data, name) for name in ("train", "packing", "eval"))
    dpo = train.get("loss") == "dpo"
    trained = train.get("steps") is not None and train.get("model") != "none"
    for path, node in sources:
        given = node.get("format") if node.get("weight") != 0 else None
        if given == _PREFERENCE:
            yield from _source_rules(node, path)
            if trained and not dpo:
                what = "both answers of a pair would be trained on alike; to prefer one of them set train.loss: dpo"
                yield Issue((*path, "format"), what)
        elif dpo and isinstance(given, str) and given != "tokens":
            what = f"train.loss: dpo compares the answers of pairs (format: preference), and {given} has none"
            yield Issue((*path, "format"), what)
    if train.get("beta") is not None and not dpo:
        yield Issue(("train", "beta"), "it goes with train.loss: dpo")
    if packing.get("pairs") == "side_by_side" and packing.get("align") not in (None, 1):
        yield Issue(("packing", "align"), "pairs side by side are not aligned; share the prompt, or take align out")
    for name, node in _section(evaluation, "sets").items():
        if isinstance(node, dict) and node.get("format") == _PREFERENCE:
            what = "pairs are not evaluated; give the chosen answers in a file of another format"
            yield Issue(("eval", "sets", name, "format"), what)


def _source_rules(node: Mapping[str, Any], path: KeyPath) -> Iterator[Issue]:
    if node.get("streaming"):
        yield Issue((*path, "streaming"), "preference pairs are not streamed; they are tokenized once")
    if node.get("overflow") in ("truncate", "split"):
        what = "a preference pair is not cut: drop leaves those out that are too long (so it is by default), or error"
        yield Issue((*path, "overflow"), what)
    if node.get("train_on") == "everything":
        yield Issue((*path, "train_on"), "of preference pairs the answers are trained on, not the prompt")


def _section(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = data.get(name)
    return found if isinstance(found, dict) else {}
