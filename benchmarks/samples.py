"""Statistics of documents that were never made, for benchmarks of what gathers them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

import streamsft as ss


def made_up(
    rng: np.random.Generator, documents: int, *, sources: int, packs: int, slots: int, metrics: Iterable[str] = ()
) -> ss.SampleStats:
    """Statistics of so many documents of 2 to 4,000 tokens, drawn of so many sources alike.

    Args:
        rng: what they are drawn by.
        documents: number of documents.
        sources: number of sources.
        packs: packs that they are said to lie in.
        slots: slots of these packs.
        metrics: names of metrics whose values are the numbers of tokens.
    """
    tokens = rng.integers(2, 4000, documents)
    columns = ss.SampleColumns(
        source=rng.integers(0, sources, documents).astype(np.int32),
        tokens=tokens,
        supervised=tokens // 2,
        turns=tokens % 5,
        cut=np.zeros(documents, np.int64),
        first=np.ones(documents, np.bool_),
        pass_index=np.zeros(documents, np.int64),
    )
    values = {name: tokens.astype(np.float64) for name in metrics}
    return ss.SampleStats(columns, packs=packs, slots=slots, values=values)
