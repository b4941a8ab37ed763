"""Whether the totals that a disturbed run recorded equal a count of its audit and its stores.

    python benchmarks/recount.py [--json] [--quick] [--config CONFIG] [--steps STEPS] [--run RUN]

A run with a weight schedule begins on two processes, is killed behind a checkpoint, goes on on one, and then, with
another weight in its mix, on two. Each total of the last record of metrics.jsonl is compared with the count. Without
a config the demo's data are used. With `--run`, an earlier run (with `train.audit` and `overflow: truncate`) is
counted instead. Takes a minute or two.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from audits import command, demo_config, quiet, record_of, train
from measuring import arguments, report

import streamsft as ss
from streamsft.commands.explain_run import run_config
from streamsft.config import Config


def nodes_of(sources: dict[str, Any], name: str) -> dict[str, list[str]]:
    """Every mix node of a config's sources, with the sources below it; `name` is that of the outermost."""
    found: dict[str, list[str]] = {name: []}
    for source, given in sources.items():
        inner = nodes_of(given["sources"], source) if given.get("sources") else {}
        found[name] += inner[source] if inner else [source]
        found |= inner
    return found


def kill(config: Path, run: Path, step: int, *overrides: str) -> None:
    """Train on two processes until the audit of rank 0 has `step` steps, then SIGKILL each of them."""
    audit = run / "audit" / "rank-0.jsonl"
    process = subprocess.Popen(
        command(config, *overrides, processes=2),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and not (audit.exists() and audit.read_bytes().count(b"\n") >= step):
        time.sleep(0.001)
    if process.poll() is not None:
        told = process.stderr.read()[-3000:] if process.stderr else ""
        raise SystemExit(f"the run ended before it was killed\n{told}")
    ranks = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True).stdout
    for pid in [*map(int, ranks.split()), process.pid]:
        os.kill(pid, signal.SIGKILL)
    process.wait()


def disturbed(config: Path, folder: Path, steps: int) -> Path:
    """Make the run; its directory."""
    run = folder / "run"
    sources = ss.load_config(config).mix.sources
    scheduled, *_, changed = sources
    settings = [
        f"train.run_dir={run}",
        f"train.save_every={max(2, steps // 8)}",
        "train.model=none",
        "train.audit=true",
        "metrics.log_every=2",
        "metrics.sinks=[]",
        f"mix.sources.{scheduled}.weight={{0: 1, {steps // 2}: 3}}",
    ]
    kill(config, run, steps // 4 + 1, *settings, f"train.steps={100 * steps}")
    train(config, *settings, f"train.steps={steps * 5 // 8}")
    settings += [f"mix.sources.{changed}.weight=2.5", "--accept-changes"]
    train(config, *settings, f"train.steps={steps}", processes=2)
    return run


def differing(run: Path) -> tuple[int, list[str]]:
    """How many totals were counted, and those that the last record has otherwise."""
    config: Config = ss.load_config(run_config(run))
    if config.packing.overflow != "truncate":
        raise SystemExit(f"{run}: packing.overflow is {config.packing.overflow}; only truncate is counted")
    stores = ss.tokenize(config, console=quiet())
    nodes = nodes_of(config.model_dump()["mix"]["sources"], "mix")
    expected = record_of(run, stores, nodes, config.sequence_length)
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["metrics"]
    wrong = {key: value for key, value in expected.items() if last.get(key) != value}
    found = [f"{key}: recorded {last.get(key)}, counted {value}" for key, value in wrong.items()]
    return len(expected), found


def main() -> int:
    """Make the run, and print the figures."""
    parser = arguments("Disturb a run, and count what it consumed.")
    parser.add_argument("--config", type=Path, help="a config file; by default the demo's")
    parser.add_argument("--steps", type=int, help="length of the run")
    parser.add_argument("--run", type=Path, help="the directory of an earlier run, which is counted instead")
    options: argparse.Namespace = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = options.run
        if run is None:
            config = options.config or demo_config(folder / "demo", 300)
            run = disturbed(config.absolute(), folder, options.steps or (40 if options.quick else 400))
        totals, wrong = differing(run)
        legs = [json.loads(line)["step"] for line in (run / "legs.jsonl").read_text().splitlines()]
    for text in wrong:
        print(text, file=sys.stderr)
    figures = {"totals": float(totals), "totals_equal": 1 - len(wrong) / totals}
    rows = [["resumed behind steps", ", ".join(map(str, legs[1:]))], ["totals that differ", str(len(wrong))]]
    report("What a run recorded, beside a count", ["", ""], rows, figures, as_json=options.json)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
