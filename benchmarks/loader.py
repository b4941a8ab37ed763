"""How fast the loader makes batches, beside two other ways to make them and the speed of copying memory.

    python benchmarks/loader.py [--json] [--quick]

Three sources with log-normal lengths, 80 M tokens in all, are written as token stores. Every contender reads these
stores, mixes them by the same weights, packs them into rows of 4096, and yields batches of eight packs as four int64
tensors. They run in turn, several rounds each; the median round counts. Speed is in slots (padding included), which
favours those who pad more.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import peers
from measuring import Contender, arguments, measure, report

import streamsft as ss

SEQUENCE_LENGTH = 4096
PACKS = 8
SLOTS = SEQUENCE_LENGTH * PACKS
MEDIANS = {"short": 150, "middle": 400, "long": 900}  # tokens
SPREAD = 0.8  # of the logarithm of a length
WEIGHTS = [5.0, 3.0, 2.0]
VOCABULARY = 32_000
SEED = 7


def write_store(path: Path, tokens: int, middle: int, seed: int) -> None:
    """Write a store of about `tokens` tokens: lengths log-normal around `middle`, the last 60 % of a row supervised."""
    rng = np.random.default_rng(seed)
    with ss.TokenStore.writer(path) as writer:
        written = rows = 0
        while written < tokens:
            lengths = rng.lognormal(np.log(middle), SPREAD, 1000).clip(2, 4 * SEQUENCE_LENGTH).astype(np.int32)
            total = int(lengths.sum())
            start = np.repeat(np.cumsum(lengths) - lengths, lengths)
            mask = np.arange(total) - start >= np.repeat(lengths * 2 // 5, lengths)
            ids = rng.integers(0, VOCABULARY, total).astype(np.int32)
            writer.append(ids, mask, lengths, np.arange(rows, rows + len(lengths)))
            written, rows = written + total, rows + len(lengths)


def make_loader(stores: list[Path], workers: int, background: bool) -> Iterator[ss.Batch]:
    """This library."""
    mix = ss.Interleave([ss.TokenStore.open(store) for store in stores], weights=WEIGHTS, seed=SEED)
    packer = ss.Packer(mix, SEQUENCE_LENGTH)
    return iter(ss.Loader(packer, global_batch_size=PACKS, workers=workers, background=background))


def copies() -> Iterator[list[np.ndarray[Any, Any]]]:
    """The limit: copy four int64 arrays of a batch to new memory, and do nothing else.

    Batches come in turn from more of them than any cache holds, as tokens come from memory, too, and no batch is the
    one before.
    """
    batches = [[np.full((PACKS, SEQUENCE_LENGTH), value, np.int64) for value in range(4)] for _ in range(256)]
    while True:
        for batch in batches:
            yield [array.copy() for array in batch]


def contenders(stores: list[Path]) -> list[Contender]:
    """Everything that is measured, by name."""
    ours = partial(make_loader, stores)
    theirs = {"sequence_length": SEQUENCE_LENGTH, "packs": PACKS, "seed": SEED}

    def tokens_of_batch(batch: ss.Batch) -> int:
        return int((batch.document_ids > 0).sum())

    def tokens_of_tensors(tensors: Any) -> int:
        return int((tensors[3] > 0).sum())

    return [
        Contender("streamsft, no thread", partial(ours, 0, False), tokens_of_batch),
        Contender("streamsft, background thread", partial(ours, 0, True), tokens_of_batch),
        Contender("streamsft, 2 workers", partial(ours, 2, False), tokens_of_batch),
        Contender("lists", partial(peers.list_building, stores, WEIGHTS, **theirs), tokens_of_tensors),
        Contender("Arrow and numpy", partial(peers.arrow_fetch, stores, WEIGHTS, **theirs), tokens_of_tensors),
        Contender("memory copy", copies, lambda _: SLOTS),
    ]


def main() -> int:
    """Measure, and print the figures."""
    options = arguments("Measure the loader.").parse_args()
    tokens, seconds, rounds = (500_000, 0.1, 1) if options.quick else (80_000_000, 0.7, 15)
    with tempfile.TemporaryDirectory() as folder:
        stores = [Path(folder) / name for name in MEDIANS]
        for seed, (store, middle) in enumerate(zip(stores, MEDIANS.values(), strict=True)):
            write_store(store, tokens // len(stores), middle, seed)
        measured = contenders(stores)
        measure(measured, seconds=seconds, rounds=rounds, warm_up=8 if options.quick else 40, slots=SLOTS)
    plain, threaded, workers, lists, arrow, copy = measured
    best = max(plain.rate, threaded.rate)
    figures = {
        "ratio_vs_list": best / lists.rate,
        "ratio_vs_best": best / arrow.rate,
        "share_of_copy_limit": best / copy.rate,
        "workers2_vs_0": workers.rate / best,
        "packing_efficiency": plain.fill,
        "tokens_per_s": best * SLOTS * plain.fill,
    }
    rows = [[c.name, f"{c.rate * SLOTS / 1e6:.2f}", f"{c.fill:.2%}"] for c in measured]
    report("Batches of 8 x 4096", ["contender", "M slots/s", "filled"], rows, figures, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
