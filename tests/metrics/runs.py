"""Small made-up runs for the aggregator's tests: sources, metrics, batches and the records to compare."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from streamsft.comm import Comm
from streamsft.metrics.aggregator import Aggregator
from streamsft.metrics.metric import Metric
from streamsft.metrics.quantiles import Quantiles
from streamsft.metrics.reducers import Counts, Max, Mean, Std, Sum
from streamsft.metrics.stats import SampleColumns, SampleStats, SourceInfo
from streamsft.types import Sample

SOURCES = [
    SourceInfo(
        name="chat",
        groups=("mix", "talk"),
        weight=0.25,
        rows=30,
        dropped={"too_long": 7, "nothing_supervised": 3},
        rejected={"bad_role": 4},
    ),
    SourceInfo(name="code", groups=("mix", "talk"), weight=0.25, reasons=("bad_role", "held_out")),
    SourceInfo(name="math", groups=("mix",), weight=0.5, rows=40, rejected={"bad_role": 2, "template_error": 1}),
]


def turns(sample: Sample) -> float:
    return float(len(sample))


def language(sample: Sample) -> str:
    return "python" if sample.row % 2 else "cobol"


REFUSED = ("held_out", "bad_role", "undeclared")

METRICS = [
    Metric("turns", turns, [Mean(), Std(), Sum(), Max(), Quantiles(1, 1e4, (0.5, 0.95))]),
    Metric("language", language, [Counts(("python", "c"))]),
]
RUN_METRICS = {"train/loss": Mean(), "train/steps": Sum()}


def aggregator(comm: Comm) -> Aggregator:
    """An aggregator with every kind of metric."""
    return Aggregator(SOURCES, METRICS, RUN_METRICS, comm=comm)


def batch(
    seed: int,
    documents: int,
    sources: Sequence[int] = (0, 1, 2),
    refused: Sequence[tuple[int, str, int]] | None = None,
) -> SampleStats:
    """A batch of documents from some of the sources, the same for the same seed."""
    if refused is None:
        refused = [(1, reason, seed % 5 + 1) for reason in REFUSED[: seed % 4]] if 1 in sources else ()
    generator = np.random.default_rng(seed)
    tokens = np.clip(generator.lognormal(5, 1.5, documents), 1, 4096).astype(np.int64)
    return SampleStats(
        SampleColumns(
            source=generator.choice(list(sources), documents).astype(np.int32),
            tokens=tokens,
            supervised=tokens // 2,
            turns=tokens // 2 % 30,
            cut=np.where(tokens == 4096, 17, 0),
            first=generator.random(documents) < 0.9,
            pass_index=generator.integers(0, 3, documents),
        ),
        packs=2,
        slots=8192,
        values={
            "turns": generator.lognormal(3, 2, documents),
            "language": generator.integers(0, 3, documents).astype(np.float64),
        },
        refused=refused,
    )


def feed(target: Aggregator, batches: Sequence[SampleStats]) -> None:
    """Each batch with a loss weighed by its supervised tokens, as a training loop would."""
    for stats in batches:
        tokens, supervised = stats.columns.tokens, stats.columns.supervised
        target.update(stats)
        target.observe("train/loss", float(tokens.mean()) / 300, weight=float(supervised.sum()))
        target.observe("train/steps", 1.0)


def assert_same_record(mine: dict[str, float], whole: dict[str, float]) -> None:
    """Counts are equal, sums equal to 1e-12; quantiles, merged exactly, are equal too."""
    assert mine.keys() == whole.keys()
    for key, value in whole.items():
        if isinstance(value, int) or key.removesuffix("_interval").endswith(("_p50", "_p95")):
            assert mine[key] == value, key
        else:
            assert mine[key] == pytest.approx(value, rel=1e-12, abs=1e-12), key
