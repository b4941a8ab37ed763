"""Whether a run with divided weights that changes its size, and is killed while it saves, is the run of one process.

    python benchmarks/divided.py [--json] [--quick] [--config CONFIG] [--steps STEPS]

Every leg is a command: `streamsft train`, below torchrun on 2, 4 and again 2 processes, on one, and on one with
undivided weights. Checkpoints are written in the background; the first leg is killed by SIGKILL, with all its
processes, while one is being written. What the run was given and its losses are compared with an undisturbed run of
one process. Without a config the demo's data are used. Takes a minute or two.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from measuring import arguments, report

from streamsft.demodata.files import write_demo

LEGS = ((2, "fsdp"), (4, "fsdp"), (1, "fsdp"), (1, "ddp"), (2, "fsdp"))


def command(config: Path, run: Path, steps: int, ranks: int, parallel: str) -> list[str]:
    """The command of a leg that ends behind `steps`."""
    launcher = ["torch.distributed.run", f"--nproc-per-node={ranks}", "--master-port=0", "--rdzv-backend=c10d", "-m"]
    return [
        sys.executable,
        "-m",
        *(launcher if ranks > 1 else []),
        "streamsft",
        "train",
        str(config),
        "--quiet",
        f"train.run_dir={run}",
        f"train.steps={steps}",
        f"train.parallel={parallel}",
        f"train.async_save={'true' if parallel == 'fsdp' else 'false'}",
        "train.save_every=2",
        "train.audit=true",
        "train.warmup=0",
        "loader.global_batch_size=8",
        "metrics.log_every=1",
    ]


def finish(words: list[str]) -> None:
    """Run a leg to its end.

    Raises:
        SystemExit: with what it wrote, if it failed.
    """
    ended = subprocess.run(words, capture_output=True, text=True, env=environment(), check=False)
    if ended.returncode:
        raise SystemExit(
            f"{' '.join(words)}: exit code {ended.returncode}\n{ended.stdout[-1000:]}{ended.stderr[-3000:]}"
        )


def kill_while_saving(words: list[str], run: Path) -> None:
    """Kill all processes of a leg while a checkpoint behind the first is being written."""
    process = subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment(), start_new_session=True
    )
    folder = run / "checkpoints"
    while process.poll() is None:
        if (folder / "latest").exists() and any(folder.glob(".partial-*/state/rank-*")):
            break
        time.sleep(0.001)
    if process.poll() is not None:
        raise SystemExit("the run ended before it was killed")
    mine = [int(line) for line in subprocess.check_output(["pgrep", "-s", str(process.pid)]).split()]
    for pid in mine:
        os.kill(pid, signal.SIGKILL)
    process.wait()


def environment() -> dict[str, str]:
    """One thread for each process."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo")}


def packs(run: Path) -> dict[int, list[str]]:
    """The packs of each step, joined over ranks."""
    files = sorted((run / "audit").iterdir(), key=lambda path: int(path.stem.removeprefix("rank-")))
    steps: dict[int, list[str]] = defaultdict(list)
    for file in files:
        for line in file.read_text().splitlines():
            record = json.loads(line)
            steps[record["step"]] += [json.dumps(pack) for pack in record["packs"]]
    return dict(sorted(steps.items()))


def losses(run: Path) -> list[float]:
    lines = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    return [line["metrics"]["train/loss"] for line in lines]


def main() -> int:
    """Print the comparison."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    legs = LEGS[:1] + LEGS[3:4] if options.quick else LEGS
    steps = 2 * len(legs) + 2 if options.quick else options.steps
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = options.config or write_demo(folder / "demo", rows=300 if options.quick else 2000).config
        whole, divided = folder / "whole", folder / "divided"
        finish(command(config, whole, steps, 1, "ddp"))
        kill_while_saving(command(config, divided, steps, *legs[0]), divided)
        for number, leg in enumerate(legs, 1):
            finish(command(config, divided, steps * number // len(legs), *leg))
        same = packs(divided) == packs(whole) and len(packs(whole)) == steps
        apart = max(abs(mine - theirs) for mine, theirs in zip(losses(divided), losses(whole), strict=True))
    figures = {"audit_equal": float(same), "loss_difference": apart}
    rows = [["given the same (1 is equal)", f"{same:g}"], ["largest difference of a step's loss", f"{apart:.2g}"]]
    report("A run of changing size", ["check", "figure"], rows, figures, as_json=options.json)
    return 0 if same and apart < 1e-3 else 1


if __name__ == "__main__":
    sys.exit(main())
