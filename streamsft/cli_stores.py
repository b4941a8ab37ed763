"""The commands on token stores: inspect, convert."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from streamsft.cli_options import Address, Debug, EngineName, Json, Verify
from streamsft.cli_running import Outcome, running

__all__ = ["register"]

StorePaths = Annotated[
    list[str],
    typer.Argument(metavar="STORE", help="A token store: a directory, files or patterns.", show_default=False),
]
Extras = Annotated[
    list[str] | None, typer.Option("--extras", metavar="COLUMN", help="A column that travels with the rows.")
]


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    for command in (inspect, convert):
        app.command()(command)


@running("stopped")
def inspect(
    store: StorePaths,
    *,
    extras: Extras = None,
    verify: Verify = False,
    engine: EngineName = "local",
    address: Address = None,
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes", "-j", metavar="N", min=1, help="Processes that read; by default one, or by Ray all."
        ),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> Outcome:
    """Show what a token store holds.

    Rows, tokens, the supervised share, lengths, files, row groups and the fingerprint. With --verify every row is
    read and checked again, with --engine ray by the workers of a Ray cluster.
    """
    from streamsft.commands.console import make_console
    from streamsft.commands.inspect import inspect

    paths = store if len(store) > 1 else store[0]
    progress = sys.stderr.isatty()
    report = inspect(
        paths,
        extras=extras or (),
        verify=verify,
        progress=progress,
        engine=engine,
        address=address,
        processes=processes,
        console=make_console(stderr=as_json),
    )
    return Outcome({"command": "inspect", "ok": True, **report.to_json()})


@running("stopped; nothing was published")
def convert(
    source: StorePaths,
    target: Annotated[
        str,
        typer.Argument(metavar="DST", help="An .arrow or .parquet file, a directory, or an address of Parquet files."),
    ],
    *,
    to: Annotated[
        str | None, typer.Option("--to", help="Layout of a directory: store (the default), arrow or parquet.")
    ] = None,
    row_group_tokens: Annotated[
        int, typer.Option("--row-group-tokens", min=1, help="Most tokens of a row group or record batch.")
    ] = 1 << 20,
    file_tokens: Annotated[
        int | None, typer.Option("--file-tokens", min=1, help="Begin another file at so many tokens.")
    ] = None,
    extras: Extras = None,
    as_json: Json = False,
    debug: Debug = False,
) -> Outcome:
    """Write a token store in another layout.

    Reads a directory, .arrow, .parquet, .jsonl or .json files; the last argument is where to write. Every row is
    checked on the way, and what was written is read back.
    """
    from streamsft.commands.console import make_console
    from streamsft.commands.convert import checked_layout, convert
    from streamsft.commands.inspect import StoreReport

    store = convert(
        source if len(source) > 1 else source[0],
        target,
        to=checked_layout(to),
        row_group_tokens=row_group_tokens,
        file_tokens=file_tokens,
        extras=extras or (),
        progress=sys.stderr.isatty(),
        console=make_console(stderr=as_json),
    )
    return Outcome({"command": "convert", "ok": True, **StoreReport.of(store).to_json()})
