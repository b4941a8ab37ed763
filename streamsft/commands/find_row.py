"""``streamsft explain --find``: in which steps a row appears."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from streamsft.build import build
from streamsft.build_sources import Transforms
from streamsft.comm import LocalComm
from streamsft.commands.console import make_console
from streamsft.commands.marked import LEGEND
from streamsft.commands.preparing import prepare_sources
from streamsft.commands.preview_row import find_source
from streamsft.commands.telling import telling
from streamsft.config import ConfigLike, load_config
from streamsft.encoders import Encoders
from streamsft.errors import ConfigError, DataError
from streamsft.shown import placed
from streamsft.stream.appearances import Appearance, appearances
from streamsft.stream.loader import Loader
from streamsft.stream.skipping import stream_step
from streamsft.stream.stretches import checked_stretches

__all__ = ["find_row"]


def find_row(
    config: ConfigLike,
    row: str,
    *,
    steps: int | None = None,
    overrides: Iterable[str] = (),
    transforms: Transforms | None = None,
    console: Console | None = None,
) -> list[Appearance]:
    """Print in which steps a row appears, planned from lengths alone.

    Args:
        config: a file, a mapping, or a `Config`.
        row: ``SOURCE:ROW``, the row by its number in the source's input, from 0, as in the audit.
        steps: how many optimizer steps to look through; by default `train.steps`.
        overrides: ``key.path=value`` texts laid over the config.
        transforms: source name → function from a row to ``input_ids`` and ``loss_mask``.
        console: where to print; standard output by default.

    Returns:
        Every time that the row is given, by step of the stream, those that `train.skip_steps` leaves out apart.

    Raises:
        ConfigError: a source of the mix streams, or `steps` is missing.
        DataError: the row is never drawn; says why.
        StreamsftError: what can be mended otherwise.
    """
    console = console or make_console()
    loaded = load_config(config, overrides, without_tokenizer=transforms or ())
    steps = loaded.train.steps if steps is None else steps
    if steps is None or steps < 1:
        raise ConfigError(f"--find {row}: {steps} steps to look through; give --steps, or train.steps in the config")
    name, _, number = find_source(loaded, row, "--find")
    encoders = Encoders(loaded)
    sources = prepare_sources(loaded, encoders, LocalComm(), transforms=transforms)
    loader = build(loaded, sources, encoders).loader
    plan = loader.packer.plan(loader.topology.lanes)
    if plan.streaming:
        streamed = ", ".join(plan.names[at] for at in plan.streaming)
        raise ConfigError(f"--find {row}: {streamed} is read in order, so that the mix cannot be planned by lengths")
    skipped = checked_stretches(loader.skip_steps)
    with telling(f"planning {steps:,} steps") as told:
        leaf, stored = _stored(loader, name, number)
        found = appearances(plan, loader.topology, leaf, stored, stream_step(steps, skipped), told)
    found = [one for one in found if not any(first <= one.step <= last for first, last in skipped)]
    _print_appearances(console, f"{name}:{number}", found, steps)
    return found


def _stored(loader: Loader, name: str, number: int) -> tuple[int, int]:
    """The number of a source in the mix, and of one of its rows in the store."""
    at = next((at for at, leaf in enumerate(loader.packer.mixture.leaves) if leaf.name == name), None)
    if at is None:
        raise DataError(f"source {name}: its weight is 0, so none of its rows is ever drawn")
    leaf = loader.packer.mixture.leaves[at]
    numbers = leaf.indexed.row_numbers
    stored = int(np.searchsorted(numbers, number))
    if stored == len(numbers) or numbers[stored] != number:
        raise DataError(
            f"source {name}: row {number} is not in its store: it was rejected or held out, or there is no such row; "
            f"streamsft preview CONFIG --row {name}:{number} says why"
        )
    if leaf.usable is not None and stored not in leaf.usable:
        raise DataError(
            f"source {name}: row {number} ({placed(leaf.indexed.origin(stored))}) is never drawn: it is too long, or "
            f"nothing of it is {LEGEND} within sequence_length {loader.packer.packing.sequence_length}"
        )
    return at, stored


def _print_appearances(console: Console, row: str, found: Sequence[Appearance], steps: int) -> None:
    table = Table(title=f"{row} in {steps:,} steps", box=box.SIMPLE_HEAD)
    for heading in ("step", "pack", "pass", "from token"):
        table.add_column(heading, justify="right")
    for one in found:
        table.add_row(f"{one.step:,}", str(one.pack), str(one.pass_index), str(one.start) if one.start else "")
    console.print(table if found else f"{row} does not appear in {steps:,} steps", highlight=False)
