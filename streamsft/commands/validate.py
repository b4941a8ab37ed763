"""``streamsft validate``: whether a config's run could start, without tokenizing anything."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console

from streamsft.build_sources import Transforms, check_transforms, drawn_sources
from streamsft.commands.console import make_console
from streamsft.config import Config, ConfigLike, SourceConfig, load_config
from streamsft.encoders import Encoders
from streamsft.errors import ConfigError, StreamsftError
from streamsft.sources.files import RawFiles
from streamsft.sources.store import TokenStore
from streamsft.text.tokenizing import detect_source_format

__all__ = ["validate"]


def validate(
    config: ConfigLike,
    *,
    overrides: Iterable[str] = (),
    transforms: Transforms | None = None,
    verify: bool = False,
    console: Console | None = None,
) -> Config:
    """Check a config, and that its files, stores and tokenizer are there and fit together.

    Local files are listed and their first rows read for their format; datasets of the hub are not looked up.

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
    encoders = Encoders(config)
    lines: list[str] = []
    problems: list[str] = []
    for name, source in drawn_sources(config).items():
        transformed = name in (transforms or {})
        try:
            lines.append(f"{name}: {_look(name, source, encoders, transformed=transformed, verify=verify)}")
        except StreamsftError as error:
            problems.append(f"{name}: {error}")
    if problems:
        count = f"{len(problems)} of {len(lines) + len(problems)} sources cannot be used"
        raise ConfigError("\n  ".join([count, *problems]))
    for line in [*lines, "the config is valid"]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return config


def _look(name: str, source: SourceConfig, encoders: Encoders, *, transformed: bool, verify: bool) -> str:
    """Check one source and say what it is."""
    if source.store is not None:
        store = TokenStore.open(source.store, name=name, tokenizer_hash=encoders.tokenizer_hash, verify=verify)
        return f"a store of {len(store):,} rows"
    if not transformed:
        encoders.of(source)
    streamed = ", streamed" if source.streaming else ""
    if source.path is None:
        return f"{source.hub} on the hub, not looked up{streamed}"
    files = RawFiles(source.path)
    made_by = "a transform" if transformed else source.format or detect_source_format(files, name, source.columns or {})
    count = f"{len(files.files)} files" if len(files.files) > 1 else "1 file"
    return f"{count}, {files.size:,} bytes, {made_by}{streamed}"
