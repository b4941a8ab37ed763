"""What a source may be given as, and the reader of each."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from streamsft.errors import ConfigError
from streamsft.sources.addresses import is_address
from streamsft.sources.filehash import HashMemory
from streamsft.sources.files import RawFiles
from streamsft.sources.hub import DatasetRows, HubDataset, ListRows
from streamsft.sources.objectfiles import ObjectFiles
from streamsft.sources.paths import Paths
from streamsft.sources.rawrows import RowReader

if TYPE_CHECKING:
    import datasets

__all__ = ["RawSource", "open_reader"]

RawSource: TypeAlias = "Paths | HubDataset | datasets.Dataset | Sequence[Mapping[str, Any]] | RowReader"


def open_reader(source: RawSource, *, memory: HashMemory | None = None) -> RowReader:
    """The reader for a path, glob, folder, address or a list of these, a hub dataset, a `datasets.Dataset`, or rows.

    Args:
        source: what to read.
        memory: where hashes of unchanged files are kept.

    Raises:
        ConfigError: it is none of these.
        DataError: it cannot be found.
    """
    if isinstance(source, str | PathLike):
        return _files(source, memory)
    if isinstance(source, HubDataset):
        return DatasetRows(source.load(), name=f"{source.id}[{source.split}]")
    if (loaded := sys.modules.get("datasets")) is not None:
        if isinstance(source, loaded.Dataset):
            return DatasetRows(source)
        if isinstance(source, loaded.DatasetDict):
            raise ConfigError(f"a DatasetDict holds several datasets; give one of its splits: {', '.join(source)}")
        if isinstance(source, loaded.IterableDataset | loaded.IterableDatasetDict):
            raise ConfigError(
                "an IterableDataset has no known length and cannot be tokenized ahead; load it without streaming"
            )
    if isinstance(source, Sequence):
        if all(isinstance(item, str | PathLike) for item in source):
            return _files(cast("Paths", source), memory)
        if all(isinstance(item, Mapping) for item in source):
            return ListRows(cast("Sequence[Mapping[str, Any]]", source))
    elif isinstance(getattr(source, "files", None), tuple) and callable(getattr(source, "chunks", None)):
        return cast("RowReader", source)
    raise ConfigError(
        f"a {type(source).__name__} cannot be read; give a path, a list of paths, a HubDataset, "
        "a datasets.Dataset or a list of dicts"
    )


def _files(paths: Paths, memory: HashMemory | None) -> RowReader:
    """Files of this machine, or those at addresses."""
    if any(map(is_address, [paths] if isinstance(paths, str | PathLike) else paths)):
        return ObjectFiles(paths, memory=memory)
    return RawFiles(paths, memory=memory)
