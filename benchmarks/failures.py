"""Whether a run of which processes are killed and stopped ends by itself, having consumed what an undisturbed one does.

    python benchmarks/failures.py [--json] [--quick] [--config CONFIG] [--steps STEPS]

Every run is one `torchrun --max-restarts=3 -m streamsft train` on two ranks, on data alone, with an audit. In two of
them, without workers and with two per rank, ranks are killed by SIGKILL, three times, in turn. In the third a worker is
stopped by SIGSTOP, and seconds pass until it is told and replaced. Without a config the demo's data are used. Takes
minutes.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from measuring import arguments, report
from survival import Runs

RANKS = 2
KILLS = 3
TIMEOUT_S = 5.0
GRACE_S = 5.0  # a tick of the thread that watches, and what a machine of few cores needs to tell


@contextmanager
def launched(runs: Runs, run: str, *overrides: str) -> Iterator[subprocess.Popen[bytes]]:
    """A launcher with its ranks, ended with the context; what it prints is kept in `told`."""
    words = runs.command(run, *overrides, processes=RANKS)
    words.insert(words.index("--standalone") + 1, f"--max-restarts={KILLS}")
    with told(runs, run).open("wb") as log:
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=log)
        try:
            yield process
        finally:
            process.terminate()  # it ends its ranks, where it has not ended
            process.wait()


def told(runs: Runs, run: str) -> Path:
    """The file of what a run prints to standard error."""
    return runs.folder / f"{run}.log"


def ended(runs: Runs, run: str, process: subprocess.Popen[bytes]) -> bool:
    """Wait for the end of a run; whether it had consumed what the undisturbed one had.

    Raises:
        SystemExit: it failed; with what it printed.
    """
    if process.wait():
        raise SystemExit(f"{run}: exit code {process.returncode}\n{told(runs, run).read_text()[-3000:]}")
    return runs.audit(run) == runs.audit("whole")


def wait_for(process: subprocess.Popen[bytes], run: str, reached: Callable[[], bool]) -> None:
    """Wait until something is so.

    Raises:
        SystemExit: the run has ended before.
    """
    while not reached():
        if process.poll() is not None:
            raise SystemExit(f"{run}: ended before it was disturbed often enough; give it more steps")
        time.sleep(0.001)


def lines(file: Path) -> int:
    """Whole lines of a file that may not be there yet."""
    return file.read_bytes().count(b"\n") if file.exists() else 0


def is_at(folder: Path, leg: int, step: int) -> bool:
    """Whether a run is in its leg number `leg`, from 1, and at `step` or behind it."""
    return lines(folder / "legs.jsonl") == leg and lines(folder / "audit" / "rank-0.jsonl") >= step


def forks_of(pid: int) -> list[int]:
    """The children of a process, oldest first."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def ranks_killed(runs: Runs, workers: int) -> bool:
    """SIGKILL a rank, again and again; the launcher starts all of them anew."""
    run = f"killed-{workers}"
    folder = runs.folder / run
    with launched(runs, run, f"loader.workers={workers}") as process:
        for kill in range(KILLS):
            step = runs.steps * (kill + 1) // (KILLS + 1)
            wait_for(process, run, partial(is_at, folder, kill + 1, step))
            os.kill(forks_of(process.pid)[kill % RANKS], signal.SIGKILL)
        equal = ended(runs, run, process)
    return equal and lines(folder / "legs.jsonl") == KILLS + 1


def worker_stopped(runs: Runs) -> tuple[bool, float]:
    """SIGSTOP a worker; also the seconds until it was told of."""
    run, log = "stopped", told(runs, "stopped")
    with launched(runs, run, "loader.workers=2", f"loader.timeout={TIMEOUT_S:g}") as process:
        wait_for(process, run, partial(is_at, runs.folder / run, 1, runs.steps // 4))
        os.kill(forks_of(forks_of(process.pid)[0])[0], signal.SIGSTOP)
        stopped = time.monotonic()
        wait_for(process, run, lambda: b"a loader worker hangs: worker" in log.read_bytes())
        seconds = time.monotonic() - stopped
        return ended(runs, run, process), seconds


def main() -> int:
    """Run everything, and print the figures."""
    parser = arguments("Kill and stop processes of runs, and compare what they consumed.")
    parser.add_argument("--config", type=Path, help="a config file; by default the demo's")
    parser.add_argument("--steps", type=int, help="length of each run")
    options: argparse.Namespace = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        demo = [sys.executable, "-m", "streamsft", "demo", str(folder / "demo"), "train.steps=1"]
        subprocess.run(demo, check=True, capture_output=True)
        config = options.config or folder / "demo" / "config.yaml"
        runs = Runs(config.absolute(), folder, options.steps or (400 if options.quick else 4000))
        runs.train("whole")
        figures = {f"killed_{workers}_workers_equal": float(ranks_killed(runs, workers)) for workers in (0, 2)}
        equal, seconds = worker_stopped(runs)
        figures |= {"stopped_equal": float(equal), "stopped_told_seconds": seconds}
    rows = [[name, f"{value:.3g}"] for name, value in figures.items()]
    report(
        "What runs consumed of which processes were killed and stopped, beside an undisturbed one",
        ["check", f"1 is yes; of seconds at most {TIMEOUT_S + GRACE_S:g}"],
        rows,
        figures,
        as_json=options.json,
    )
    return 0 if all(figures.values()) and seconds <= TIMEOUT_S + GRACE_S else 1


if __name__ == "__main__":
    sys.exit(main())
