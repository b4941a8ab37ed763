"""The sources of a config whose rows are tokens already: told from text, and opened."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TypeAlias

from streamsft.config import SourceConfig
from streamsft.encoders import Encoders
from streamsft.errors import ConfigError
from streamsft.sources.addresses import is_address
from streamsft.sources.detecting import paths_hold_tokens
from streamsft.sources.grouprows import ReadOptions
from streamsft.sources.grouptier import Tier
from streamsft.sources.paths import Paths
from streamsft.sources.rowgroups import RowGroupStore
from streamsft.sources.store import TokenStore
from streamsft.sources.storefiles import find_store_files
from streamsft.text.progress import reporting

__all__ = ["Tokens", "check_tokens", "holds_tokens", "open_tokens", "token_paths"]

Tokens: TypeAlias = TokenStore | RowGroupStore

_log = logging.getLogger(__name__)

_FOR_TEXT = ("columns", "train_on", "holdout")


def holds_tokens(source: SourceConfig) -> bool:
    """Whether the rows of a source are tokens: it is a store, says so, or its first file has the columns of one."""
    if source.store is not None or source.format == "tokens":
        return True
    if source.path is None or source.format is not None or source.columns is not None:
        return False
    return paths_hold_tokens(source.path)


def token_paths(source: SourceConfig) -> Paths:
    """Where the tokens of a source lie; one path is given as itself, so that a directory is known to be one."""
    paths: Sequence[str] | None = source.store or source.path
    assert paths is not None, "a source of tokens has a store or a path"
    return paths[0] if len(paths) == 1 else paths


def check_tokens(source: SourceConfig) -> None:
    """See that the files of a source whose rows are tokens are there, as far as that can be told without a network.

    Raises:
        StoreError: they are not.
    """
    if not any(map(is_address, source.store or ())):
        find_store_files(token_paths(source))


def open_tokens(
    name: str, source: SourceConfig, encoders: Encoders, *, verify: bool = False, progress: bool = False
) -> Tokens:
    """Open the store of a source whose rows are tokens.

    Args:
        name: the source's name.
        source: its config.
        encoders: the tokenizer, if the config has one: ids beyond it are refused.
        verify: read all bytes and compare them with what they were.
        progress: draw a bar on standard error while rows are checked for the first time.

    Raises:
        ConfigError: the source has keys that are about text.
        StoreError: the store cannot be used.
    """
    for key in _FOR_TEXT:
        if key in source.model_fields_set and getattr(source, key) is not None:
            raise ConfigError(f"source {name}: {key} is about text, and its rows are tokens already; take it out")
    if source.by_groups:
        return _open_groups(name, source, encoders, progress=progress)
    paths = token_paths(source)
    total = sum(file.size for file in find_store_files(paths).files)
    with reporting(progress and total > _LARGE, name, total, "checking") as advance:
        return TokenStore.open(
            paths,
            name=name,
            extras=source.extras or (),
            tokenizer_hash=encoders.tokenizer_hash,
            vocabulary=encoders.vocabulary,
            verify=verify,
            advance=advance,
        )


def _open_groups(name: str, source: SourceConfig, encoders: Encoders, *, progress: bool) -> RowGroupStore:
    """Open a store that is read by row groups, and download it whole if that is asked for."""
    assert source.store is not None
    tier = None
    if source.tier is not None:
        tier = Tier(dir=source.tier.dir, budget=source.tier.budget, whole=source.tier.whole)
    store = RowGroupStore.open(
        source.store,
        name=name,
        extras=source.extras or (),
        vocabulary=encoders.vocabulary,
        tier=tier,
        options=None if source.io is None else ReadOptions(**source.io.model_dump()),
    )
    if tier is not None and tier.whole:
        with reporting(progress, name, store.groups, "downloading") as advance:
            store.download(advance)
    if source.shuffle == "rows" and any(map(is_address, source.store)):
        _log.warning(
            "source %s: with shuffle: rows each batch reads rows of many row groups over the network, and groups are "
            "fetched over and over unless they fit io.memory or a tier; shuffle: row_groups reads each once per pass",
            name,
        )
    return store


_LARGE = 1 << 30
"""Bytes that take long enough to check for a bar to be of use."""
