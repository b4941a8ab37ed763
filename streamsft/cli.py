"""The command line. Each command is a function of `streamsft.commands`; nothing heavy is imported before one runs.

What all commands have in common, errors, exit codes and ``--json``, is in `streamsft.cli_running`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast, final

import typer
from typer.core import TyperGroup

from streamsft import cli_ahead, cli_stores
from streamsft.cli_options import KEPT, Address, ConfigFile, Debug, EngineName, Json, Overrides, Processes, Verify
from streamsft.cli_running import Outcome, running, tell_misused

__all__ = ["app"]


@final
class _Commands(TyperGroup):
    """The commands; a command line that cannot be understood is told as JSON too, where that is asked for."""

    def invoke(self, ctx: Any) -> Any:
        given = [*ctx._protected_args, *ctx.args]
        try:
            return super().invoke(ctx)
        except _MISUSED as error:
            if "--json" in given:
                tell_misused(given[0], error.format_message(), error.exit_code)
            raise


# What typer itself shows the message of, and ends with the exit code of; it gives it no name.
_MISUSED = cast(type[typer.BadParameter], typer.BadParameter.__mro__[2])

app = typer.Typer(
    cls=_Commands,
    name="streamsft",
    help="Endless, weighted, packed, loss-masked batches for fine-tuning, that resume on the exact sample.",
    rich_markup_mode=None,  # plain help, without the time that rich takes to import
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        from streamsft import __version__

        print(f"streamsft {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Endless, weighted, packed, loss-masked batches for fine-tuning, that resume on the exact sample."""


@app.command()
@running("stopped; the same command goes on, from the last checkpoint if there is one")
def demo(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="DIR|KEY=VALUE", help="Where to put it (streamsft-demo), and overrides."),
    ] = None,
    *,
    fresh: Annotated[bool, typer.Option("--fresh", help="Move an earlier run aside and train again.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> Outcome:
    """Train on generated data, from nothing to a falling loss.

    Writes three small corpora in three formats, a tokenizer trained on them and a config into DIR, trains a tiny
    model as the config says, and tells what to try next.
    """
    from streamsft.commands.console import make_console
    from streamsft.commands.demo import demo
    from streamsft.commands.jsonviews import train_view

    given = list(arguments or ())
    folder = given.pop(0) if given and "=" not in given[0] else "streamsft-demo"
    result = demo(folder, overrides=given, fresh=fresh, console=make_console(stderr=as_json))
    return Outcome({"command": "demo", "ok": not result.exit_code, **train_view(result)}, result.exit_code)


@app.command()
@running("stopped; nothing was written")
def validate(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    verify: Verify = False,
    as_json: Json = False,
    debug: Debug = False,
) -> Outcome:
    """Check a config, its files and its tokenizer.

    No row is tokenized. Every mistake in the config is told at once.
    """
    from streamsft.commands.console import make_console
    from streamsft.commands.jsonviews import validate_view
    from streamsft.commands.validate import validate

    read = validate(config, overrides=overrides or (), verify=verify, console=make_console(stderr=as_json))
    return Outcome({"command": "validate", "ok": True, **validate_view(read)})


@app.command()
@running(f"stopped; {KEPT}: the same command goes on behind it")
def tokenize(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    processes: Processes = None,
    engine: EngineName = "local",
    address: Address = None,
    verify: Verify = False,
    as_json: Json = False,
    debug: Debug = False,
) -> Outcome:
    """Tokenize all sources of a config into the cache.

    Says per source how many rows and tokens there are, what was rejected and why, and where the store lies. A call
    that was stopped is gone on with: what it has published is not tokenized again. On a Ray cluster with
    `--engine ray` the stores are the same.
    """
    from streamsft.commands.console import make_console
    from streamsft.commands.engines import opened_engine
    from streamsft.commands.jsonviews import stores_view
    from streamsft.commands.tokenize import tokenize

    console = make_console(stderr=as_json)
    with opened_engine(engine, address=address, processes=processes) as working:
        stores = tokenize(config, overrides=overrides or (), engine=working, verify=verify, console=console)
    return Outcome({"command": "tokenize", "ok": True, **stores_view(stores, working.done)})


@app.command()
@running(f"stopped; {KEPT}")
def preview(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    row: Annotated[
        str | None, typer.Option("--row", metavar="SOURCE:ROW", help="Show one row of a source's input instead.")
    ] = None,
    packs: Annotated[
        int | None,
        typer.Option("--packs", "-n", metavar="N", min=0, help="How many packs to show; by default 2, in a page 8."),
    ] = None,
    draws: Annotated[
        int, typer.Option("--draws", metavar="N", min=1, help="How many draws to plan for the mix.")
    ] = 10_000,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the packs to a page instead of printing them.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> Outcome:
    """Show the pipeline, the mix and some packs.

    Packs are decoded, with documents bordered and supervised tokens coloured. With --row, one row's rendered text,
    spans, tokens and mask, or why it was rejected. With --html, a page to search and to look at tokens one by one.
    """
    from streamsft.commands.console import make_console
    from streamsft.commands.jsonviews import preview_view, row_view
    from streamsft.errors import ConfigError

    for option, given in (("--html", html), ("--packs", packs)):
        if row is not None and given is not None:
            raise ConfigError(f"{option} shows packs, --row one row; give one of them")
    console = make_console(stderr=as_json)
    if row is not None:
        from streamsft.commands.preview_row import preview_row

        reason = preview_row(config, row, overrides=overrides or (), console=console)
        return Outcome({"command": "preview", "ok": True, **row_view(row, reason)})
    from streamsft.commands.preview import preview

    shown = packs if packs is not None else 8 if html is not None else 2
    survey = preview(config, overrides=overrides or (), packs=shown, draws=draws, html=html, console=console)
    return Outcome({"command": "preview", "ok": True, **preview_view(survey)})


@app.command()
@running(f"stopped at once; {KEPT}; the same command goes on, from the last checkpoint if there is one")
def train(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    fresh: Annotated[bool, typer.Option("--fresh", help="Move an earlier run aside and start over.")] = False,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Go on although the mix was edited since the checkpoint.")
    ] = False,
    verify: Verify = False,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Print no tables: a line at the start, at each checkpoint and at the end."),
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> Outcome:
    """Train, or go on with a run that was stopped.

    A run directory with a checkpoint is resumed on the exact sample. Works below torchrun.
    """
    from streamsft.commands.console import make_console
    from streamsft.commands.jsonviews import train_view
    from streamsft.commands.train import train

    result = train(
        config,
        overrides=overrides or (),
        fresh=fresh,
        accept_changes=accept_changes,
        verify=verify,
        quiet=quiet,
        console=make_console(stderr=as_json),
    )
    return Outcome({"command": "train", "ok": not result.exit_code, **train_view(result)}, result.exit_code)


for register in (cli_ahead.register, cli_stores.register):
    register(app)


@app.command()
@running("stopped; nothing half-written is left")
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="The run's directory, or several to compare.", show_default=False),
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="The page; by default report.html in the run's directory, for several runs in the current one.",
        ),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> Outcome:
    """Write a page about a run, or one that compares runs.

    One file that opens offline: the mix over time, tokens, passes, lengths, packing, rows that are not used,
    throughput, loss, resumes and edits of the mix, the config. An earlier page is replaced, another file never. Runs
    may still be going on.
    """
    from streamsft.commands.report import report

    notices: list[str] = []
    page = report(runs, out, notices=notices)
    if not as_json:
        print(page)
    return Outcome({"command": "report", "ok": True, "page": page, "notices": notices})


@app.command()
@running("stopped")
def version(*, as_json: Json = False, debug: Debug = False) -> Outcome:
    """Print the versions of streamsft and of what it builds on."""
    from streamsft.commands.version import versions

    found = versions()
    for name, number in found.items() if not as_json else ():
        print(f"{name} {number}")
    return Outcome({"command": "version", "ok": True, "versions": found})
