"""Arguments and options that commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["KEPT", "Address", "ConfigFile", "Debug", "EngineName", "Json", "Overrides", "Processes", "Verify"]

KEPT = "nothing half-written is left, and what was tokenized is kept in the cache"


def _keys(incomplete: str) -> list[str]:
    """What shells complete an override with."""
    from streamsft.config_models import SECTIONS

    sections = [(section, model) for section, model in SECTIONS.items() if "*" not in section]
    keys = [".".join((*map(str, section), key)) for section, model in sections for key in model.model_fields]
    return [f"{key}=" for key in keys if key.startswith(incomplete)]


ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="A config file (YAML).", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE", help="Overrides, such as train.steps=100.", show_default=False, autocompletion=_keys
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show where an error was raised.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object, on standard output; the rest on standard error.")
]
Verify = Annotated[bool, typer.Option("--verify", help="Read token stores whole and compare their checksums.")]
Processes = Annotated[
    int | None,
    typer.Option(
        "--processes",
        "-j",
        metavar="N",
        min=1,
        help="Processes that tokenize, or Ray workers; by default one per core.",
    ),
]
EngineName = Annotated[
    str, typer.Option("--engine", metavar="local|ray", help="Where the work is done: on this machine, or by Ray.")
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address", metavar="HOST:PORT|auto", help="A running Ray cluster; by default one is started on this machine."
    ),
]
