"""Whether runs in other people's training loops that are killed and resumed train on what undisturbed ones do.

    python benchmarks/loops.py [--json] [--quick] [--data FILE] [--steps STEPS] [--ranks N ...]

A small model is trained on questions and answers (gsm8k, where STREAMSFT_TEST_DATA names its folder, else the demo's)
by transformers' Trainer, Lightning, Accelerate, and the loop of `streamsft train`. Each run is killed twice by SIGKILL,
with all its processes, and resumed. What the model was given and its losses are then compared with an undisturbed run,
bit for bit, and what it was given also with the other loops. Takes a minute or two; `--quick` leaves the last loop out.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
from frameworks import FRAMEWORKS, Leg, run
from measuring import arguments, report

import streamsft as ss
from streamsft.demodata.files import write_demo

KILLS = 2
ATTEMPTS = 5


def start(name: str, leg: Leg, folder: Path) -> list[BaseProcess]:
    """Start the processes of a leg."""
    meeting = Path(tempfile.mkdtemp(dir=folder)) / "meet"
    context = multiprocessing.get_context("fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn")
    processes: list[BaseProcess] = [
        context.Process(target=run, args=(name, leg, rank, meeting)) for rank in range(leg.ranks)
    ]
    for process in processes:
        process.start()
    return processes


def finish(name: str, leg: Leg, folder: Path) -> None:
    """Train to the end.

    Raises:
        SystemExit: with what a process wrote that failed.
    """
    processes = start(name, leg, folder)
    for process in processes:
        process.join()
    for rank, process in enumerate(processes):
        if process.exitcode:
            log = (leg.run / f"log-{rank}.txt").read_text()
            raise SystemExit(f"{name}, rank {rank}: exit code {process.exitcode}\n{log[-3000:]}")


def kill(name: str, leg: Leg, folder: Path, upto: int) -> bool:
    """Train until step `upto` stands in the audit, then SIGKILL all processes, wherever they are.

    Returns:
        Whether they were still running: on a machine that has much else to do they may be done before it is noticed.

    Raises:
        SystemExit: with what a process wrote that failed.
    """
    processes = start(name, leg, folder)
    file = leg.run / "audit" / "rank-0.jsonl"
    while all(process.is_alive() for process in processes):
        lines = file.read_bytes().count(b"\n") if file.exists() else 0
        if lines >= upto:
            break
        time.sleep(0.001)
    alive = all(process.is_alive() for process in processes)
    for process in processes:
        process.kill()
        process.join()
    failed = [rank for rank, process in enumerate(processes) if process.exitcode not in (0, -signal.SIGKILL)]
    if failed and not alive:
        log = (leg.run / f"log-{failed[0]}.txt").read_text()
        raise SystemExit(f"{name}, rank {failed[0]} ended before it was killed\n{log[-3000:]}")
    return alive


def disturb(name: str, leg: Leg, folder: Path, seed: int) -> None:
    """Train to the end, killed `KILLS` times; anew where it was done before it could be killed.

    Raises:
        SystemExit: a process failed, or it was never slow enough to be killed.
    """
    chance, part = random.Random(seed), leg.steps // (KILLS + 1)
    for _ in range(ATTEMPTS):
        if all(kill(name, leg, folder, number * part + chance.randint(2, part + 1)) for number in range(KILLS)):
            finish(name, leg, folder)
            return
        shutil.rmtree(leg.run)
    raise SystemExit(f"{name} was done before it was killed, {ATTEMPTS} times; give more --steps")


def audit(leg: Leg) -> dict[int, list[str]]:
    """The digests of the packs of each step, joined over ranks."""
    steps: dict[int, list[str]] = defaultdict(list)
    for rank in range(leg.ranks):
        for line in (leg.run / "audit" / f"rank-{rank}.jsonl").read_text().splitlines():
            entry = json.loads(line)
            packs = [pack if isinstance(pack, str) else pack["digest"] for pack in entry["packs"]]
            steps[entry["step"]] += packs
    return dict(steps)


def losses(leg: Leg) -> Any:
    """The losses of each step, in the framework's own scale."""
    records = leg.run / "metrics.jsonl"
    if records.exists():
        lines = map(json.loads, records.read_text().splitlines())
        return [(line["step"], line["metrics"]["train/loss"]) for line in lines]
    files = [leg.run / "audit" / f"rank-{rank}.jsonl" for rank in range(leg.ranks)]
    return [[json.loads(line)["losses"] for line in file.read_text().splitlines()] for file in files]


def compared(name: str, base: Leg, folder: Path, seed: int) -> tuple[dict[int, list[str]], bool, bool]:
    """The audit of an undisturbed run, whether that of a disturbed one is the same, and whether its losses are."""
    whole, legs = (
        Leg(folder / f"{name}-{kind}-{base.ranks}", base.store, base.vocabulary, base.steps, base.ranks)
        for kind in ("whole", "killed")
    )
    finish(name, whole, folder)
    disturb(name, legs, folder, seed)
    given = audit(whole)
    complete = list(given) == list(range(1, base.steps + 1))
    return given, complete and audit(legs) == given, losses(legs) == losses(whole)


def tokens(folder: Path, data: Path | None, rows: int) -> ss.TokenStore:
    """The first rows of a file of questions and answers, tokenized."""
    demo = write_demo(folder / "demo", rows=rows)
    source = folder / "rows.jsonl"
    lines = (data or demo.corpora["arithmetic"]).read_text().splitlines(keepends=True)[:rows]
    source.write_text("".join(lines))
    config = {
        "sequence_length": 256,
        "tokenizer": str(demo.tokenizer),
        "mix": {"sources": {"gsm8k": {"path": str(source), "format": "question_answer"}}},
        "cache": {"dir": str(folder / "cache")},
    }
    found = ss.tokenize(config)["gsm8k"]
    assert isinstance(found, ss.TokenStore)
    return found


def main() -> int:
    """Print the comparison."""
    shared = os.environ.get("STREAMSFT_TEST_DATA")
    parser = arguments(__doc__ or "")
    parser.add_argument("--data", type=Path, default=Path(shared) / "gsm8k" / "train.jsonl" if shared else None)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--ranks", type=int, nargs="+", help="by default 1 and 2; with --quick 1")
    options = parser.parse_args()
    steps = 6 if options.quick else options.steps
    torch.set_num_threads(1)
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = tokens(folder, options.data, 200 if options.quick else 2000)
        vocabulary = int(np.concatenate(store.read(np.arange(len(store)))[0]).max()) + 1
        Leg(folder, folder, vocabulary, steps).model()  # so that forks have what it imports, and what these do
        _ = ss.StreamTrainer, ss.StreamDataModule, ss.AcceleratedStream
        audits = []
        for ranks in options.ranks or ([1] if options.quick else [1, 2]):
            base = Leg(folder, Path(str(store.path)), vocabulary, steps, ranks)
            for seed, framework in enumerate(name for name in FRAMEWORKS if name != "reference" or not options.quick):
                given, same, losses_same = compared(framework, base, folder, seed)
                audits.append(given)
                suffix = "" if ranks == 1 else f"_{ranks}_ranks"
                figures[f"{framework}_audit{suffix}"] = float(same)
                figures[f"{framework}_losses{suffix}"] = float(losses_same)
        figures["all_given_the_same"] = float(all(given == audits[0] for given in audits))
    rows = [[name, f"{value:g}"] for name, value in figures.items()]
    report("What killed runs were given", ["check", "1 is equal"], rows, figures, as_json=options.json)
    return 0 if all(figures.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
