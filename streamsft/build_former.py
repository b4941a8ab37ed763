"""The mix that a run had before an edit, built again from what a checkpoint notes of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from streamsft.build_sources import BuiltSource, drawn_sources
from streamsft.config import Config, GroupConfig, MixConfig, SourceConfig
from streamsft.errors import ConfigError
from streamsft.sources.addresses import is_address
from streamsft.sources.store import TokenStore

__all__ = ["former_config", "mix_record"]


def mix_record(config: Config, sources: Mapping[str, BuiltSource], transforms: Iterable[str] = ()) -> dict[str, Any]:
    """What `former_config` needs to know of the mix of `config`, as JSON: the mix with absolute paths, where the stores
    of its sources lie, and which sources a function of the user's makes into tokens."""
    mix = config.mix.model_copy(
        update={"sources": {name: _absolute(node) for name, node in config.mix.sources.items()}}
    )
    stores = {name: source.path for name, source in sources.items() if isinstance(source, TokenStore)}
    return {
        "mix": mix.model_dump(mode="json", exclude_unset=True),
        "stores": {name: os.path.abspath(path) for name, path in stores.items() if path is not None},
        "transforms": sorted(transforms),
    }


def former_config(config: Config, record: Mapping[str, Any], transforms: Iterable[str] = ()) -> Config:
    """`config` with the mix of `record` in place of its own.

    Stores that are still where they were stand for the sources that they were made of, which may have changed since.

    Args:
        config: the config that is in force.
        record: from `mix_record`.
        transforms: names of the sources that a function is at hand for.

    Raises:
        ConfigError: a function is needed that is not at hand; names its source.
    """
    mix = MixConfig.model_validate(record["mix"])
    stores = {name: path for name, path in record["stores"].items() if Path(path).is_dir()}
    mix = mix.model_copy(update={"sources": {name: _stored(name, node, stores) for name, node in mix.sources.items()}})
    former = config.model_copy(update={"mix": mix})
    for name in record["transforms"]:
        if name in drawn_sources(former) and name not in stores and name not in transforms:
            raise ConfigError(
                f"source {name}: a function made its rows into tokens before the edit of the mix, whose windows are "
                "still open: give it in transforms, and accept_changes"
            )
    return former


def _absolute(node: SourceConfig | GroupConfig) -> SourceConfig | GroupConfig:
    if isinstance(node, GroupConfig):
        return node.model_copy(update={"sources": {name: _absolute(child) for name, child in node.sources.items()}})
    changes: dict[str, Any] = {}
    if node.path is not None:
        changes["path"] = [os.path.abspath(path) for path in node.path]
    if node.store is not None:
        changes["store"] = [path if is_address(path) else os.path.abspath(path) for path in node.store]
    return node.model_copy(update=changes)


def _stored(name: str, node: SourceConfig | GroupConfig, stores: Mapping[str, str]) -> SourceConfig | GroupConfig:
    if isinstance(node, GroupConfig):
        children = {child: _stored(child, below, stores) for child, below in node.sources.items()}
        return node.model_copy(update={"sources": children})
    return (
        SourceConfig(
            store=[stores[name]], extras=node.extras, weight=node.weight, shuffle=node.shuffle, overflow=node.overflows
        )
        if name in stores
        else node
    )
