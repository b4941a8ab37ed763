"""The command line. Each command is a function of `streamsft.commands`; nothing heavy is imported before one runs.

A user's error is printed as one message, with exit code 2; ``--debug`` shows where it was raised.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, ParamSpec

import typer

__all__ = ["app"]

P = ParamSpec("P")

USER_ERROR = 2
INTERRUPTED = 130

app = typer.Typer(
    name="streamsft",
    help="Endless, weighted, packed, loss-masked batches for fine-tuning, that resume on the exact sample.",
    rich_markup_mode=None,  # plain help, without the time that rich takes to import
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="A config file (YAML).", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Overrides, such as train.steps=100.", show_default=False),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show where an error was raised.")]
Verify = Annotated[bool, typer.Option("--verify", help="Read token stores whole and compare their checksums.")]
StorePaths = Annotated[
    list[str],
    typer.Argument(metavar="STORE", help="A token store: a directory, files or patterns.", show_default=False),
]
Extras = Annotated[
    list[str] | None, typer.Option("--extras", metavar="COLUMN", help="A column that travels with the rows.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Processes = Annotated[
    int | None, typer.Option("--processes", "-j", min=1, help="Processes that tokenize; by default one per core.")
]


def _reporting(command: Callable[P, None]) -> Callable[P, None]:
    """Print what a user can mend as one message, and end with exit code 2."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        from streamsft.errors import StreamsftError

        _set_up()
        try:
            command(*args, **kwargs)
        except StreamsftError as error:
            if kwargs.get("debug"):
                raise
            notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
            _print_error(f"{error}{notes}", everywhere=not error.shared)
            if error.shared:
                _wait_until_told()
            raise SystemExit(USER_ERROR) from None
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has gone: nothing more to say
            raise SystemExit(0) from None

    return run


def _set_up() -> None:
    """Show what streamsft logs; and on a busy machine let torch's threads sleep, not spin, while they wait.

    With 11 processes on 2 cores, spinning made a step of a tiny model 25 times slower.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    first = os.environ.get("RANK", "0") == "0"
    logging.basicConfig(format="%(message)s")
    logging.getLogger("streamsft").setLevel(logging.INFO if first else logging.ERROR)


def _wait_until_told() -> None:
    """Let no rank end before rank 0 has printed what they all raise: torchrun ends the others when one does."""
    from streamsft.comm import current

    current().barrier()


def _print_error(message: str, *, everywhere: bool) -> None:
    rank = int(os.environ.get("RANK", "0"))
    if rank == 0 or everywhere:
        where = f"rank {rank}: " if rank else ""
        print(f"error: {where}{message}", file=sys.stderr, flush=True)


@app.command()
@_reporting
def demo(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="DIR|KEY=VALUE", help="Where to put it (streamsft-demo), and overrides."),
    ] = None,
    *,
    fresh: Annotated[bool, typer.Option("--fresh", help="Move an earlier run aside and train again.")] = False,
    debug: Debug = False,
) -> None:
    """Train on generated data, from nothing to a falling loss.

    Writes three small corpora in three formats, a tokenizer trained on them and a config into DIR, trains a tiny
    model as the config says, and tells what to try next.
    """
    from streamsft.commands.demo import demo

    given = list(arguments or ())
    folder = given.pop(0) if given and "=" not in given[0] else "streamsft-demo"
    raise SystemExit(demo(folder, overrides=given, fresh=fresh).exit_code)


@app.command()
@_reporting
def validate(config: ConfigFile, overrides: Overrides = None, *, verify: Verify = False, debug: Debug = False) -> None:
    """Check a config, its files and its tokenizer.

    No row is tokenized. Every mistake in the config is told at once.
    """
    from streamsft.commands.validate import validate

    validate(config, overrides=overrides or (), verify=verify)


@app.command()
@_reporting
def tokenize(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    processes: Processes = None,
    verify: Verify = False,
    debug: Debug = False,
) -> None:
    """Tokenize all sources of a config into the cache.

    Says per source how many rows and tokens there are, what was rejected and why, and where the store lies.
    """
    from streamsft.commands.tokenize import tokenize

    tokenize(config, overrides=overrides or (), processes=processes, verify=verify)


@app.command()
@_reporting
def preview(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    row: Annotated[
        str | None, typer.Option("--row", metavar="SOURCE:ROW", help="Show one row of a source's input instead.")
    ] = None,
    packs: Annotated[int, typer.Option("--packs", "-n", min=0, help="How many packs to show.")] = 2,
    draws: Annotated[int, typer.Option("--draws", min=1, help="How many draws to plan for the mix.")] = 10_000,
    debug: Debug = False,
) -> None:
    """Show the pipeline, the mix and some packs.

    Packs are decoded, with documents bordered and supervised tokens coloured. With --row, one row's rendered text,
    spans, tokens and mask, or why it was rejected.
    """
    if row is not None:
        from streamsft.commands.preview_row import preview_row

        preview_row(config, row, overrides=overrides or ())
    else:
        from streamsft.commands.preview import preview

        preview(config, overrides=overrides or (), packs=packs, draws=draws)


@app.command()
@_reporting
def train(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    fresh: Annotated[bool, typer.Option("--fresh", help="Move an earlier run aside and start over.")] = False,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Go on although the mix was edited since the checkpoint.")
    ] = False,
    verify: Verify = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no table at log steps.")] = False,
    debug: Debug = False,
) -> None:
    """Train, or go on with a run that was stopped.

    A run directory with a checkpoint is resumed on the exact sample. Works below torchrun.
    """
    from streamsft.commands.train import train

    result = train(
        config, overrides=overrides or (), fresh=fresh, accept_changes=accept_changes, verify=verify, quiet=quiet
    )
    raise SystemExit(result.exit_code)


@app.command()
@_reporting
def inspect(
    store: StorePaths,
    *,
    extras: Extras = None,
    verify: Verify = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show what a token store holds.

    Rows, tokens, the supervised share, lengths, files, row groups and the fingerprint. With --verify every row is
    read and checked again.
    """
    from streamsft.commands.inspect import inspect

    paths = store if len(store) > 1 else store[0]
    inspect(paths, extras=extras or (), verify=verify, progress=sys.stderr.isatty(), as_json=as_json)


@app.command()
@_reporting
def convert(
    source: StorePaths,
    target: Annotated[str, typer.Argument(metavar="DST", help="An .arrow or .parquet file, or a directory.")],
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
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Write a token store in another layout.

    Reads a directory, .arrow, .parquet, .jsonl or .json files; the last argument is where to write. Every row is
    checked on the way, and what was written is read back.
    """
    from streamsft.commands.convert import checked_layout, convert

    convert(
        source if len(source) > 1 else source[0],
        target,
        to=checked_layout(to),
        row_group_tokens=row_group_tokens,
        file_tokens=file_tokens,
        extras=extras or (),
        progress=sys.stderr.isatty(),
        as_json=as_json,
    )


@app.command()
def version() -> None:
    """Print the versions of streamsft and of what it builds on."""
    from streamsft.commands.version import versions

    for name, number in versions().items():
        print(f"{name} {number}")
