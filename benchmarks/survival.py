"""Whether a run that is killed, moved and spread over other numbers of processes consumes what it should.

    python benchmarks/survival.py [--json] [--quick] [--config CONFIG] [--steps STEPS]

Every run is a `streamsft train` of its own process, on data alone, with an audit. The audits of disturbed runs are
compared, step by step, with that of one undisturbed run. Without a config the demo's data are used. Before that, small
sources are gone through several times, and each row is counted in each pass. Takes minutes.

A config with streamed sources, such as configs/streamed-mix.yaml, is run on the numbers of processes and workers that
4 x 4 lanes allow, and nothing is done to a cache, which it has none of.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from measuring import arguments, report

import streamsft as ss
from streamsft.build_sources import drawn_sources

KILLS = 5
PASSES = 3
SMALL = {"letters": 60, "numbers": 40, "words": 25}  # rows of the sources that are gone through several times
LEGS = ((1, 0), (2, 2), (4, 1), (1, 3))  # processes, workers
STREAMED_LEGS = ((2, 2), (1, 4), (4, 1), (1, 4), (2, 2))


class Runs:
    """Runs of one config in one folder.

    Args:
        config: the config file.
        folder: where run directories, caches and the data of disturbed runs lie.
        steps: length of a whole run.
    """

    def __init__(self, config: Path, folder: Path, steps: int) -> None:
        self.config = config
        self.folder = folder
        self.steps = steps
        self.streamed = any(source.streaming for source in drawn_sources(ss.load_config(config)).values())

    def command(self, run: str, *overrides: str, processes: int = 1) -> list[str]:
        """The command line that trains into run directory `run`."""
        start = [sys.executable, "-m", "streamsft"]
        if processes > 1:
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            start = [*torchrun, f"--nproc-per-node={processes}", "-m", "streamsft"]
        settings = [
            f"train.run_dir={self.folder / run}",
            f"train.steps={self.steps}",
            f"train.save_every={max(2, self.steps // 40)}",
            "train.model=none",
            "train.audit=true",
            "metrics.log_every=50",
            "metrics.sinks=[]",
            f"cache.dir={self.folder / 'cache'}",
        ]
        return [*start, "train", str(self.config), *settings, *overrides]

    def train(self, run: str, *overrides: str, processes: int = 1) -> None:
        """Train to the end."""
        done = subprocess.run(self.command(run, *overrides, processes=processes), capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{run}: exit code {done.returncode}\n{done.stderr[-3000:]}")

    def kill(self, run: str, after: int, *overrides: str) -> bool:
        """Train until `after` more steps stand in the audit, then SIGKILL; False if the run had ended before."""
        audit = self.folder / run / "audit" / "rank-0.jsonl"
        process = subprocess.Popen(
            self.command(run, *overrides), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        first: int | None = None
        while process.poll() is None:
            lines = audit.read_bytes().count(b"\n") if audit.exists() else 0
            first = lines if first is None or lines < first else first
            if lines >= first + after:
                process.send_signal(signal.SIGKILL)
                process.wait()
                return True
            time.sleep(0.001)
        return False

    def audit(self, run: str) -> dict[int, list[Any]]:
        """Packs of each step, joined over ranks in the order of ranks."""
        ranks: dict[int, list[tuple[int, list[Any]]]] = defaultdict(list)
        for file in (self.folder / run / "audit").glob("rank-*.jsonl"):
            for line in file.read_text().splitlines():
                entry = json.loads(line)
                ranks[entry["step"]].append((entry["rank"], entry["packs"]))
        return {step: [pack for _, packs in sorted(parts) for pack in packs] for step, parts in sorted(ranks.items())}

    def passes_behind(self, run: str) -> dict[str, int]:
        """Passes of each streamed source that all lanes had left behind at the end of a run, from its state."""
        checkpoints = self.folder / run / "checkpoints"
        state = json.loads((checkpoints / (checkpoints / "latest").read_text().strip() / "loader.json").read_text())
        sources = zip(
            *(lane[2 : 2 + len(state["fingerprint"]["sources"])] for lane in state["lanes"].values()), strict=True
        )
        return {
            name: min(source[2] for source in lanes)
            for name, lanes in zip(state["fingerprint"]["sources"], sources, strict=True)
            if len(lanes[0]) > 2
        }


def killed(runs: Runs) -> bool:
    """SIGKILL at random steps, resuming each time; then to the end."""
    chance = random.Random(11)
    kills = 0
    while kills < KILLS:
        workers = (0, 2, 4)[kills % 3] if runs.streamed else 0
        if not runs.kill("killed", chance.randint(1, runs.steps // (KILLS + 2)), f"loader.workers={workers}"):
            raise SystemExit("a run ended before it was killed often enough; give it more steps")
        kills += 1
    runs.train("killed")
    whole, disturbed = (runs.folder / name / "audit" / "rank-0.jsonl" for name in ("whole", "killed"))
    return whole.read_bytes() == disturbed.read_bytes()


def elastic(runs: Runs) -> bool:
    """One run in legs of other numbers of processes and workers."""
    legs = STREAMED_LEGS if runs.streamed else LEGS
    for leg, (processes, workers) in enumerate(legs, 1):
        upto = f"train.steps={runs.steps * leg // len(legs)}"
        runs.train("elastic", upto, f"loader.workers={workers}", processes=processes)
    return runs.audit("elastic") == runs.audit("whole")


def moved(runs: Runs) -> bool:
    """Run directory and cache moved to other paths half-way."""
    runs.train("moving", f"train.steps={runs.steps // 2}")
    shutil.move(runs.folder / "moving", runs.folder / "elsewhere")
    if (runs.folder / "cache").exists():
        shutil.copytree(runs.folder / "cache", runs.folder / "cache-elsewhere")
    runs.train("elsewhere", f"cache.dir={runs.folder / 'cache-elsewhere'}")
    return runs.audit("elsewhere") == runs.audit("whole")


def without_cache(runs: Runs) -> bool:
    """The cache deleted half-way, then none used at all."""
    runs.train("uncached", f"train.steps={runs.steps // 2}", f"cache.dir={runs.folder / 'cache-lost'}")
    shutil.rmtree(runs.folder / "cache-lost")
    runs.train("uncached", f"train.steps={runs.steps * 3 // 4}", f"cache.dir={runs.folder / 'cache-lost'}")
    command = [part for part in runs.command("uncached") if not part.startswith("cache.dir=")]
    subprocess.run([*command, "cache=false"], check=True, capture_output=True)
    return runs.audit("uncached") == runs.audit("whole")


def in_process(runs: Runs) -> bool:
    """Without the background thread."""
    runs.train("foreground", "loader.background=false")
    return runs.audit("foreground") == runs.audit("whole")


def small_config(folder: Path, tokenizer: Path) -> Path:
    """Write three small sources, and a config that draws each row of them equally often; a pass takes a few steps."""
    folder.mkdir()
    for name, count in SMALL.items():
        rows = ({"question": f"{name} {number}?", "answer": f"It is {number}."} for number in range(count))
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "seed": 7,
        "sequence_length": 128,
        "tokenizer": str(tokenizer),
        "mix": {"sources": {name: {"path": str(folder / f"{name}.jsonl")} for name in SMALL}},
        "packing": {"lookahead": 64},
        "loader": {"global_batch_size": 8},
    }
    file = folder / "config.yaml"
    file.write_text(json.dumps(config))  # which is YAML too
    return file


def passes(runs: Runs) -> tuple[int, bool]:
    """Go through all rows several times, on other numbers of processes and workers in turn.

    Returns:
        How many passes were completed, in which every source had each of its rows exactly once; and whether no row
        came twice in any pass.
    """
    for leg, (processes, workers) in enumerate(LEGS, 1):
        upto = f"train.steps={runs.steps * leg // len(LEGS)}"
        runs.train("passes", upto, f"loader.workers={workers}", processes=processes)
    seen = _seen(runs.audit("passes"))
    whole = 0
    while all(seen[name][whole] == Counter(range(count)) for name, count in SMALL.items()):
        whole += 1
    return whole, _at_most_once(seen)


def _seen(audit: dict[int, list[Any]]) -> dict[str, dict[int, Counter[int]]]:
    """How often each row was consumed, by source and pass."""
    seen: dict[str, dict[int, Counter[int]]] = defaultdict(lambda: defaultdict(Counter))
    for packs in audit.values():
        for pack in packs:
            for source, row, number in pack["rows"]:
                seen[source][number][row] += 1
    return seen


def exactly_once(audit: dict[int, list[Any]], behind: dict[str, int]) -> bool:
    """Whether each pass that was gone through whole had each row once, and no pass had one twice.

    Args:
        audit: packs of each step.
        behind: passes that lie behind, of streamed sources.
    """
    seen = _seen(audit)
    for source, numbers in seen.items():
        rows = set(numbers[0])
        for number in range(behind.get(source, max(numbers) - 1)):  # the last two may still be mixed in a window
            if set(numbers[number]) != rows:
                return False
    return _at_most_once(seen)


def _at_most_once(seen: dict[str, dict[int, Counter[int]]]) -> bool:
    return all(count == 1 for passes in seen.values() for rows in passes.values() for count in rows.values())


def main() -> int:
    """Run everything, and print the figures."""
    parser = arguments("Disturb runs, and compare what they consumed.")
    parser.add_argument("--config", type=Path, help="a config file; by default the demo's")
    parser.add_argument("--steps", type=int, help="length of each run")
    options: argparse.Namespace = parser.parse_args()
    steps = options.steps or (120 if options.quick else 1200)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        demo = [sys.executable, "-m", "streamsft", "demo", str(folder / "demo"), "train.steps=1"]
        subprocess.run(demo, check=True, capture_output=True)
        small = small_config(folder / "small", folder / "demo" / "tokenizer")
        whole, fine = passes(Runs(small, folder, 32 if options.quick else 96))
        config = options.config or folder / "demo" / "config.yaml"
        runs = Runs(config.absolute(), folder, steps)
        runs.train("whole")
        fine &= exactly_once(runs.audit("whole"), runs.passes_behind("whole"))
        figures = {"passes_complete": float(whole), "passes_exactly_once": float(fine)}
        checks = [killed, in_process, moved, elastic] + ([] if runs.streamed else [without_cache])
        figures |= {f"{check.__name__}_equal": float(check(runs)) for check in checks}
    rows = [[name, f"{value:g}"] for name, value in figures.items()]
    enough = whole >= PASSES
    report(
        "What disturbed runs consumed, beside an undisturbed one",
        ["check", f"1 is yes; of passes at least {PASSES}"],
        rows,
        figures,
        as_json=options.json,
    )
    return 0 if enough and all(figures.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
