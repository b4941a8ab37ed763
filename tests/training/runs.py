"""Small runs for the tests: two sources of made-up tokens, a tiny model, and what they leave behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from streamsft.comm import Comm, LocalComm
from streamsft.metrics.aggregator import Aggregator
from streamsft.metrics.sinks import Sink
from streamsft.sources.store import TokenStore
from streamsft.stream.interleave import Interleave
from streamsft.stream.loader import Loader
from streamsft.stream.packer import Packer
from streamsft.training.checkpoint import Checkpoints
from streamsft.training.evaluating import Evaluation
from streamsft.training.loop import train
from streamsft.training.model import tiny_model
from streamsft.training.settings import RUN_METRICS, TrainResult, TrainSettings
from streamsft.types import Shard

LENGTH = 32
TIMED = ("per_second", "data_wait_seconds", "data_wait_seconds_total", "prefetch_depth", "prefetch_depth_total")
"""What the keys end with whose numbers depend on how long things took."""
VOCABULARY = 300


def rows(count: int, seed: int, *, supervised: bool = True) -> list[dict[str, Any]]:
    """Rows of 4 to 24 tokens that count upwards, so that there is something to learn."""
    numbers = np.random.default_rng(seed)
    result = []
    for _ in range(count):
        n = int(numbers.integers(4, 25))
        ids = (int(numbers.integers(0, VOCABULARY)) + np.arange(n)) % VOCABULARY
        mask = (np.arange(n) >= n // 3) if supervised else np.zeros(n, bool)
        result.append({"input_ids": ids.astype(np.int32), "loss_mask": mask})
    return result


def make_loader(
    *,
    seed: int = 7,
    batch: int = 4,
    comm: Comm | None = None,
    weights: tuple[float, float] = (2, 1),
    background: bool = True,
    workers: int = 0,
) -> Loader:
    comm = comm or LocalComm()
    sources = [TokenStore.from_rows(rows(count, number), name=f"s{number}") for number, count in enumerate((150, 60))]
    packer = Packer(Interleave(sources, weights=list(weights), seed=seed), LENGTH, lookahead=150)
    return Loader(
        packer,
        global_batch_size=batch,
        dp=Shard(comm.rank, comm.size),
        background=background,
        workers=workers,
    )


class ListSink:
    """A sink that keeps its records, also over legs."""

    def __init__(self) -> None:
        self.records: list[tuple[int, dict[str, float]]] = []
        self.closed = 0

    def write(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        self.records.append((step, dict(metrics)))

    def rewind(self, step: int) -> None:
        self.records = [record for record in self.records if record[0] <= step]

    def close(self) -> None:
        self.closed += 1


def run(
    run_dir: Path,
    steps: int,
    model: str | torch.nn.Module = "none",
    *,
    loader: Loader | None = None,
    sink: ListSink | Callable[[], Sequence[Sink]] | None = None,
    comm: Comm | None = None,
    fresh: bool = False,
    evaluation: Evaluation | None = None,
    **settings: Any,
) -> TrainResult:
    """One leg."""
    comm = comm or LocalComm()
    loader = loader or make_loader(comm=comm)
    if model == "small":
        model = small_model()
    chosen = {"save_every": 4, "log_every": 2, "audit": True, "lr": 1e-2, **settings}
    return train(
        loader,
        model,
        settings=TrainSettings(steps=steps, run_dir=run_dir, **chosen),
        aggregator=Aggregator(loader.sources, run_metrics=RUN_METRICS, comm=comm),
        sinks=[sink] if isinstance(sink, ListSink) else sink or (),
        comm=comm,
        fresh=fresh,
        vocabulary=VOCABULARY,
        evaluation=evaluation,
    )


def flip(path: Path) -> None:
    """Invert the bits of a byte in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def resealed(path: Path, *, step: int | None = None) -> None:
    """Give the checkpoint in directory `path` a manifest of the files that are there now."""
    manifest = path / "manifest.json"
    record = json.loads(manifest.read_text())
    manifest.unlink()
    Checkpoints(path.parent.parent).seal(
        path, record["step"] if step is None else step, fingerprint=record["fingerprint"], model=record["model"]
    )


def small_model(seed: int = 1) -> torch.nn.Module:
    return tiny_model(VOCABULARY, sequence_length=LENGTH, seed=seed, hidden=32, heads=2)


def audit(run_dir: Path, rank: int = 0) -> list[str]:
    return (run_dir / "audit" / f"rank-{rank}.jsonl").read_text().splitlines()


def packs_by_step(run_dir: Path) -> dict[int, list[Any]]:
    """The packs of each step, joined over ranks in rank order."""
    records = [json.loads(line) for path in (run_dir / "audit").iterdir() for line in path.read_text().splitlines()]
    steps: dict[int, list[Any]] = {}
    for record in sorted(records, key=lambda r: (r["step"], r["rank"])):
        steps.setdefault(record["step"], []).extend(record["packs"])
    return steps


def weights(run_dir: Path) -> bytes:
    name = (run_dir / "checkpoints" / "latest").read_text().strip()
    return (run_dir / "checkpoints" / name / "model" / "model.safetensors").read_bytes()
