"""Counts what a run consumed anew, from its audit and the stores alone, under the keys of its records."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from streamsft.sources.store import TokenStore


def recount(
    run_dir: Path,
    stores: Mapping[str, TokenStore],
    nodes: Mapping[str, Sequence[str]],
    *,
    sequence_length: int,
    after: int = 0,
) -> dict[str, float]:
    """The numbers of the steps behind `after`, with ``overflow: truncate``: per source, per mix node and of the run.

    Args:
        run_dir: the run's directory.
        stores: every source that was drawn from, by name.
        nodes: the mix nodes with the sources below them.
        sequence_length: slots per pack.
        after: a step.
    """
    documents: dict[str, list[tuple[int, int]]] = defaultdict(list)
    packs = 0
    for file in (run_dir / "audit").glob("rank-*.jsonl"):
        for record in map(json.loads, file.read_text().splitlines()):
            if record["step"] > after:
                packs += len(record["packs"])
                for pack in record["packs"]:
                    for source, row, pass_index in pack["rows"]:
                        documents[source].append((row, pass_index))
    measured = {name: _measured(stores[name], found, sequence_length) for name, found in documents.items()}
    total: dict[str, Any] = Counter()
    for numbers in measured.values():
        total.update({key: numbers[key] for key in ("samples", "tokens", "supervised_tokens")})
    record = {f"data/{key}": value for key, value in total.items()}
    record |= {"data/packs": packs, "data/slots": packs * sequence_length, "data/documents": total["samples"]}
    record["data/packing_efficiency"] = total["tokens"] / record["data/slots"]
    record["data/documents_per_pack"] = total["samples"] / packs
    for node, members in {**{name: [name] for name in measured}, **nodes}.items():
        present = [measured[name] for name in members if name in measured]
        lengths, turns = (np.concatenate([numbers[key] for numbers in present]) for key in ("lengths", "turns"))
        for key in ("samples", "tokens", "supervised_tokens", "truncated", "truncated_tokens"):
            record[f"data_{node}/{key}"] = sum(numbers[key] for numbers in present)
        record[f"data_{node}/length_mean"] = int(lengths.sum()) / len(lengths)
        record[f"data_{node}/length_max"] = int(lengths.max())
        record[f"data_{node}/supervised_turns_mean"] = int(turns.sum()) / len(turns)
        record[f"data_{node}/supervised_turns_p50"] = float(np.quantile(turns, 0.5, method="inverted_cdf"))
        for key in ("samples", "tokens"):
            record[f"data_{node}/share_{key}"] = record[f"data_{node}/{key}"] / total[key]
    for name, numbers in measured.items():
        record[f"data_{name}/passes"] = numbers["samples"] / _drawable(stores[name], sequence_length)
    return record


def _drawable(store: TokenStore, sequence_length: int) -> int:
    """Rows that leave something to train on."""
    return int((store.first_supervised < np.minimum(store.lengths, sequence_length)).sum())


def _measured(store: TokenStore, found: Sequence[tuple[int, int]], sequence_length: int) -> dict[str, Any]:
    rows = np.array([row for row, _ in found])
    places = np.searchsorted(store.row_numbers, rows)
    assert (store.row_numbers[places] == rows).all()
    _, masks = store.read(places)
    lengths, supervised, turns, cut = [], 0, [], []
    for mask in masks:
        labels = np.array(mask[:sequence_length], np.int8)
        labels[0] = 0
        lengths.append(len(labels))
        supervised += int(labels.sum())
        turns.append(int((np.diff(labels) == 1).sum()))
        cut.append(len(mask) - len(labels))
    return {
        "samples": len(found),
        "tokens": sum(lengths),
        "supervised_tokens": supervised,
        "truncated": sum(tokens > 0 for tokens in cut),
        "truncated_tokens": sum(cut),
        "lengths": np.array(lengths),
        "turns": np.array(turns),
    }
