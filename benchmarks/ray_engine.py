"""Whether a Ray cluster tokenizes what this machine does: undisturbed, with a worker killed, with the driver killed.

    python benchmarks/ray_engine.py [--json] [--quick] [--config CONFIG]

A cluster is started on this machine; every call is a `streamsft tokenize` of its own process, into a cache of its own,
with two workers. The stores of each are compared with those of `--engine local`: the bytes of their token columns, the
fingerprint, the list of rejected rows. A worker is killed by SIGKILL while it has rows. The driver is killed by SIGKILL
when one source is done and some of the next is, and started again; what it then took over is counted. Without a config
that of the real data is used, with `--quick` the demo's. Takes minutes.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from measuring import arguments, report

REAL = Path(__file__).parents[1] / "configs" / "real-mix.yaml"
WORKERS = 2
DATA = "data-00000-of-00001.arrow"
KEY = 32  # characters of a store's key; folders that are being written have longer names


class Calls:
    """Calls of `streamsft tokenize` on one config.

    Args:
        config: the config file.
        folder: where their caches lie.
        address: of the cluster.
    """

    def __init__(self, config: Path, folder: Path, address: str) -> None:
        self.config = config
        self.folder = folder
        self._address = address

    def start(self, cache: str, *, ray: bool = True) -> subprocess.Popen[str]:
        """Tokenize into a cache, on the cluster or in two processes of this machine."""
        engine = ["--engine", "ray", "--address", self._address] if ray else []
        words = ["tokenize", str(self.config), f"cache.dir={self.folder / cache}", "--json", *engine]
        command = [sys.executable, "-m", "streamsft", *words, "--processes", str(WORKERS)]
        with self.told(cache).open("w") as log:
            return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)

    def told(self, cache: str) -> Path:
        """What the last call on a cache has said."""
        return self.folder / f"{cache}.log"

    def ended(self, cache: str, call: subprocess.Popen[str]) -> dict[str, Any]:
        """The sources of a call, as it tells of them in JSON at its end.

        Raises:
            SystemExit: it failed; with what it said.
        """
        printed, _ = call.communicate()
        if call.returncode:
            raise SystemExit(f"{cache}: exit code {call.returncode}\n{self.told(cache).read_text()[-3000:]}")
        sources: dict[str, Any] = json.loads(printed.splitlines()[-1])["sources"]
        return sources

    def parts(self, cache: str) -> int:
        """How many parts of sources that are not done yet are published."""
        done = self.stores(cache)
        return sum(part.parent.name not in done for part in (self.folder / cache / "parts").glob("*/*.arrow"))

    def stores(self, cache: str) -> set[str]:
        """The sources that are done, by key."""
        found = (self.folder / cache / "stores").glob("*/streamsft.json")
        return {file.parent.name for file in found if len(file.parent.name) == KEY}


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two calls have made the same stores, byte for byte."""
    return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)


def _equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    pairs = [(Path(one["path"]) / name, Path(other["path"]) / name) for name in (DATA, "rejected.jsonl")]
    if one["path"] == other["path"] or one["fingerprint"] != other["fingerprint"]:
        return False
    return all(a.exists() == b.exists() and (not a.exists() or a.read_bytes() == b.read_bytes()) for a, b in pairs)


def wait_for(call: subprocess.Popen[str], cache: str, reached: Callable[[], Any]) -> Any:
    """What `reached` returns once it is true.

    Raises:
        SystemExit: the call has ended before.
    """
    while not (found := reached()):
        if call.poll() is not None:
            raise SystemExit(f"{cache}: ended before it could be disturbed; give it more rows")
        time.sleep(0.002)
    return found


def at_work() -> list[psutil.Process]:
    """The workers of the cluster that have rows."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if child.name().startswith("ray::Worker.ru")]


def worker_killed(calls: Calls) -> dict[str, Any]:
    """Tokenize, and SIGKILL a worker in the middle of a source of some parts."""
    call = calls.start("worker")
    wait_for(call, "worker", lambda: calls.parts("worker"))
    wait_for(call, "worker", at_work)[0].kill()
    made = calls.ended("worker", call)
    if "a worker on the Ray cluster was lost" not in calls.told("worker").read_text():
        raise SystemExit("worker: it was killed when its work was done; give it more rows")
    return made


def driver_killed(calls: Calls) -> tuple[dict[str, Any], int]:
    """Tokenize, SIGKILL the driver behind the first source, and tokenize again; also how many sources were done."""
    call = calls.start("driver")
    wait_for(call, "driver", lambda: calls.stores("driver") and calls.parts("driver"))
    call.send_signal(signal.SIGKILL)
    call.wait()
    done = len(calls.stores("driver"))
    return calls.ended("driver", calls.start("driver")), done


@contextmanager
def cluster() -> Iterator[str]:
    """A cluster on this machine, with cores for the workers of a driver that is killed and of its successor."""
    alone = {"RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    os.environ.update(alone)
    import ray

    own = {"object_store_memory": 200 << 20, "num_cpus": 2 * WORKERS}
    context = ray.init(address="local", include_dashboard=False, log_to_driver=False, **own)
    try:
        yield str(context.address_info["address"])
    finally:
        ray.shutdown()


def measured(calls: Calls) -> dict[str, float]:
    """Make every call, and compare."""
    expected = calls.ended("local", calls.start("local", ray=False))
    figures = {"equal": float(equal(calls.ended("ray", calls.start("ray")), expected))}
    figures["worker_killed_equal"] = float(equal(worker_killed(calls), expected))
    made, stores = driver_killed(calls)
    done = [source["not_tokenized_again"] for source in made.values()]
    whole = [found for found in done if found["files"] and not found["parts"]]
    if len(whole) != stores:
        raise SystemExit(f"driver: {stores} sources were done, and {len(whole)} were taken over")
    figures["driver_killed_equal"] = float(equal(made, expected))
    figures |= {f"not_again_{key}": float(sum(found[key] for found in done)) for key in ("files", "parts", "rows")}
    rows = sum(source["rows"] + sum(source["rejected"].values()) for source in expected.values())
    return {**figures, "rows": float(rows)}


def main() -> int:
    """Run everything, and print the figures."""
    parser = arguments("Compare what a Ray cluster tokenizes with what this machine does, killing its processes.")
    parser.add_argument("--config", type=Path, help="a config file; by default that of the real data")
    options: argparse.Namespace = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, cluster() as address:
        folder = Path(name)
        config = options.config or REAL
        if options.quick and not options.config:
            demo = [sys.executable, "-m", "streamsft", "demo", str(folder / "demo"), "train.steps=1"]
            subprocess.run(demo, check=True, capture_output=True)
            config = folder / "demo" / "config.yaml"
        figures = measured(Calls(config.absolute(), folder, address))
    rows = [[name, f"{value:,.0f}"] for name, value in figures.items()]
    title = "Stores that a Ray cluster of two workers makes, beside those of this machine"
    report(title, ["check", "1 is yes; or a number of"], rows, figures, as_json=options.json)
    return 0 if all(figures.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
