"""Runs in each framework are killed twice by SIGKILL on real data, and trained on what undisturbed ones are."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

from tests import processes

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "loops.py"


def quick(data: Path) -> None:
    """In a process of its own: what the script does."""
    sys.path.insert(0, str(SCRIPT.parent))
    sys.argv = [str(SCRIPT), "--quick", "--json", "--data", str(data)]
    runpy.run_path(str(SCRIPT), run_name="__main__")


def test_what_killed_runs_are_given_and_their_losses_equal_those_of_whole_runs(test_data: Path) -> None:
    ended = processes.run(quick, test_data / "gsm8k" / "train.jsonl")
    assert ended.returncode == 0, ended.stderr
    frameworks = ("trainer", "lightning", "accelerate")
    expected = {f"{name}_{what}": 1.0 for name in frameworks for what in ("audit", "losses")}
    assert json.loads(ended.stdout.splitlines()[-1]) == expected | {"all_given_the_same": 1.0}
