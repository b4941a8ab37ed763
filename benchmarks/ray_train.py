"""Whether the loop of docs/ray.md, under Ray Train, goes on behind a killed worker as if nothing had happened.

    python benchmarks/ray_train.py [--json] [--quick]

The Python block of docs/ray.md is run as it stands, on two workers of a Ray cluster on this machine, over a store of
the demo's data. It is run twice: undisturbed, and with workers killed by SIGKILL as often as `max_failures` allows.
What both trained on is written down by their loaders, step by step, and compared with what one process without Ray
draws; the losses at their ends are compared too. Takes minutes.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from measuring import arguments, report

import streamsft as ss

PAGE = Path(__file__).parents[1] / "docs" / "ray.md"
WORKERS = 2
SAVE_EVERY = 4
KILLS = ((1, 7), (0, 14), (1, 21))
"""Ranks, and the steps whose batches they ask for when they are killed."""


def documented() -> dict[str, Any]:
    """What the Python block of the page defines, as far as it starts nothing.

    Raises:
        SystemExit: the block is not as it was.
    """
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    body, found, _ = blocks[0].partition("\ntrainer = TorchTrainer(")
    if not found:
        raise SystemExit(f"{PAGE}: begins no TorchTrainer any more")
    namespace: dict[str, Any] = {"__name__": "documented"}
    exec(compile(body, str(PAGE), "exec"), namespace)
    return namespace


def watched(folder: Path, kills: int) -> Callable[..., Any]:
    """A `Loader` that writes its batches down in `folder`, and whose process is killed so many times."""

    class Watched:
        def __init__(self, *args: Any, dp: ss.Shard, **kwargs: Any) -> None:
            self._loader, self._rank = ss.Loader(*args, dp=dp, **kwargs), dp.index

        def __getattr__(self, name: str) -> Any:
            return getattr(self._loader, name)

        def __iter__(self) -> Iterator[ss.Batch]:
            for batch in self._loader:
                for number, kill in enumerate(KILLS[:kills]):
                    if kill == (self._rank, batch.step) and not (mark := folder / f"killed-{number}").exists():
                        mark.touch()
                        os.kill(os.getpid(), signal.SIGKILL)
                with (folder / f"rank-{self._rank}.jsonl").open("a") as audit:
                    audit.write(json.dumps({"step": batch.step, "rows": batch.rows}) + "\n")
                yield batch

    return Watched


def trained(store: Path, folder: Path, steps: int, kills: int) -> tuple[int, float]:
    """Train as the page does; the last step and its loss."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    train = documented()["train"]
    folder.mkdir()

    class Watching:
        """The library, with another loader."""

        Loader = watched(folder, kills)

        def __getattr__(self, name: str) -> Any:
            return getattr(ss, name)

    def loop(settings: dict[str, Any]) -> None:
        train.__globals__["ss"] = Watching()
        train(settings)

    trainer = TorchTrainer(
        loop,
        train_loop_config={"store": str(store), "steps": steps, "save_every": SAVE_EVERY},
        scaling_config=ScalingConfig(num_workers=WORKERS),
        run_config=RunConfig(
            name=folder.name, storage_path=str(folder / "ray"), failure_config=FailureConfig(max_failures=len(KILLS))
        ),
    )
    result = trainer.fit()
    assert result.metrics is not None
    return int(result.metrics["step"]), float(result.metrics["loss"])


def audit(folder: Path) -> dict[int, Any]:
    """Rows of each step, joined over ranks.

    Raises:
        SystemExit: a step that was made again had other rows.
    """
    ranks: list[dict[int, Any]] = [{} for _ in range(WORKERS)]
    for rank, steps in enumerate(ranks):
        for line in (folder / f"rank-{rank}.jsonl").read_text().splitlines():
            entry = json.loads(line)
            if steps.setdefault(entry["step"], entry["rows"]) != entry["rows"]:
                raise SystemExit(f"rank {rank}, step {entry['step']}: was made again with other rows")
    return {step: [pack for rank in ranks for pack in rank[step]] for step in sorted(ranks[0])}


def drawn(store: Path, steps: int) -> dict[int, Any]:
    """Rows of each step of one process, without Ray."""
    packer = ss.Packer(ss.Interleave([ss.TokenStore.open(store)], seed=7), sequence_length=256)
    loader = iter(ss.Loader(packer, global_batch_size=8))
    return {step: json.loads(json.dumps(next(loader).rows)) for step in range(1, steps + 1)}


def main() -> int:
    """Run everything, and print the figures."""
    options = arguments("Kill workers of Ray Train, and compare what was trained on.").parse_args()
    steps, kills = (10, 1) if options.quick else (28, len(KILLS))
    own = {"RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    os.environ.update(own, OMP_NUM_THREADS="1")
    import ray

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        demo = [sys.executable, "-m", "streamsft", "demo", str(folder / "demo"), "train.steps=1"]
        subprocess.run(demo, check=True, capture_output=True)
        store = min((folder / "demo" / "cache" / "stores").iterdir())
        ray.init(address="local", num_cpus=WORKERS + 1, include_dashboard=False, log_to_driver=False,
                 object_store_memory=100 << 20)  # fmt: skip
        try:
            whole = trained(store, folder / "whole", steps, 0)
            broken = trained(store, folder / "broken", steps, kills)
        finally:
            ray.shutdown()
        expected = drawn(store, steps)
        figures = {
            "kills": float(len(list((folder / "broken").glob("killed-*")))),
            "steps": float(broken[0]),
            "whole_equal": float(audit(folder / "whole") == expected),
            "broken_equal": float(audit(folder / "broken") == expected),
            "loss_equal": float(whole == broken and math.isfinite(whole[1])),
        }
    rows = [[name, f"{value:.3g}"] for name, value in figures.items()]
    title = "What Ray Train trained on with workers killed, beside one process without Ray"
    report(title, ["check", "1 is yes; or a number of"], rows, figures, as_json=options.json)
    return 0 if all(figures.values()) and figures["kills"] == kills and figures["steps"] == steps else 1


if __name__ == "__main__":
    sys.exit(main())
