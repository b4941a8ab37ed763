"""Recounting what a run was given from its audit and its stores, as someone from outside would."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from streamsft.sources.store import TokenStore

__all__ = ["Recount", "audit_lines", "recount"]


def audit_lines(run: Path) -> dict[int, list[dict[str, Any]]]:
    """The lines of each step, by rank."""
    steps: dict[int, list[dict[str, Any]]] = {}
    for file in sorted((run / "audit").glob("rank-*.jsonl"), key=lambda path: int(path.stem[5:])):
        for line in file.read_text().splitlines():
            record = json.loads(line)
            steps.setdefault(record["step"], []).append(record)
    return steps


@dataclass
class Recount:
    """What an audit says of each source; rows are cut at so many tokens."""

    samples: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    supervised: Counter[str] = field(default_factory=Counter)
    cut: Counter[str] = field(default_factory=Counter)
    rows: dict[str, set[int]] = field(default_factory=dict)
    documents: int = 0


def recount(run: Path, stores: Mapping[str, TokenStore], limit: int) -> Recount:
    """Count what the steps of a run were given, under `overflow: truncate`."""
    found = Recount()
    for lines in audit_lines(run).values():
        for line in lines:
            for source, row, _ in (triple for pack in line["packs"] for triple in pack["rows"]):
                store = stores[source]
                at = int(np.searchsorted(store.row_numbers, row))
                mask = store.read(np.array([at]))[1][0]
                found.documents += 1
                found.samples[source] += 1
                found.tokens[source] += min(limit, len(mask))
                found.supervised[source] += int(mask[1:limit].sum())
                found.cut[source] += max(0, len(mask) - limit)
                found.rows.setdefault(source, set()).add(at)
    return found
