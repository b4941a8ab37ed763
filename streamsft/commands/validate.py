"""``streamsft validate``: whether a config's run could start, without tokenizing anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from rich.console import Console

from streamsft.build_ahead import check_sizes, packing_of
from streamsft.build_eval import eval_sources
from streamsft.build_sources import Transforms, check_transforms, drawn_sources
from streamsft.build_stores import holds_tokens, open_tokens
from streamsft.commands.console import make_console
from streamsft.config import Config, ConfigLike, SourceConfig, load_config
from streamsft.config_origin import pointing
from streamsft.encoders import Encoders
from streamsft.errors import ConfigError, EmptySourceError, StreamsftError
from streamsft.sources.files import RawFiles
from streamsft.sources.rawrows import BadRow, RowReader
from streamsft.stream.mixture import usable_rows
from streamsft.stream.packing import Packing
from streamsft.text.conversation import RowRejected
from streamsft.text.formats import parser
from streamsft.text.jobs import decode_columns
from streamsft.text.readers import open_reader
from streamsft.text.tokenizing import detect_source_format

__all__ = ["validate"]

_PROBED = 64
"""Chunks that are looked through for a row that can be used: about 16 MiB of text."""


@pointing
def validate(
    config: ConfigLike,
    *,
    overrides: Iterable[str] = (),
    transforms: Transforms | None = None,
    verify: bool = False,
    console: Console | None = None,
) -> Config:
    """Check a config, and that its files, stores and tokenizer are there and fit together.

    Local files are listed and their first rows read, up to one that can be used; datasets of the hub are not
    looked up.

    Args:
        config: a file, a mapping, or a `Config`.
        overrides: ``key.path=value`` texts laid over it.
        transforms: source name → function that makes its rows into tokens.
        verify: read token stores whole and compare their checksums.
        console: where to print; standard output by default.

    Returns:
        The config.

    Raises:
        StreamsftError: what can be mended; all sources that cannot be used are told at once.
    """
    console = console or make_console()
    config = load_config(config, overrides, without_tokenizer=transforms or ())
    check_transforms(config, transforms or {})
    check_sizes(config)
    encoders, packing = Encoders(config), packing_of(config)
    lines: list[str] = []
    problems: dict[str, list[str]] = {}
    shared: dict[str, None] = {}
    for name, source in {**drawn_sources(config), **eval_sources(config)}.items():
        transformed = name in (transforms or {})
        try:
            if not transformed and not holds_tokens(source):
                encoders.of(source)
        except StreamsftError as error:
            shared[str(error)] = None
        try:
            lines.append(f"{name}: {_look(name, source, encoders, packing, transformed=transformed, verify=verify)}")
        except StreamsftError as error:
            problem = str(error)
            for begins in (f"source {name}: ", f"source {name!r} ", f"source {name!r}, "):
                problem = problem.removeprefix(begins)
            problems.setdefault(problem, []).append(name)
    if shared or problems:
        unusable = sum(map(len, problems.values()))
        count = f"{unusable} of {len(lines) + unusable} sources cannot be used" if problems else "no run could start"
        raise ConfigError("\n  ".join([count, *shared, *(_told(*problem) for problem in problems.items())]))
    for line in [*lines, "the config is valid"]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return config


def _told(problem: str, names: Sequence[str]) -> str:
    """A problem of one source by its name, and one of several by itself: it is of what they share."""
    return f"source {names[0]}: {problem}" if len(names) == 1 else problem


def _look(
    name: str, source: SourceConfig, encoders: Encoders, packing: Packing, *, transformed: bool, verify: bool
) -> str:
    """Check one source and say what it is."""
    tokens = not transformed and holds_tokens(source)
    if tokens and not source.streaming:
        store = open_tokens(name, source, encoders, verify=verify, progress=True)
        _, left_out = usable_rows(store, packing.of(source.overflows))
        return ", ".join([f"a store of {len(store):,} rows", *(f"{n:,} {reason}" for reason, n in left_out.items())])
    if tokens:
        return "tokens, streamed"
    streamed = ", streamed" if source.streaming else ""
    if source.path is None:
        return f"{source.hub} on the hub, not looked up{streamed}"
    files = open_reader(source.path) if not source.streaming else RawFiles(source.path)
    columns = source.columns or {}
    if transformed:
        made_by = "a transform"
        _probe(files, lambda row: None)
    else:
        made_by = source.format or detect_source_format(files, name, columns)
        parse = parser(made_by, columns)
        _probe(files, lambda row: parse(decode_columns(row, columns)))
    count = f"{len(files.files)} files" if len(files.files) > 1 else "1 file"
    return f"{count}, {files.size:,} bytes, {made_by}{streamed}"


def _probe(files: RowReader, parse: Callable[[dict[str, Any]], object]) -> None:
    """Raises EmptySourceError if none of the first rows can be used."""
    rows, first = 0, ""
    for chunk in islice(files.chunks(), _PROBED):
        for index, row in enumerate(chunk.rows()):
            rows += 1
            try:
                if not isinstance(row.value, BadRow):
                    parse(row.value)
                    return
                reason = f"{row.value.reason}: {row.value.detail}"
            except RowRejected as rejection:
                reason = str(rejection)
            place = chunk.first_row + index if row.line is None else row.line
            first = first or f"{files.files[chunk.file]}:{place}: {reason}"
    if not rows:
        others = f" and {len(files.files) - 1} more files" if len(files.files) > 1 else ""
        raise EmptySourceError(f"{files.files[0]}{others}: there are no rows")
    raise EmptySourceError(f"none of the {rows:,} rows looked at can be used; the first: {first}")
