"""The sources of a config: tokenized and opened, or made ready to be streamed."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias

from streamsft.build_stores import Tokens, check_tokens, holds_tokens, open_tokens
from streamsft.config import Config, GroupConfig, SourceConfig
from streamsft.config_rules import HELD
from streamsft.encoders import Encoders
from streamsft.engine import Engine
from streamsft.errors import ConfigError, DataError
from streamsft.shown import naming
from streamsft.sources.hub import HubDataset
from streamsft.sources.paths import find_files
from streamsft.sources.store import TokenStore
from streamsft.sources.streaming import StreamingSource
from streamsft.text.readers import RawSource, open_reader
from streamsft.text.tokenizing import detect_source_format, tokenize

if TYPE_CHECKING:
    from streamsft.text.jobs import Transform

__all__ = [
    "BuiltSource",
    "Transforms",
    "all_sources",
    "build_held_out",
    "build_source",
    "build_sources",
    "check_inputs",
    "check_transforms",
    "drawn_sources",
    "raw_source",
]

Transforms: TypeAlias = "Mapping[str, Transform]"
BuiltSource: TypeAlias = Tokens | StreamingSource


def all_sources(nodes: Mapping[str, SourceConfig | GroupConfig]) -> Iterator[tuple[str, SourceConfig]]:
    """Every source below `nodes`, by name."""
    for name, node in nodes.items():
        if isinstance(node, GroupConfig):
            yield from all_sources(node.sources)
        else:
            yield name, node


def drawn_sources(config: Config) -> dict[str, SourceConfig]:
    """The sources that are drawn: those whose weight, and that of their groups, is above 0 at some step."""

    def below(nodes: Mapping[str, SourceConfig | GroupConfig]) -> Iterator[tuple[str, SourceConfig]]:
        for name, node in nodes.items():
            if not node.drawn:
                continue
            if isinstance(node, GroupConfig):
                yield from below(node.sources)
            else:
                yield name, node

    return dict(below(config.mix.sources))


def raw_source(source: SourceConfig) -> RawSource:
    """What `source` reads its text from: paths, or a dataset of the hub."""
    if source.hub is not None:
        return HubDataset(
            id=source.hub,
            config=source.config,
            split=source.split or "train",
            revision=source.revision,
            data_files=source.data_files,
        )
    assert source.path is not None, "a source has one of path, store and hub"
    return source.path


def cache_dir(config: Config) -> str | Literal[False] | None:
    """The cache's folder; None is the usual one, False no cache."""
    return config.cache.dir if config.cache else False


def build_source(
    name: str,
    source: SourceConfig,
    config: Config,
    encoders: Encoders,
    *,
    transform: Transform | None = None,
    engine: Engine | None = None,
    progress: bool = False,
    verify: bool = False,
) -> BuiltSource:
    """Open the store of `source`, tokenizing it first if need be; or make it ready to be streamed.

    Raises:
        StreamsftError: its files, its rows, the tokenizer or the store cannot be used.
    """
    tokens = transform is None and holds_tokens(source)
    if tokens and not source.streaming:
        return open_tokens(name, source, encoders, verify=verify, progress=progress)
    if source.extras:
        raise ConfigError(f"source {name}: extras: its rows are text; extras are columns of rows that are tokens")
    if source.streaming:
        return _streamed(name, source, encoders, transform)
    return _tokenized(name, source, config, encoders, transform, engine=engine, progress=progress, verify=verify)


def build_held_out(
    name: str,
    config: Config,
    encoders: Encoders,
    *,
    transforms: Transforms | None = None,
    engine: Engine | None = None,
    progress: bool = False,
    verify: bool = False,
) -> TokenStore:
    """The rows that source `name` holds out, as a store named ``<name>.holdout``; numbered as in the source.

    Those of a streaming source are read and tokenized each time; others are in the cache once they are tokenized, and
    with `verify` all bytes of the cached store are compared with those that were written.

    Raises:
        ConfigError: there is no such source, or it holds none out.
        StreamsftError: the source, the tokenizer or a transform cannot be used, or none of the held rows can.
    """
    transforms = transforms or {}
    check_transforms(config, transforms)
    sources = dict(all_sources(config.mix.sources))
    holding = [other for other, source in sources.items() if source.holdout is not None]
    if name not in holding:
        known = f"those that do: {', '.join(holding)}" if holding else "give it a holdout in the config"
        what = "holds no rows out" if name in sources else "is not in the config"
        raise ConfigError(f"held out: source {name!r} {what}; {known}")
    source, transform = sources[name], transforms.get(name)
    with naming(name):
        if source.streaming:
            return _streamed(name, source, encoders, transform).held_out()
        return _tokenized(
            name, source, config, encoders, transform, held=True, engine=engine, progress=progress, verify=verify
        )


def _tokenized(
    name: str,
    source: SourceConfig,
    config: Config,
    encoders: Encoders,
    transform: Transform | None,
    *,
    held: bool = False,
    engine: Engine | None,
    progress: bool,
    verify: bool,
) -> TokenStore:
    """The rows of `source` that are trained on, or those that are held out."""
    return tokenize(
        raw_source(source),
        None if transform else encoders.of(source),
        name=f"{name}{HELD}" if held else name,
        transform=transform,
        format=source.format,
        columns=source.columns,
        cache_dir=cache_dir(config),
        engine=engine,
        on_bad_row=source.on_bad_row,
        holdout=source.holdout,
        held=held,
        verify=verify,
        progress=progress,
    )


def _streamed(name: str, source: SourceConfig, encoders: Encoders, transform: Transform | None) -> StreamingSource:
    window = source.shuffle_window
    make = StreamingSource if window is None else partial(StreamingSource, shuffle_window=window)
    return make(
        raw_source(source),
        name=name,
        transform=transform or (None if holds_tokens(source) else encoders.of(source)),
        format=None if source.format == "tokens" else source.format,
        columns=source.columns,
        on_bad_row=source.on_bad_row,
        holdout=source.holdout,
        shuffle=source.shuffle == "rows",
        overflow=source.overflows,
    )


def check_transforms(config: Config, transforms: Transforms) -> None:
    """Refuse transforms that would have no effect.

    Raises:
        ConfigError: a transform is for a source that is not there, is a store, or has its format described too.
    """
    sources = dict(all_sources(config.mix.sources))
    for name in transforms:
        if name not in sources:
            near = difflib.get_close_matches(name, sources, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"the config has {', '.join(sources)}"
            raise ConfigError(f"transforms: there is no source {name!r}; {hint}")
        if sources[name].store is not None:
            raise ConfigError(f"transforms: {name!r} is a store, which holds tokens already")
        if set_too := {"format", "columns", "train_on", "extras"} & sources[name].model_fields_set:
            raise ConfigError(
                f"transforms: {name!r} is made into tokens by the function given, so {', '.join(sorted(set_too))} "
                "in its config would have no effect; take it out"
            )


def build_sources(
    config: Config,
    encoders: Encoders,
    *,
    transforms: Transforms | None = None,
    engine: Engine | None = None,
    progress: bool = False,
    verify: bool = False,
) -> dict[str, BuiltSource]:
    """All drawn sources: stores, tokenized where they are not in the cache yet, and those that are streamed.

    Raises:
        StreamsftError: a source, the tokenizer or a transform cannot be used.
    """
    transforms = transforms or {}
    check_transforms(config, transforms)
    sources = drawn_sources(config)
    check_inputs(sources, transforms)
    built = {}
    for name, source in sources.items():
        with naming(name):
            built[name] = build_source(
                name,
                source,
                config,
                encoders,
                transform=transforms.get(name),
                engine=engine,
                progress=progress,
                verify=verify,
            )
    return built


def check_inputs(sources: Mapping[str, SourceConfig], transforms: Transforms) -> None:
    """See that all local inputs are there, and their formats known, before the first is tokenized.

    Raises:
        DataError: some are not; all of them are told.
    """
    problems: list[DataError] = []
    for name, source in sources.items():
        try:
            with naming(name):
                if source.store is not None or holds_tokens(source):
                    check_tokens(source)
                elif source.path is not None and source.streaming:
                    find_files(source.path)
                elif source.path is not None:
                    reader = open_reader(source.path)
                    if source.format is None and name not in transforms:
                        detect_source_format(reader, name, source.columns or {})
        except DataError as error:
            problems.append(error)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise DataError("\n  ".join([f"{len(problems)} sources cannot be read:", *map(str, problems)]))
