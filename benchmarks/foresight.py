"""Whether what is told of a run's data before, and of a step of it, equals what the run's audit says.

    python benchmarks/foresight.py [--json] [--quick] [--config CONFIG] [--steps STEPS]

A run on data alone, with 8 packs a step, is trained on two processes with a worker each. `forecast` is compared with
its audit source by source; `explain`, planning as one process, at 20 steps drawn at random and the last one, whose
time is taken. Without a config the demo's data are used. Takes minutes.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from audits import by_source, demo_config, lines, quiet, train
from measuring import arguments, report

import streamsft as ss

EXPLAINED = 20


def forecast_differs(config: Path, overrides: list[str], run: Path) -> list[str]:
    """What the forecast says otherwise than the audit, one text each."""
    loaded = ss.load_config(config, overrides)
    said = ss.forecast(loaded, console=quiet()).to_json()["sources"]
    stores = ss.tokenize(loaded, console=quiet())
    seen = by_source(run, stores, loaded.sequence_length)
    names = {
        "samples": "samples",
        "tokens": "tokens",
        "supervised_tokens": "supervised_tokens",
        "cut_samples": "truncated",
        "cut_tokens": "truncated_tokens",
    }
    return [
        f"{source}: {name} {said.get(source, {}).get(name)}, counted {numbers[key]}"
        for source, numbers in seen.items()
        for name, key in names.items()
        if said.get(source, {}).get(name) != numbers[key]
    ] + [f"{source} is not in the audit" for source in said.keys() - seen.keys() if said[source]["samples"]]


def audited(run: Path, steps: set[int]) -> dict[int, list[Any]]:
    """The packs of some steps, over all ranks."""
    found: dict[int, list[Any]] = {step: [] for step in steps}
    for line in lines(run):
        if line["step"] in found:
            found[line["step"]] += line["packs"]
    return found


def explained(config: Path, overrides: list[str], step: int) -> tuple[list[Any], float]:
    """The packs of a step as the command tells them, and its seconds."""
    command = [sys.executable, "-m", "streamsft", "explain", str(config), *overrides, "--step", str(step), "--json"]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    packs = json.loads(done.stdout)["packs"]
    return [{"digest": pack["digest"], "rows": pack["rows"]} for pack in packs], time.perf_counter() - start


def main() -> int:
    """Train, compare, and print the figures."""
    parser = arguments("Compare forecasts and explanations with an audit.")
    parser.add_argument("--config", type=Path, help="a config file; by default the demo's")
    parser.add_argument("--steps", type=int, help="length of the run")
    options: argparse.Namespace = parser.parse_args()
    steps = options.steps or (60 if options.quick else 100_000)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = (options.config or demo_config(folder / "demo", 300)).absolute()
        overrides = ["loader.global_batch_size=8", f"train.steps={steps}"]
        settings = [f"train.run_dir={folder / 'run'}", f"train.save_every={steps}"]
        settings += ["train.model=none", "train.audit=true"]
        settings += ["metrics.sinks=[]", f"metrics.log_every={max(1, steps // 100)}", "loader.workers=1"]
        train(config, *overrides, *settings, processes=2)
        wrong = forecast_differs(config, overrides, folder / "run")
        chosen = random.Random(7).sample(range(1, steps + 1), 3 if options.quick else EXPLAINED)
        expected = audited(folder / "run", {*chosen, steps})
        told = {step: explained(config, overrides, step) for step in (*chosen, steps)}
    unequal = [step for step, (packs, _) in told.items() if packs != expected[step]]
    for text in [*wrong, *(f"step {step} is explained otherwise than the audit has it" for step in unequal)]:
        print(text, file=sys.stderr)
    figures = {
        "forecast_equal": float(not wrong),
        "explained_equal": 1 - len(unequal) / len(told),
        "explain_last_seconds": told[steps][1],
    }
    rows = [[f"step {step:,}", f"{seconds:.1f} s", "yes" if step not in unequal else "no"]
            for step, (_, seconds) in sorted(told.items())]  # fmt: skip
    report("Steps explained", ["step", "time", "as the audit has it"], rows, figures, as_json=options.json)
    return 1 if wrong or unequal else 0


if __name__ == "__main__":
    sys.exit(main())
