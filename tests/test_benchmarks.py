"""Every benchmark runs, and prints the figures that its README promises."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
PROMISED = {
    name: set(re.findall(r"`(\w+)`", figures))
    for name, figures in re.findall(
        r"^\| `(\w+)\.py` \|.*\| (.*) \|$", (FOLDER / "README.md").read_text(), re.MULTILINE
    )
}


def test_every_script_with_figures_is_described() -> None:
    scripts = {path.stem for path in FOLDER.glob("*.py") if "def main()" in path.read_text()}
    assert scripts == PROMISED.keys()


SHOWN_ELSEWHERE = {"survival", "recount", "foresight"}  # processes that take long, for what other tests show too


@pytest.mark.parametrize("name", sorted(PROMISED.keys() - SHOWN_ELSEWHERE))
def test_a_benchmark_prints_its_figures_as_json_at_last(name: str) -> None:
    command = [sys.executable, str(FOLDER / f"{name}.py"), "--quick", "--json"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    figures = json.loads(printed.splitlines()[-1])
    assert figures.keys() == PROMISED[name]
    assert all(isinstance(value, float) for value in figures.values())
