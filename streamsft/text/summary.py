"""What a tokenized source holds, in the few numbers that a run prints before it starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

import numpy as np

from streamsft.shown import counted
from streamsft.sources.rowgroups import RowGroupStore
from streamsft.sources.store import TokenStore

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["SourceSummary", "summary_table"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSummary:
    """The size of a source.

    Attributes:
        name: the source's name.
        rows: accepted rows.
        tokens: tokens of all rows.
        supervised_share: share of the tokens that are trained on, 0 to 1.
        p50: median length of a row in tokens; p95 and longest likewise.
        rejected: rows that were left out, by reason.
    """

    name: str
    rows: int
    tokens: int
    supervised_share: float
    p50: int
    p95: int
    longest: int
    rejected: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, store: TokenStore | RowGroupStore) -> SourceSummary:
        """The summary of `store`; reads its lengths, not its tokens."""
        lengths = store.lengths
        p50, p95, longest = np.quantile(lengths, (0.5, 0.95, 1.0), method="higher") if len(lengths) else (0, 0, 0)
        manifest = store.manifest
        return cls(
            name=store.name,
            rows=len(store),
            tokens=manifest.tokens,
            supervised_share=manifest.supervised / max(1, manifest.tokens),
            p50=int(p50),
            p95=int(p95),
            longest=int(longest),
            rejected=dict(manifest.rejected),
        )


def summary_table(summaries: Sequence[SourceSummary]) -> Table:
    """The summaries as a table for a rich console, a source a line; large numbers with three digits and a unit."""
    from rich.table import Table

    table = Table(title="Sources")
    table.add_column("source", overflow="fold")
    for heading in ("rows", "tokens", "supervised", "p50", "p95", "longest"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("rejected", overflow="fold")
    for summary in summaries:
        numbers = (summary.p50, summary.p95, summary.longest)
        rejected = ", ".join(f"{count:,} {reason}" for reason, count in sorted(summary.rejected.items()))
        table.add_row(
            summary.name,
            counted(summary.rows),
            counted(summary.tokens),
            f"{summary.supervised_share:.1%}",
            *map(counted, numbers),
            rejected or "none",
        )
    return table
