"""How closely a mix keeps to its weights, and how full its packs are.

    python benchmarks/mix.py [--json] [--quick]

A million draws of mixes of 3 to 200 sources, in the order that the mix gives them out. At every window's end a source
of share w among S may be off by 2 + 2 · w · √S draws; over any 10,000 draws in a row its share by 0.5 points.
"""

from __future__ import annotations

import math
import sys

import numpy as np
from measuring import arguments, report

import streamsft as ss
from streamsft.types import Floats, Ints

SEQUENCE_LENGTH = 4096
WINDOW = 1024
STRETCH = 10_000


def weights_of(kind: str, sources: int) -> list[float]:
    """Weights of a mix: even ones, ones that fall by a tenth from source to source, or half for the first."""
    if kind == "falling":
        return [0.9**n for n in range(sources)]
    return [sources - 1.0 if kind == "half" and n == 0 else 1.0 for n in range(sources)]


def make_packer(weights: list[float]) -> ss.Packer:
    """A mix with log-normal lengths; token ids do not matter here."""
    rng = np.random.default_rng(0)
    stores = []
    for number in range(len(weights)):
        lengths = rng.lognormal(np.log(rng.integers(100, 900)), 0.8, 100).clip(2, 8192).astype(np.int32)
        total = int(lengths.sum())
        with ss.TokenStore.writer(None, name=f"source-{number}") as writer:
            writer.append(np.zeros(total, np.int32), np.ones(total, np.bool_), lengths, np.arange(len(lengths)))
            stores.append(writer.close())
    return ss.Packer(ss.Interleave(stores, weights, seed=5), SEQUENCE_LENGTH, lookahead=WINDOW)


def draw(stage: ss.Interleave | ss.Packer, draws: int) -> tuple[Ints, float]:
    """Sources of that many draws, in the order that `stage` gives samples out, and the share of filled slots."""
    plan = stage.plan()
    due, drawn = plan.first_due(0), np.zeros(len(plan.leaves), np.int64)
    sources, tokens, packs = [], 0, 0
    for number in range(draws // WINDOW):
        window = plan.window(0, number, due, drawn)
        due, drawn = window.due, window.drawn
        sources.append(window.documents.source)
        tokens, packs = tokens + int(window.documents.length.sum()), packs + window.packs
    return np.concatenate(sources), tokens / (packs * SEQUENCE_LENGTH)


def off(found: Ints, shares: Floats) -> tuple[float, float, float]:
    """Largest drift at a window's end, in draws and of its bound, and largest distance in a stretch, in points."""
    ends = np.arange(WINDOW, len(found) + 1, WINDOW)
    drift = relative = points = 0.0
    for source, share in enumerate(shares.tolist()):
        counts = np.concatenate(([0], np.cumsum(found == source)))
        worst = float(np.abs(counts[ends] - ends * share).max())
        drift = max(drift, worst)
        relative = max(relative, worst / (2 + 2 * share * math.sqrt(len(shares))))
        points = max(points, 100 * float(np.abs((counts[STRETCH:] - counts[:-STRETCH]) / STRETCH - share).max()))
    return drift, relative, points


def main() -> int:
    """Measure, and print the figures."""
    options = arguments("Measure mixes.").parse_args()
    draws = 50_000 if options.quick else 1_000_000
    rows, worst, fills = [], [], []
    for kind, sources in (("even", 3), ("falling", 5), ("falling", 20), ("half", 200)):
        packer = make_packer(weights_of(kind, sources))
        shares = np.array([leaf.share for leaf in packer.plan().leaves])
        found, _ = draw(packer.mix, draws)
        _, fill = draw(packer, draws // 10)
        drift, relative, points = off(found, shares)
        worst.append((relative, points))
        fills.append(fill)
        rows.append([f"{sources}, {kind}", f"{drift:.1f}", f"{relative:.2f}", f"{points:.2f}", f"{fill:.2%}"])
    relative, points = map(max, zip(*worst, strict=True))
    figures = {"drift_of_bound": relative, "points_off_in_10k": points, "packing_efficiency": min(fills)}
    columns = ["sources", "largest drift", "of the bound", "points off in 10,000", "filled"]
    report(f"Mixes over {draws:,} draws", columns, rows, figures, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
