"""Counting what runs consumed from their audits and stores, as someone from outside would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

import streamsft as ss
from streamsft.demodata.files import write_demo

COUNTED = ("samples", "tokens", "supervised_tokens", "truncated", "truncated_tokens")


@dataclass
class Counts:
    """What was consumed.

    Attributes:
        rows: by source, row numbers of the input, int64[samples], in no order.
        packs: number of packs.
    """

    rows: dict[str, NDArray[np.int64]]
    packs: int


def quiet() -> Console:
    """Where tables go that nobody asked for."""
    return Console(file=open(os.devnull, "w"))


def command(config: Path, *overrides: str, processes: int = 1) -> list[str]:
    """The command line that trains on so many processes."""
    start = [sys.executable, "-m", "streamsft"]
    if processes > 1:
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        start += ["-m", "streamsft"]
    return [*start, "train", str(config), "--quiet", *overrides]


def train(config: Path, *overrides: str, processes: int = 1) -> None:
    """Train to the end."""
    done = subprocess.run(command(config, *overrides, processes=processes), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"training ended with exit code {done.returncode}\n{done.stderr[-3000:]}")


def demo_config(folder: Path, rows: int) -> Path:
    """The config of generated data: three sources of `rows` rows, and a tokenizer."""
    return write_demo(folder, rows=rows).config


def lines(run: Path) -> Iterator[dict[str, Any]]:
    """The audit lines of all ranks, rank after rank."""
    for file in sorted((run / "audit").glob("rank-*.jsonl"), key=lambda path: int(path.stem[5:])):
        with file.open() as text:
            yield from map(json.loads, text)


def consumed(run: Path) -> Counts:
    """What the audit of a run holds."""
    rows: dict[str, list[int]] = {}
    packs = 0
    for line in lines(run):
        packs += len(line["packs"])
        for pack in line["packs"]:
            for source, row, _ in pack["rows"]:
                rows.setdefault(source, []).append(row)
    return Counts({source: np.array(found) for source, found in rows.items()}, packs)


def counted(store: ss.TokenStore, rows: NDArray[np.int64], sequence_length: int) -> dict[str, int]:
    """What rows of a store give of each of `COUNTED`, cut at `sequence_length` tokens."""
    places = np.searchsorted(store.row_numbers, rows)
    if not np.array_equal(store.row_numbers[places], rows):
        raise SystemExit(f"the audit has rows of {store.name} that are not in its store")
    _, masks = store.read(np.arange(len(store)))
    labels = np.array([int(mask[1:sequence_length].sum()) for mask in masks])  # the first token never has one
    lengths = np.array([len(mask) for mask in masks])
    kept = np.minimum(lengths, sequence_length)
    return {
        "samples": len(rows),
        "tokens": int(kept[places].sum()),
        "supervised_tokens": int(labels[places].sum()),
        "truncated": int((lengths > kept)[places].sum()),
        "truncated_tokens": int((lengths - kept)[places].sum()),
    }


def by_source(run: Path, stores: Mapping[str, ss.TokenStore], sequence_length: int) -> dict[str, dict[str, int]]:
    """`COUNTED` of each source that the audit of a run names."""
    rows = consumed(run).rows
    return {source: counted(stores[source], rows[source], sequence_length) for source in sorted(rows)}


def record_of(
    run: Path, stores: Mapping[str, ss.TokenStore], nodes: Mapping[str, Sequence[str]], sequence_length: int
) -> dict[str, float]:
    """The totals that the last record of a run must have, by key."""
    counts = by_source(run, stores, sequence_length)
    packs = consumed(run).packs
    whole = {name: sum(source[name] for source in counts.values()) for name in COUNTED}
    record: dict[str, float] = {f"data/{name}": whole[name] for name in COUNTED[:3]}
    record |= {"data/packs": packs, "data/slots": packs * sequence_length}
    record["data/packing_efficiency"] = whole["tokens"] / record["data/slots"]
    for node, members in {**{source: [source] for source in counts}, **nodes}.items():
        of_node = {name: sum(counts[m][name] for m in members if m in counts) for name in COUNTED}
        record |= {f"data_{node}/{name}": value for name, value in of_node.items()}
        for share in ("samples", "tokens"):
            record[f"data_{node}/share_{share}"] = of_node[share] / whole[share]
        record[f"data_{node}/length_mean"] = of_node["tokens"] / of_node["samples"]
    return record
