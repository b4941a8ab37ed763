"""The files of a token store: what a path, a directory or a list of these stands for."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from streamsft.errors import DataError, StoreError
from streamsft.sources.addresses import is_address, shown
from streamsft.sources.manifest import MANIFEST_FILE
from streamsft.sources.paths import FORMATS, Paths, RawFile, find_files, listed

__all__ = ["STATE_FILE", "Kind", "StoreFiles", "absolute", "data_files", "find_store_files", "name_of"]

Kind = Literal["arrow", "parquet", "json"]

STATE_FILE = "state.json"
_SPLITS_FILE = "dataset_dict.json"
_KINDS: dict[str, Kind] = {"arrow": "arrow", "parquet": "parquet", "jsonl": "json", "json": "json"}
_READABLE = ".arrow, .parquet, .jsonl or .json"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFiles:
    """The files of a store in the order of its rows.

    Attributes:
        kind: what all of them are.
        files: where they lie, and what they are called in messages.
        place: the directory that they all lie in.
        given: whether `place` itself is what the store was opened by.
    """

    kind: Kind
    files: tuple[RawFile, ...]
    place: Path
    given: bool

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the files below `place`."""
        return tuple(file.name for file in self.files)


def find_store_files(paths: Paths) -> StoreFiles:
    """The files that `paths` stands for: a file, a directory (searched to any depth), a glob, or a list of these.

    In directories hidden files, files of other kinds, and .json files beside files of rows are passed over; where a
    directory was written by ``save_to_disk``, its own list of files counts.

    Raises:
        StoreError: nothing is there, or nothing that can be read; there are files of several kinds, or several splits.
    """
    given = listed(paths)
    found: list[str] = []
    for path in given:
        if is_address(path):
            raise StoreError(
                f"{shown(path)}: is an address, and only files of this machine can be read so; copy them here, or read "
                "Parquet files where they lie with RowGroupStore (a source's `store` and `streamsft inspect` do)"
            )
        path = os.path.expanduser(path)
        if os.path.isfile(path) and _format(path) not in _KINDS:
            raise StoreError(f"{path}: holds no tokenized rows; a store is {_READABLE}, or a directory of these")
        found += _below(path) if os.path.isdir(path) else [file.path for file in _located(path)]
    files = _located(found)
    if (special := next((file.path for file in files if not os.path.isfile(file.path)), None)) is not None:
        raise StoreError(f"{special}: is no file, but a pipe, a socket or a device; write what it gives to a file")
    kinds = {_kind(file) for file in files}
    if len(kinds) > 1:
        counts = [f"{sum(_kind(file) == kind for file in files)} {kind}" for kind in sorted(kinds)]
        raise StoreError(
            f"{', '.join(given)}: holds files of several kinds ({', '.join(counts)}); name those of one kind, as a "
            "list or a pattern such as dir/*.parquet"
        )
    place = Path(os.path.commonpath([os.path.dirname(os.path.abspath(file.path)) for file in files]))
    alone = len(given) == 1 and os.path.isdir(os.path.expanduser(given[0]))
    whole = Path(os.path.abspath(os.path.expanduser(given[0]))) if alone else place
    named = tuple(
        RawFile(
            path=file.path,
            name=os.path.relpath(os.path.abspath(file.path), whole).replace(os.sep, "/"),
            format=file.format,
            compression=file.compression,
            size=file.size,
            mtime_ns=file.mtime_ns,
        )
        for file in files
    )
    return StoreFiles(kind=kinds.pop(), files=named, place=whole, given=alone)


def _located(paths: str | Sequence[str]) -> tuple[RawFile, ...]:
    try:
        return find_files(paths)
    except StoreError:
        raise
    except DataError as error:
        raise StoreError(str(error)) from error


def _kind(file: RawFile) -> Kind:
    kind = _KINDS.get(file.format)
    if kind is None:
        raise StoreError(f"{file.path}: holds no tokenized rows; a store is {_READABLE}, or a directory of these")
    return kind


def _below(folder: str) -> list[str]:
    """The files of rows in a directory."""
    files = [path for _, path in sorted(_walk(folder))]
    rows = [path for path in files if _format(path) in _KINDS]
    tables = [path for path in rows if _format(path) != "json"]
    if not rows:
        seen = ", ".join(sorted(os.path.basename(path) for path in files)[:5])
        raise StoreError(
            f"{folder}: holds no file of rows ({_READABLE}), {f'only {seen}' if seen else 'and no other'}; if it was a "
            "store, it was half written or copied"
        )
    return tables or rows


def _format(path: str) -> str:
    stem, ending = os.path.splitext(path.lower())
    if ending in (".gz", ".zst"):
        ending = os.path.splitext(stem)[1]
    return FORMATS.get(ending, "")


def _walk(folder: str) -> Iterator[tuple[str, str]]:
    """All files below a directory that are not hidden, each behind what to sort them by."""
    visited: set[str] = set()
    for parent, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(parent)
        if real in visited:  # a link back up
            folders.clear()
            continue
        visited.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if _SPLITS_FILE in files:
            splits = ", ".join(name for name in folders if (Path(parent) / name / STATE_FILE).exists())
            raise StoreError(f"{parent}: holds several splits; name the directory of one of them: {splits}")
        if STATE_FILE in files:
            names, ours = data_files(Path(parent))
            if ours and MANIFEST_FILE not in files:
                raise StoreError(
                    f"{parent}: was only half written or copied ({MANIFEST_FILE} is missing); build the store again"
                )
            for number, name in enumerate(names):
                yield os.path.join(parent, f"{number:09}"), os.path.join(parent, name)
        else:
            shown = [os.path.join(parent, name) for name in files if not name.startswith(".")]
            yield from ((path, path) for path in shown)


def data_files(path: Path) -> tuple[list[str], bool]:
    """The names of the Arrow files of a `save_to_disk` directory, and whether streamsft wrote it."""
    place = path / STATE_FILE
    try:
        state = json.loads(place.read_bytes())
        return [str(entry["filename"]) for entry in state["_data_files"]], "streamsft" in state
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{place}: cannot be read ({error}); write or copy the store again") from error


def absolute(paths: Paths) -> Path | list[Path]:
    """`paths` wherever the working directory is."""
    found = [Path(os.path.abspath(os.path.expanduser(path))) for path in listed(paths)]
    return found[0] if isinstance(paths, str | os.PathLike) else found


def name_of(paths: Path | list[Path]) -> str:
    """The name of a source whose user gave none: that of its first path."""
    path = paths if isinstance(paths, Path) else (paths or [Path("rows")])[0]
    name = path.stem if path.suffix[1:] in _KINDS else path.name
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)
