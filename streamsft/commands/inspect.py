"""``streamsft inspect``: what a token store holds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np
from rich.console import Console
from rich.table import Table

from streamsft.commands.console import make_console
from streamsft.commands.engines import opened_engine
from streamsft.engine import Engine
from streamsft.sources.addresses import is_address
from streamsft.sources.footers import versions
from streamsft.sources.grouprows import ReadOptions
from streamsft.sources.objects import Objects
from streamsft.sources.paths import Paths
from streamsft.sources.rowgroups import RowGroupStore
from streamsft.sources.store import TokenStore
from streamsft.sources.storefiles import find_store_files
from streamsft.text.progress import Progress, reporting

__all__ = ["StoreReport", "inspect", "print_report"]

_BAR = 40


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReport:
    """What a store holds.

    Attributes:
        layout: ``arrow``, ``parquet`` or ``json``; ``memory`` for one that is not on disk.
        rows: rows.
        usable: rows with a supervised token that has a context.
        tokens: tokens of all rows.
        supervised: those of them that are trained on, first tokens of rows not counted.
        largest_id: the largest token id, -1 without one.
        lengths: lengths in tokens: rows by length, as (from, to, rows) triples, both ends included.
        median: median length; p95 and longest likewise.
        files: name and size in bytes of each file.
        origins: names of the files that the rows were made of, where these are others.
        row_groups: row groups of Parquet, record batches of Arrow files; 0 in text files.
        carried: columns that travel with the rows.
        tokenizer: digest of the tokenizer that made the ids, '' where unknown.
        fingerprint: digest of the rows.
    """

    layout: str
    rows: int
    usable: int
    tokens: int
    supervised: int
    largest_id: int
    lengths: tuple[tuple[int, int, int], ...]
    median: int
    p95: int
    longest: int
    files: tuple[tuple[str, int], ...]
    origins: tuple[str, ...]
    row_groups: int
    carried: tuple[str, ...]
    tokenizer: str
    fingerprint: str

    @classmethod
    def of(cls, store: TokenStore | RowGroupStore) -> StoreReport:
        """What `store` holds; reads its lengths, not its tokens."""
        lengths, manifest, layout = store.lengths, store.manifest, store.layout
        own = {name for name, _ in layout.files}
        median, p95, longest = (
            np.quantile(lengths, (0.5, 0.95, 1.0), method="higher").tolist() if len(lengths) else (0, 0, 0)
        )
        return cls(
            layout=layout.kind,
            rows=len(store),
            usable=int(np.count_nonzero(store.first_supervised < lengths)),
            tokens=manifest.tokens,
            supervised=manifest.supervised,
            largest_id=manifest.largest_id,
            lengths=_histogram(lengths),
            median=int(median),
            p95=int(p95),
            longest=int(longest),
            files=layout.files,
            origins=tuple(name for name in store.files if name not in own),
            row_groups=layout.blocks,
            carried=store.carried,
            tokenizer=manifest.tokenizer,
            fingerprint=store.fingerprint,
        )

    @property
    def supervised_share(self) -> float:
        """Share of the tokens that are trained on, 0 to 1."""
        return self.supervised / max(1, self.tokens)

    def to_json(self) -> dict[str, Any]:
        """All of it, as JSON."""
        return {**asdict(self), "supervised_share": self.supervised_share}


def _histogram(lengths: Any) -> tuple[tuple[int, int, int], ...]:
    """Rows by length between powers of two."""
    if not len(lengths):
        return ()
    edges = 1 << np.arange(32)
    counts = np.bincount(np.searchsorted(edges, lengths, side="right"))
    bounds = [(0, 0), *((1 << n, (2 << n) - 1) for n in range(31))]
    found = np.flatnonzero(counts)
    return tuple((*bounds[n], int(counts[n])) for n in range(int(found[0]), int(found[-1]) + 1))


def inspect(
    store: Paths,
    *,
    extras: Sequence[str] = (),
    verify: bool = False,
    progress: bool | Progress = False,
    engine: Engine | str = "local",
    address: str | None = None,
    processes: int | None = None,
    console: Console | None = None,
) -> StoreReport:
    """Print what a token store holds. One that others wrote is checked whole when it is opened for the first time.

    Args:
        store: a directory, .arrow, .parquet, .jsonl or .json files, a pattern, or a list of these; or addresses of
            Parquet files.
        extras: further columns that are to travel with the rows.
        verify: read everything again, check every row, and compare it with what was written or found before.
        progress: True draws a bar on standard error; a function is called with (done, total) bytes instead.
        engine: ``local`` reads in this process, ``ray`` on a Ray cluster; or an `Engine`.
        address: of a running Ray cluster; by default one is started on this machine.
        processes: how many read; by default this one alone, and with Ray one per core of the cluster.
        console: where to print; standard output by default.

    Returns:
        What was printed.

    Raises:
        StoreError: there is no store, or it cannot be used; names file, row and what to do.
    """
    alone = engine == "local" and processes in (None, 1)
    with opened_engine(engine, address=address, processes=processes) as working:
        opened = _opened(store, extras, verify, progress, None if alone else working)
    report = StoreReport.of(opened)
    console = console or make_console()
    print_report(console, report)
    if verify:
        console.print("all rows were read and checked", markup=False, highlight=False)
    return report


def _opened(
    store: Paths, extras: Sequence[str], verify: bool, progress: bool | Progress, engine: Engine | None
) -> TokenStore | RowGroupStore:
    if any(map(is_address, [store] if isinstance(store, str | os.PathLike) else store)):
        total = sum(file.size for file in versions(Objects(store), ReadOptions().deadline))
        with reporting(progress, "rows", total, "checking") as advance:
            return RowGroupStore.open(store, extras=extras, verify=verify, advance=advance, engine=engine)
    total = sum(file.size for file in find_store_files(store).files)
    with reporting(progress, "rows", total, "checking") as advance:
        return TokenStore.open(store, extras=extras, verify=verify, advance=advance, engine=engine)


def _some(names: Sequence[str], most: int = 3) -> str:
    """The first of some names, and how many more there are."""
    more = [f"{len(names) - most:,} more"] if len(names) > most else []
    return ", ".join([*names[:most], *more])


def print_report(console: Console, report: StoreReport) -> None:
    """Print a report as tables."""
    facts = {
        "layout": report.layout,
        "rows": f"{report.rows:,}",
        "usable rows": f"{report.usable:,}",
        "tokens": f"{report.tokens:,}",
        "supervised": f"{report.supervised_share:.1%}",
        "length": f"median {report.median:,}, 95 % up to {report.p95:,}, longest {report.longest:,}",
        "largest id": f"{report.largest_id:,}",
        "row groups": f"{report.row_groups:,}",
        "carried": ", ".join(report.carried) or "nothing",
        "tokenizer": report.tokenizer or "unknown",
        "fingerprint": report.fingerprint,
    }
    if report.origins:
        facts["made of"] = _some(report.origins)
    table = Table(show_header=False, box=None)
    for name, value in facts.items():
        table.add_row(name, value)
    console.print(table)
    console.print(_lengths_table(report))
    files = Table(title="Files", title_justify="left", box=None)
    files.add_column("file", overflow="fold")
    files.add_column("bytes", justify="right")
    for name, size in report.files:
        files.add_row(name, f"{size:,}")
    console.print(files)


def _lengths_table(report: StoreReport) -> Table:
    table = Table(title="Lengths in tokens", title_justify="left", box=None, show_header=False)
    table.add_column(justify="right")
    table.add_column(justify="right")
    table.add_column()
    most = max((rows for _, _, rows in report.lengths), default=1)
    for low, high, rows in report.lengths:
        bar = "█" * round(_BAR * rows / most) or ("▏" if rows else "")
        table.add_row(f"{low:,} to {high:,}" if high > low else f"{low:,}", f"{rows:,}", bar)
    return table
