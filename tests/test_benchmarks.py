"""Every benchmark runs, and prints the figures that its README promises."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path

import pytest

from tests import processes

FOLDER = Path(__file__).parents[1] / "benchmarks"
PROMISED = {
    name: set(re.findall(r"`(\w+)`", figures))
    for name, figures in re.findall(
        r"^\| `(\w+)\.py` \|.*\| (.*) \|$", (FOLDER / "README.md").read_text(), re.MULTILINE
    )
}


def measure(script: Path) -> None:
    """In a process of its own: what `python SCRIPT --quick --json` does."""
    sys.path.insert(0, str(script.parent))
    sys.argv = [str(script), "--quick", "--json"]
    runpy.run_path(str(script), run_name="__main__")


def test_every_script_with_figures_is_described() -> None:
    scripts = {path.stem for path in FOLDER.glob("*.py") if "def main()" in path.read_text()}
    assert scripts == PROMISED.keys()


SHOWN_ELSEWHERE = {
    "survival",
    "failures",
    "recount",
    "foresight",
    "loops",
    "divided",
    "ray_engine",
    "ray_train",
}  # take long, and other tests show it too


@pytest.mark.parametrize("name", sorted(PROMISED.keys() - SHOWN_ELSEWHERE))
def test_a_benchmark_prints_its_figures_as_json_at_last(name: str) -> None:
    code, printed, err = processes.run(measure, FOLDER / f"{name}.py")
    assert code == 0, err
    figures = json.loads(printed.splitlines()[-1])
    assert figures.keys() == PROMISED[name]
    assert all(isinstance(value, float) for value in figures.values())
