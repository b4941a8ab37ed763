"""SIGKILL at any moment: what is resumed equals what was never interrupted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamsft.metrics.sinks import JsonlSink
from tests.training.forks import in_fork
from tests.training.runs import TIMED, audit, make_loader, run, small_model, weights

STEPS = 12


@pytest.fixture(scope="module", autouse=True)
def _everything_imported() -> None:
    """What is imported before the forks need not be imported in each."""
    make_loader()
    small_model()


def leg(run_dir: Path, model: str = "none", steps: int = STEPS) -> None:
    run(run_dir, steps, model, sink=lambda: [JsonlSink(run_dir / "metrics.jsonl")], keep=2, save_every=3)


def records(run_dir: Path) -> list[tuple[int, dict[str, float]]]:
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [(r["step"], {k: v for k, v in r["metrics"].items() if not k.endswith(TIMED)}) for r in lines]


def test_killed_at_each_access_to_the_disk_in_turn(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert in_fork(lambda: leg(whole)) == 0
    number, kills = 1, 0
    while in_fork(lambda: leg(broken), below=broken, kill_at=number) == -9:
        number, kills = number + 1, kills + 1
    assert kills > 30
    assert audit(broken) == audit(whole)
    assert records(broken) == records(whole)
    names = {p.name for p in (whole / "checkpoints").iterdir()}
    assert {p.name for p in (broken / "checkpoints").iterdir()} == names


def test_killed_five_times_with_a_model_the_weights_have_the_same_bits(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert in_fork(lambda: leg(whole, "small")) == 0
    for number in (25, 42, 30, 38, 33):
        assert in_fork(lambda n=number: leg(broken, "small"), below=broken, kill_at=number) == -9
    assert in_fork(lambda: leg(broken, "small")) == 0
    assert audit(broken) == audit(whole)
    assert records(broken) == records(whole)
    assert weights(broken) == weights(whole)


def test_killed_in_its_first_run_before_any_checkpoint_it_starts_over(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert in_fork(lambda: leg(whole, steps=2)) == 0
    for number in (1, 2, 3, 5, 8):
        assert in_fork(lambda n=number: leg(broken, steps=2), below=broken, kill_at=number) == -9
    assert in_fork(lambda: leg(broken, steps=2)) == 0
    assert audit(broken) == audit(whole)
    assert records(broken) == records(whole)
