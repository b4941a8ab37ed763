"""What metrics cost: the loader's speed with and without them, and one log step of many sources on two ranks.

    python benchmarks/metrics.py [--json] [--quick]

The loader is that of `benchmarks/loader.py`; with metrics, every batch's statistics go to an aggregator, and one in
4000 steps is logged, which is about twice a second here. A log step: 200 sources and 20 metrics of one's own, one of
them a quantile sketch, on two ranks.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

import numpy as np
from loader import MEDIANS, PACKS, SLOTS, make_loader, write_store
from measuring import Contender, arguments, measure, report
from samples import made_up

import streamsft as ss

SOURCES = 200
METRICS = 20
LOG_EVERY = 4000
LOG_STEPS = 8


def contenders(stores: list[Path], background: bool, name: str) -> list[Contender]:
    """Metrics off, and on, over the batches of one loader, which take turns.

    Two loaders would differ by more than what is measured, by where their memory lies.
    """
    batches = make_loader(stores, 0, background)

    def tokens_of(batch: ss.Batch) -> int:
        return int((batch.document_ids > 0).sum())

    return [
        Contender(f"off, {name}", lambda: batches, tokens_of),
        Contender(f"on, {name}", lambda: measured(batches, stores), tokens_of),
    ]


def measured(batches: Iterator[ss.Batch], stores: list[Path]) -> Iterator[ss.Batch]:
    """The batches, each of them counted."""
    infos = [ss.SourceInfo(name=store.name, groups=("mix",), weight=1 / 3, rows=1000) for store in sorted(stores)]
    aggregator = ss.Aggregator(infos)
    for count, batch in enumerate(batches, 1):
        aggregator.update(batch.stats)
        if count % LOG_EVERY == 0:
            aggregator.log()
        yield batch
        del batch  # as whoever takes it does: the next one is written to the same memory


def one(sample: ss.Sample) -> float:
    """A value for the metrics, whose numbers here come with the statistics."""
    return float(len(sample))


def cost(off: Contender, on: Contender) -> float:
    """What share of the speed metrics take, over many short rounds in turn, so that log steps have their part in it."""
    return 1 - mean(on.rates) / mean(off.rates)


def log_steps(builtin: bool, steps: int) -> dict[str, float]:
    """Collectives, bytes and seconds of a log step on two ranks, behind the first."""
    sources = [ss.SourceInfo(name=f"s{n}", groups=("mix",), weight=1 / SOURCES, rows=10) for n in range(SOURCES)]
    metrics = [ss.Metric(f"m{n}", one, [ss.Mean()]) for n in range(METRICS - 1)]
    metrics.append(ss.Metric("sketch", one, [ss.Quantiles(1, 1e6)]))
    rng = np.random.default_rng(7)
    documents, names = 4000, [metric.name for metric in metrics]

    def rank(comm: ss.Comm) -> dict[str, float]:
        sizes: list[int] = []
        gather = comm.all_gather
        comm.all_gather = lambda array: (sizes.append(array.nbytes), gather(array))[1]  # type: ignore[method-assign]
        aggregator = ss.Aggregator(sources, metrics, builtin=builtin, comm=comm)
        seconds = []
        for _ in range(steps):
            aggregator.update(made_up(rng, documents, sources=SOURCES, packs=100, slots=100 * 4096, metrics=names))
            before = len(sizes)
            start = time.perf_counter()
            aggregator.log()
            seconds.append(time.perf_counter() - start)
        return {
            "collectives": len(sizes) - before,
            "bytes": float(sum(sizes[before:])),
            "seconds": float(np.median(seconds[1:])),
        }

    return ss.ThreadComm.run(2, rank)[0]


def main() -> int:
    """Measure, and print the figures."""
    options = arguments("Measure what metrics cost.").parse_args()
    tokens, seconds, rounds = (500_000, 0.1, 1) if options.quick else (40_000_000, 0.1, 160)
    with tempfile.TemporaryDirectory() as folder:
        stores = [Path(folder) / name for name in MEDIANS]
        for seed, (store, middle) in enumerate(zip(stores, MEDIANS.values(), strict=True)):
            write_store(store, tokens // len(stores), middle, seed)

        both = [*contenders(stores, False, "no thread"), *contenders(stores, True, "background thread")]
        measure(both, seconds=seconds, rounds=rounds, warm_up=8 if options.quick else 40, slots=SLOTS)
    plain, plain_on, threaded, threaded_on = both
    steps = 2 if options.quick else LOG_STEPS
    own, all_of_them = log_steps(False, steps), log_steps(True, steps)
    figures = {
        "cost_no_thread": cost(plain, plain_on),
        "cost_background": cost(threaded, threaded_on),
        "log_step_collectives": float(all_of_them["collectives"]),
        "log_step_mb_own": own["bytes"] / 1e6,
        "log_step_mb_with_builtin": all_of_them["bytes"] / 1e6,
        "log_step_ms": 1e3 * all_of_them["seconds"],
    }
    rows = [[c.name, f"{c.rate * SLOTS / 1e6:.2f}"] for c in both]
    report(
        f"Batches of {PACKS} x 4096, metrics on and off", ["metrics", "M slots/s"], rows, figures, as_json=options.json
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
