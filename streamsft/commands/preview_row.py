"""``streamsft preview --row``: what becomes of one row of a source's input, or why it is rejected."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from streamsft.build_sources import Transforms, all_sources, raw_source
from streamsft.build_stores import Tokens, holds_tokens, open_tokens
from streamsft.commands.console import make_console
from streamsft.commands.marked import LEGEND, mark, runs
from streamsft.config import Config, ConfigLike, SourceConfig, load_config
from streamsft.config_origin import pointing
from streamsft.encoders import Encoders
from streamsft.errors import ConfigError, DataError
from streamsft.shown import placed
from streamsft.sources.rawrows import BadRow, Row, RowReader, iterate_rows
from streamsft.sources.shardrows import FILE_SHIFT
from streamsft.text.conversation import REASONS, Pair, RowRejected
from streamsft.text.formats import parser
from streamsft.text.jobs import decode_columns
from streamsft.text.readers import open_reader
from streamsft.text.rendering import Rendered
from streamsft.text.tokenizing import detect_source_format
from streamsft.types import Bools, Int32s

__all__ = ["find_source", "preview_row"]


@pointing
def preview_row(
    config: ConfigLike,
    row: str,
    *,
    overrides: Iterable[str] = (),
    transforms: Transforms | None = None,
    console: Console | None = None,
) -> str | None:
    """Print the rendered text, spans, tokens and mask of one row, or why it is rejected.

    Args:
        config: a file, a mapping, or a `Config`.
        row: ``SOURCE:ROW``, with the row's number in the source's input, from 0, as in metrics, audit and rejections;
            that of a streaming source is its number in its file, plus 2**32 for each file before it.
        overrides: ``key.path=value`` texts laid over the config.
        transforms: source name → function from a row to ``input_ids`` and ``loss_mask``.
        console: where to print; standard output by default.

    Returns:
        The reason that the row is rejected for, None if it is not.

    Raises:
        StreamsftError: there is no such row, or what is needed to read it cannot be used.
    """
    console = console or make_console()
    transforms = transforms or {}
    config = load_config(config, overrides, without_tokenizer=transforms)
    name, source, number = find_source(config, row)
    encoders = Encoders(config)
    if name not in transforms and holds_tokens(source) and not source.streaming:
        _show_stored(console, open_tokens(name, source, encoders), number, encoders)
        return None
    reader = open_reader(raw_source(source))
    place, found = _row(reader, name, number, streaming=source.streaming)
    console.print(Rule(f"{name}:{number}, {place}", align="left"))
    try:
        if isinstance(found.value, BadRow):
            raise RowRejected("bad_row", found.value.detail)
        _print(console, json.dumps(found.value, ensure_ascii=False, indent=1, default=str))
        if name in transforms:
            _show_transformed(console, transforms[name](found.value), encoders)
        else:
            _show_chat(console, encoders, found.value, source, name, reader)
    except RowRejected as rejected:
        _print(console, Text(f"rejected: {rejected.reason}: {rejected.detail}", "bold red"))
        _print(console, f"{rejected.reason}: {REASONS.get(rejected.reason, 'the transform returned None')}")
        return rejected.reason
    return None


def find_source(config: Config, row: str, option: str = "--row") -> tuple[str, SourceConfig, int]:
    """The source that ``SOURCE:ROW`` names, and the number of its row.

    Raises:
        ConfigError: it is not of that form, or there is no such source.
    """
    name, colon, number = row.rpartition(":")
    if not colon or not number.isdecimal():
        raise ConfigError(f"{option} {row}: write it as SOURCE:ROW, for instance gsm8k:12")
    sources = dict(all_sources(config.mix.sources))
    if name not in sources:
        near = difflib.get_close_matches(name, sources, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"the config has {', '.join(sources)}"
        raise ConfigError(f"{option} {row}: there is no source {name!r}; {hint}")
    return name, sources[name], int(number)


def _row(reader: RowReader, name: str, number: int, *, streaming: bool) -> tuple[str, Row]:
    count = 0
    for file, in_file, row in iterate_rows(reader):
        if number == ((file << FILE_SHIFT) + in_file if streaming else count):
            line = "" if row.line is None else f", line {row.line}"
            return f"{reader.files[file]}, row {in_file}{line}", row
        count += 1
    raise DataError(f"source {name}: there is no row {number}; its input has {count:,} rows, counted from 0")


def _show_chat(
    console: Console,
    encoders: Encoders,
    value: dict[str, Any],
    source: SourceConfig,
    name: str,
    reader: RowReader,
) -> None:
    columns = source.columns or {}
    format_name = source.format or detect_source_format(reader, name, columns)
    parsed = parser(format_name, columns)(decode_columns(value, columns))
    chat = encoders.of(source)
    sides = {" chosen": parsed.chosen, " rejected": parsed.rejected} if isinstance(parsed, Pair) else {"": parsed}
    for side, conversation in sides.items():
        _show_rendered(console, chat.render(conversation), f"rendered as {format_name}{side}")
    encoded = chat.encode([parsed])[0]
    if isinstance(encoded, RowRejected):
        raise encoded
    _show_tokens(console, encoded.input_ids, encoded.loss_mask, encoders)


def _show_rendered(console: Console, rendered: Rendered, heading: str) -> None:
    _heading(console, f"{heading}, {LEGEND} text stands out")
    parts, at = [], 0
    for start, stop in rendered.spans:
        parts += [(rendered.text[at:start], False), (rendered.text[start:stop], True)]
        at = stop
    console.print(mark(console, [*parts, (rendered.text[at:], False)]), soft_wrap=True, highlight=False)
    _heading(console, "spans, in characters")
    for start, stop in rendered.spans:
        _print(console, f"{start}–{stop}: {rendered.text[start:stop]!r}")


def _show_transformed(console: Console, result: Mapping[str, Any] | None, encoders: Encoders) -> None:
    if result is None:
        raise RowRejected("transform", "the transform returned None")
    ids, mask = np.asarray(result["input_ids"], np.int32), np.asarray(result["loss_mask"], np.bool_)
    _show_tokens(console, ids, mask, encoders)


def _show_stored(console: Console, store: Tokens, number: int, encoders: Encoders) -> None:
    at = int(np.searchsorted(store.row_numbers, number))
    if at == len(store) or store.row_numbers[at] != number:
        last = int(store.row_numbers[-1]) if len(store) else -1
        raise DataError(f"source {store.name}: the store holds no row {number}; its rows are numbered 0 to {last}")
    ids, masks = store.read(np.array([at]))
    console.print(Rule(f"{store.name}:{number}, {placed(store.origin(at))}", align="left"))
    if store.first_supervised[at] >= store.lengths[at]:
        _print(console, "never drawn: no token is supervised that has another before it")
    _show_tokens(console, ids[0], masks[0], encoders)


def _show_tokens(console: Console, ids: Int32s, mask: Bools, encoders: Encoders) -> None:
    backend = encoders.backend
    _heading(console, f"{len(ids):,} tokens, {int(mask.sum()):,} {LEGEND}")
    if backend is not None:
        console.print(mark(console, runs(ids, mask, backend.decode)), soft_wrap=True, highlight=False)
    _heading(console, "index, id, mask, text")
    for index, (token, supervised) in enumerate(zip(ids.tolist(), mask.tolist(), strict=True)):
        text = "" if backend is None else repr(backend.decode([token]))
        _print(console, f"{index:6} {token:8} {int(supervised)} {text}")


def _heading(console: Console, text: str) -> None:
    console.print(Rule(text, align="left", style="dim"))


def _print(console: Console, text: str | Text) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
