"""How even the attention cost of a step is over ranks, with and without balancing.

    python benchmarks/balance.py [--json] [--quick]

Three sources of log-normal lengths, as chats, answers and long documents have them, are packed into rows of 4,096
slots. The steps of 64 packs are shared among 8 ranks. A rank's cost is the sum of the squared lengths of its documents;
the spread of a step is the dearest rank's cost less the cheapest one's, over the mean. That the steps hold the same
packs is compared.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from itertools import islice

import numpy as np
from measuring import arguments, report

import streamsft as ss

SEQUENCE_LENGTH = 4096
PACKS = 64
RANKS = 8
SOURCES = {"chats": (600.0, 0.9, 3.0), "answers": (150.0, 0.6, 2.0), "documents": (2500.0, 1.2, 1.0)}
"""Median length in tokens, spread of its logarithm, and weight."""


def make_mix(rows: int) -> ss.Interleave:
    """The mix; `rows` rows of each source."""
    generator = np.random.default_rng(7)
    stores = []
    for name, (median, spread, _) in SOURCES.items():
        lengths = np.clip(median * np.exp(spread * generator.standard_normal(rows)), 8, 4 * SEQUENCE_LENGTH)
        lengths = lengths.astype(np.int32)
        with ss.TokenStore.writer(None, name=name) as writer:
            tokens = int(lengths.sum())
            mask = np.ones(tokens, np.bool_)
            writer.append(np.arange(tokens, dtype=np.int32) % 50_000, mask, lengths, np.arange(rows))
            stores.append(writer.close())
    return ss.Interleave(stores, [weight for _, _, weight in SOURCES.values()], seed=7)


def steps(mix: ss.Interleave, balance: str, count: int) -> tuple[list[list[int]], list[Counter[str]], float]:
    """Per step the cost of each rank, and its packs; and the seconds that all of it took."""
    packer = ss.Packer(mix, SEQUENCE_LENGTH)
    begun = time.perf_counter()
    loaders = [
        ss.Loader(packer, global_batch_size=PACKS, dp=ss.Shard(rank, RANKS), balance=balance, background=False)  # type: ignore[arg-type]
        for rank in range(RANKS)
    ]
    costs, packs = [], []
    for batches in islice(zip(*map(iter, loaders), strict=True), count):
        costs.append([int((batch.documents.table.length**2).sum()) for batch in batches])
        packs.append(Counter(str(pack) for batch in batches for pack in batch.rows))
    return costs, packs, time.perf_counter() - begun


def spread(costs: list[list[int]]) -> float:
    """The mean over steps of the spread over ranks."""
    return float(np.mean([(max(step) - min(step)) / np.mean(step) for step in costs]))


def main() -> int:
    """Measure, and print the figures."""
    options = arguments("Measure how even steps are over ranks.").parse_args()
    rows, count = (200, 2) if options.quick else (5_000, 60)
    mix = make_mix(rows)
    table, spreads, contents = [], {}, {}
    for balance in ("none", "tokens", "attention"):
        costs, contents[balance], seconds = steps(mix, balance, count)
        spreads[balance] = spread(costs)
        slowest = float(np.mean([max(step) / np.mean(step) for step in costs]))
        table.append([balance, f"{spreads[balance]:.2%}", f"{slowest:.3f}", f"{seconds / count / RANKS * 1e3:.1f} ms"])
    figures = {
        "spread_none": spreads["none"],
        "spread_attention": spreads["attention"],
        "spread_ratio": spreads["none"] / spreads["attention"],
        "steps_equal": float(contents["none"] == contents["tokens"] == contents["attention"]),
    }
    columns = ["balance", "spread of attention cost", "dearest rank / mean", "a rank's step takes"]
    report(f"{count} steps of {PACKS} packs on {RANKS} ranks", columns, table, figures, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
