import random
from pathlib import Path

import numpy as np
import torch

from streamsft.comm import LocalComm
from streamsft.metrics.aggregator import Aggregator
from streamsft.training.checkpoint import Checkpoints
from streamsft.training.snapshot import Parts, restore, save, seed_generators
from tests.training.runs import make_loader


def draws() -> list[float]:
    return [
        float(torch.rand(())),
        float(np.random.random()),
        float(np.random.normal()),
        random.random(),
        random.gauss(0, 1),
    ]


def test_the_generators_of_torch_numpy_and_python_go_on_where_they_were(tmp_path: Path) -> None:
    loader = make_loader(background=False)
    parts = Parts(loader=loader, aggregator=Aggregator(loader.sources), model=None, optimizer=None, skipped_steps=3)
    seed_generators(1, step=5, rank=0)
    draws()
    save(parts, step=0, kind="none", keep=1, run_dir=tmp_path, audit=None, comm=LocalComm())
    expected = draws()
    stored = Checkpoints(tmp_path).newest()
    assert stored is not None
    parts.skipped_steps = 0
    restore(parts, stored, seed=1, comm=LocalComm())
    assert draws() == expected
    assert parts.skipped_steps == 3


def test_each_rank_and_step_has_random_numbers_of_its_own() -> None:
    seen = set()
    for rank in range(2):
        for step in range(2):
            seed_generators(1, step=step, rank=rank)
            seen.update(draws())
    assert len(seen) == 4 * 5
