"""What is known of a store that is read by row groups: learned by one scan of its objects, then remembered."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from streamsft.engine import Engine
from streamsft.errors import StoreError
from streamsft.sources.addresses import shown
from streamsft.sources.blockrows import Block
from streamsft.sources.cachefolder import default_cache_dir
from streamsft.sources.checking import GroupCheck, placed
from streamsft.sources.footers import RemoteFile, keep_footers, kept_footers, read_footers, versions
from streamsft.sources.groupreader import GroupReader
from streamsft.sources.index import load_index
from streamsft.sources.objects import Objects
from streamsft.sources.scan import Scanned
from streamsft.sources.sidecar import Sidecar, keep, kept
from streamsft.sources.storecolumns import StoreColumns
from streamsft.sources.validation import Validator
from streamsft.types import Ints

__all__ = ["GroupIndex", "Seen", "content_of", "open_index", "reopen_index"]

Seen = Callable[[RemoteFile, Block, pa.RecordBatch, StoreColumns], None]
Advance = Callable[[int], None]

_AHEAD: Final = 8  # row groups that a scan has in flight


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class GroupIndex:
    """A store that is ready to be read.

    Attributes:
        sidecar: its rows and row groups.
        files: its objects, with footers.
        key: what all of this holds for.
    """

    sidecar: Sidecar
    files: tuple[RemoteFile, ...]
    key: list[Any]

    @cached_property
    def bounds(self) -> Ints:
        """Rows before each row group, int64[groups + 1]."""
        return np.cumsum([0, *(block.rows for block in self.sidecar.blocks)], dtype=np.int64)

    @property
    def sizes(self) -> tuple[tuple[str, int], ...]:
        """Name and size in bytes of each object."""
        return tuple((name, file.size) for name, file in zip(self.sidecar.manifest.files, self.files, strict=True))

    @property
    def digest(self) -> str:
        """A digest of the versions of all objects."""
        return _digest(self.key)

    def content(self, group: int) -> list[Any]:
        """What tells the rows of a group from all others, as JSON."""
        block = self.sidecar.blocks[group]
        return content_of(self.files[block.file], block, self.sidecar.carried)


def content_of(file: RemoteFile, block: Block, carried: Sequence[str]) -> list[Any]:
    """What tells the rows of a group from all others, as JSON."""
    return [file.path, file.size, file.version, block.number, list(carried)]


def open_index(
    objects: Objects,
    extras: Sequence[str],
    deadline: float,
    seen: Seen | None = None,
    advance: Advance | None = None,
    *,
    verify: bool = False,
    engine: Engine | None = None,
) -> GroupIndex:
    """Look at all objects of a store; go through their rows unless that was done before for the same versions.

    Args:
        objects: where they are.
        extras: further columns that travel with the rows.
        deadline: seconds that each read is tried for.
        seen: called with each row group that is read for the first time.
        advance: called with the bytes of the objects that lie behind.
        verify: go through the rows in any case; they must be those of the first time.
        engine: has row groups read and checked, where there is no `seen`.

    Raises:
        StoreError: there is no store, it cannot be read, a row breaks a rule, or rows are not those they were.
    """
    files = versions(objects, deadline)
    key: list[Any] = [[[file.path, file.size, file.version] for file in files], list(extras), []]
    place = _place(files, extras)
    footers = place.with_suffix(".footers")
    footed = kept_footers(footers, key, files)
    if footed is None:
        footed = read_footers(objects, files, deadline)
        keep_footers(footers, key, footed)
    names = _names(files)
    sidecar = kept(place, key, names)
    if sidecar is None or verify:
        reader = GroupReader(objects, footed, deadline)
        if engine is None or seen is not None:
            scanned = _scan(reader, footed, names, extras, seen, advance)
        else:
            scanned = _scan_with(engine, reader, objects.shown, footed, names, extras, advance)
        if sidecar is not None and sidecar.manifest.fingerprint != scanned.manifest.fingerprint:
            raise StoreError(
                f"{objects.shown}: its rows (fingerprint {scanned.manifest.fingerprint}) are not those of the first "
                f"use ({sidecar.manifest.fingerprint}), though its objects have the same versions; restore them, or "
                f"delete {place}"
            )
        sidecar = keep([place], key, scanned) or Sidecar(
            index=scanned.facts.index(), manifest=scanned.manifest, blocks=scanned.blocks, carried=scanned.carried
        )
    return GroupIndex(sidecar=sidecar, files=tuple(footed), key=key)


def reopen_index(place: Path, digest: str) -> GroupIndex:
    """What `open_index` has kept at `place`, without a look at the objects.

    Raises:
        StoreError: it is gone, or is of other versions than `digest` says.
    """
    facts = load_index(place)[1]
    key = facts["key"]
    files = [RemoteFile(path=path, size=size, version=version) for path, size, version in key[0]]
    footed = kept_footers(place.with_suffix(".footers"), key, files)
    sidecar = kept(place, key, _names(files))
    if _digest(key) != digest or sidecar is None or footed is None:
        raise StoreError(
            f"{place}: tells of other versions of the store's objects than those it was opened with; start the same "
            "command again"
        )
    return GroupIndex(sidecar=sidecar, files=tuple(footed), key=key)


def _digest(key: list[Any]) -> str:
    return hashlib.blake2b(json.dumps(key).encode(), digest_size=16).hexdigest()


def _place(files: Sequence[RemoteFile], extras: Sequence[str]) -> Path:
    whole = _digest([[file.path for file in files], list(extras)])
    return default_cache_dir() / "indexes" / f"{whole}.bin"


def _names(files: Sequence[RemoteFile]) -> list[str]:
    """The objects' names below the folder that they share."""
    parts = [shown(file.path).split("/") for file in files]
    shared = 0
    while all(len(one) > shared + 1 and one[shared] == parts[0][shared] for one in parts):
        shared += 1
    return ["/".join(one[shared:]) for one in parts]


def _scan(
    reader: GroupReader,
    files: Sequence[RemoteFile],
    names: Sequence[str],
    extras: Sequence[str],
    seen: Seen | None,
    advance: Advance | None,
) -> Scanned:
    """Go through all rows, some row groups in flight."""
    validator = Validator(extras=extras)
    blocks = list(reader.blocks())
    last, first_row, behind = -1, 0, 0
    for block, (batch, read), columns in _in_flight(reader, blocks, extras):
        file = files[block.file]
        first_row = 0 if block.file != last else first_row
        validator.add(batch, reader.name(block.file), file=block.file, first_row=first_row)
        if seen is not None:
            seen(file, block, batch, columns)
        last, first_row, behind = block.file, first_row + block.rows, behind + read
        if advance is not None:
            advance(behind)
    return _scanned(validator, names, blocks)


def _scanned(validator: Validator, names: Sequence[str], blocks: Sequence[Block]) -> Scanned:
    return Scanned(
        manifest=validator.manifest(names),
        facts=validator.facts,
        blocks=tuple(blocks),
        carried=validator.carried if blocks else (),
    )


def _scan_with(
    engine: Engine,
    reader: GroupReader,
    what: str,
    files: Sequence[RemoteFile],
    names: Sequence[str],
    extras: Sequence[str],
    advance: Advance | None,
) -> Scanned:
    """Go through all rows by row groups that an engine has read and checked; they are counted in order."""
    validator = Validator(extras=extras)
    places = [reader.name(number) for number in range(len(files))]
    blocks: list[Block] = []
    behind = 0
    for place, checked in engine.map(GroupCheck(reader, places, tuple(extras)), placed(reader.blocks()), what=what):
        checked.count(validator, places[place.block.file], place.block.file)
        blocks.append(place.block)
        behind += checked.read
        if advance is not None:
            advance(behind)
    return _scanned(validator, names, blocks)


_Read = tuple[Block, tuple[pa.RecordBatch, int], StoreColumns]


def _in_flight(reader: GroupReader, blocks: Sequence[Block], extras: Sequence[str]) -> Iterator[_Read]:
    flights: deque[tuple[Block, Future[tuple[pa.RecordBatch, int]], StoreColumns]] = deque()
    with ThreadPoolExecutor(_AHEAD, "streamsft-scan") as pool:
        try:
            for block in blocks:
                columns = StoreColumns.of(reader.schema(block.file), reader.name(block.file), extras)
                flights.append((block, pool.submit(reader.read, block, columns.checked), columns))
                if len(flights) >= _AHEAD:
                    block, flight, columns = flights.popleft()
                    yield block, flight.result(), columns
            while flights:
                block, flight, columns = flights.popleft()
                yield block, flight.result(), columns
        finally:
            for _, flight, _ in flights:
                flight.cancel()
