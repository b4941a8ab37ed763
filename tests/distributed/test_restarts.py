"""A killed rank under a launcher that restarts: the job comes back by itself, and trains on what it would have."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from streamsft.comm import connect
from streamsft.metrics.sinks import JsonlSink
from streamsft.stream.loader import Loader
from tests import processes
from tests.training.runs import TIMED, make_loader, packs_by_step, run

RANKS = 2
STEPS = 24
KILLED = {0: (1, 6), 1: (0, 11), 2: (1, 17)}
"""Restarts so far → the rank that is killed then, and in which step."""


@final
class Killing:
    """A loader whose process is killed where its batch is asked for."""

    def __init__(self, loader: Loader, rank: int) -> None:
        self._loader, self._rank = loader, rank

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[Any]:
        doomed = KILLED.get(int(os.environ["TORCHELASTIC_RESTART_COUNT"]))
        for batch in self._loader:
            if doomed == (self._rank, batch.step):
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch


def rank(run_dir: Path) -> None:
    comm = connect()
    loader: Any = Killing(make_loader(comm=comm), comm.rank)
    run(run_dir, STEPS, comm=comm, loader=loader, sink=lambda: [JsonlSink(run_dir / "metrics.jsonl")])


def launched(run_dir: Path, restarts: int) -> None:
    """In a process of its own: what torchrun does, with ranks that are forks of it."""
    one_node = {"min_nodes": 1, "max_nodes": 1, "nproc_per_node": RANKS, "monitor_interval": 0.1}
    place = {"run_id": "restarts", "rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}
    config = LaunchConfig(**one_node, **place, max_restarts=restarts, start_method="fork")
    elastic_launch(config, rank)(run_dir)


def records(run_dir: Path) -> list[tuple[int, dict[str, float]]]:
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [(r["step"], {k: v for k, v in r["metrics"].items() if not k.endswith(TIMED)}) for r in lines]


def test_ranks_killed_three_times_in_one_launch_end_with_the_audit_of_an_undisturbed_run(tmp_path: Path) -> None:
    run(tmp_path / "whole", STEPS, sink=lambda: [JsonlSink(tmp_path / "whole" / "metrics.jsonl")])
    ended = processes.run(launched, tmp_path / "broken", len(KILLED))
    assert ended.returncode == 0, ended.stderr
    legs = [json.loads(line) for line in (tmp_path / "broken" / "legs.jsonl").read_text().splitlines()]
    assert [leg["step"] for leg in legs] == [0, 4, 8, 16]
    assert packs_by_step(tmp_path / "broken") == packs_by_step(tmp_path / "whole")
    assert records(tmp_path / "broken") == records(tmp_path / "whole")
