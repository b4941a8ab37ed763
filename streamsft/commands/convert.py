"""``streamsft convert``: the rows of a store in another layout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from streamsft.commands.console import make_console
from streamsft.commands.inspect import StoreReport, print_report
from streamsft.errors import ConfigError
from streamsft.sources.converting import Layouts, convert_store
from streamsft.sources.paths import Paths
from streamsft.sources.rowgroups import RowGroupStore
from streamsft.sources.store import TokenStore
from streamsft.sources.storefiles import find_store_files
from streamsft.text.progress import Progress, reporting

__all__ = ["checked_layout", "convert"]


def checked_layout(name: str | None) -> Layouts | None:
    """The layout of that name.

    Raises:
        ConfigError: there is none.
    """
    match name:
        case None | "store" | "arrow" | "parquet":
            return name
    raise ConfigError(f"--to {name}: there are the layouts store, arrow and parquet")


def convert(
    source: Paths,
    target: str | Path,
    *,
    to: Layouts | None = None,
    row_group_tokens: int = 1 << 20,
    file_tokens: int | None = None,
    extras: Sequence[str] = (),
    progress: bool | Progress = False,
    console: Console | None = None,
) -> TokenStore | RowGroupStore:
    """Write the rows of a store in another layout, and print what came of it.

    Every row is checked on the way, and what was written is read back.

    Args:
        source: any store: a directory, .arrow, .parquet, .jsonl or .json files, a pattern, or a list of these.
        target: an .arrow or .parquet file, or a directory, or an address of Parquet files (``s3://bucket/folder``);
            nothing may be there.
        to: the layout of a directory: ``store`` (the default), ``arrow`` or ``parquet``.
        row_group_tokens: most tokens of a row group or record batch.
        file_tokens: begin another file when one holds so many tokens; in a directory of arrow or parquet files.
        extras: further columns to take along, to arrow or parquet.
        progress: True draws a bar on standard error; a function is called with (done, total) bytes instead.
        console: where to print; standard output by default.

    Returns:
        The new store; at an address one that is read by row groups.

    Raises:
        StoreError: the source cannot be used, or the target cannot be written.
    """
    total = sum(file.size for file in find_store_files(source).files)
    with reporting(progress, str(target), total, "converting to") as advance:
        store = convert_store(
            source,
            target,
            to=to,
            row_group_tokens=row_group_tokens,
            file_tokens=file_tokens,
            extras=extras,
            advance=advance,
        )
    print_report(console or make_console(), StoreReport.of(store))
    return store
