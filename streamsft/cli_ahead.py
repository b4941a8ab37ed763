"""The commands that look ahead of a run, or back at one of its steps: init, forecast, explain."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from streamsft.cli_options import KEPT, ConfigFile, Debug, Json, Overrides
from streamsft.cli_running import Outcome, running

__all__ = ["register"]

_Steps = Annotated[
    int | None,
    typer.Option("--steps", metavar="N", min=1, help="How many optimizer steps to look at; by default train.steps."),
]


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    for command in (init, forecast, explain):
        app.command()(command)


@running("stopped; a config that was written is kept")
def init(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where data files lie, at any depth, and the config goes.")
    ],
    *,
    data: Annotated[
        list[str] | None, typer.Option("--data", metavar="PATH", help="A data file, glob or folder instead of DIR's.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", metavar="NAME", help="A folder, a hub id, or package:NAME.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The config; by default DIR/streamsft.yaml.")
    ] = None,
    sequence_length: Annotated[
        int | None, typer.Option("--sequence-length", metavar="N", min=2, help="Slots per pack.")
    ] = None,
    check: Annotated[bool, typer.Option(help="Validate the config and preview its mix.")] = True,
    as_json: Json = False,
    debug: Debug = False,
) -> Outcome:
    """Write a first config for files of one's own.

    Looks at the rows, proposes formats, weights and lengths, and writes them with comments; then validates the config
    and shows a preview. Asks at a terminal for what is not given. Never overwrites a file.
    """
    from streamsft.commands.console import make_console
    from streamsft.commands.init import init

    found = init(
        folder,
        data=data or (),
        tokenizer=tokenizer,
        output=output,
        sequence_length=sequence_length,
        check=check,
        ask=sys.stdin.isatty() and not as_json,
        console=make_console(stderr=as_json),
    )
    return Outcome({"command": "init", "ok": True, **found.to_json()})


@running(f"stopped; {KEPT}")
def forecast(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    steps: _Steps = None,
    tokens_per_second: Annotated[
        float | None,
        typer.Option("--tokens-per-second", metavar="N", min=1e-9, help="Slots read per second: tells the time."),
    ] = None,
    max_passes: Annotated[
        float, typer.Option("--max-passes", metavar="N", help="Warn of a source that is seen more often.")
    ] = 4.0,
    max_cut: Annotated[
        float, typer.Option("--max-cut", metavar="PERCENT", help="Warn of a source of which more tokens are cut off.")
    ] = 5.0,
    weights_for: Annotated[
        str | None,
        typer.Option(
            "--weights-for",
            metavar="passes=N,…",
            help="Print weights and steps that give so many passes, as passes=3,gsm8k=1; instead of --steps.",
        ),
    ] = None,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Estimate from the first draws, for runs too long to be counted.")
    ] = False,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write charts to this file.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> Outcome:
    """Tell what a run will be given, before it is started.

    Samples, tokens, supervised tokens and passes per source, how many of its rows are seen, what is cut off, how full
    packs are. Counted without reading tokens, and equal to what the run's audit will say; estimated where a source
    streams.
    """
    from streamsft.commands.console import make_console
    from streamsft.commands.forecast import forecast

    found = forecast(
        config,
        overrides=overrides or (),
        steps=steps,
        tokens_per_second=tokens_per_second,
        max_passes=max_passes,
        max_cut=max_cut,
        weights_for=weights_for,
        estimate=estimate,
        html=html,
        console=make_console(stderr=as_json),
    )
    return Outcome({"command": "forecast", "ok": True, **found.to_json()})


@running(f"stopped; {KEPT}")
def explain(
    config: Annotated[
        str | None,
        typer.Argument(
            metavar="[CONFIG]", help="A config file (YAML); with --run that of the run.", show_default=False
        ),
    ] = None,
    overrides: Overrides = None,
    *,
    step: Annotated[int | None, typer.Option("--step", metavar="N", min=1, help="The optimizer step.")] = None,
    run: Annotated[
        Path | None, typer.Option("--run", metavar="DIR", help="A run, for its checkpoints and edits.")
    ] = None,
    rank: Annotated[
        int | None, typer.Option("--rank", metavar="R", min=0, help="Show this rank's packs alone.")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option("--ranks", metavar="N", min=1, help="Data-parallel ranks; by default 1.")
    ] = None,
    decode: Annotated[bool, typer.Option("--decode", help="Print the text of each document.")] = False,
    find: Annotated[
        str | None, typer.Option("--find", metavar="SOURCE:ROW", help="Tell in which steps a row appears instead.")
    ] = None,
    steps: _Steps = None,
    as_json: Json = False,
    debug: Debug = False,
) -> Outcome:
    """Show which rows of which files made a step, and where they lie in its packs.

    Planned by lengths alone, on any number of ranks, up to that step; from the nearest checkpoint with --run, as
    streamed mixes need it, and then says if the run has not made that step yet. With --find, the steps in which a row
    appears. Rows are numbered from 0, in a source as in a file; lines, as messages and rejected.jsonl have them,
    from 1.
    """
    from streamsft.commands.console import make_console
    from streamsft.commands.explain_run import run_config
    from streamsft.errors import ConfigError

    console = make_console(stderr=as_json)
    overrides = list(overrides or ())
    if config is not None and "=" in config:
        overrides.insert(0, config)
        config = None
    if (step is None) == (find is None):
        raise ConfigError("explain: give one of --step N and --find SOURCE:ROW")
    unused = {"--steps": steps} if find is None else {"--rank": rank, "--ranks": ranks, "--decode": decode or None}
    if given := [option for option, value in unused.items() if value is not None]:
        raise ConfigError(
            f"explain: {given[0]} is of no use with {'--step' if find is None else '--find'}; leave it out"
        )
    if find is not None:
        from streamsft.commands.find_row import find_row

        searched = run_config(run) if config is None else config
        places = find_row(searched, find, steps=steps, overrides=overrides, console=console)
        return Outcome({"command": "explain", "ok": True, "row": find, "steps": [one._asdict() for one in places]})
    from streamsft.commands.explain import explain

    assert step is not None
    found = explain(
        config, step, run=run, rank=rank, ranks=ranks or 1, overrides=overrides, decode=decode, console=console
    )
    return Outcome({"command": "explain", "ok": True, **found.to_json()})
