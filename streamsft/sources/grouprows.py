"""Random access to the rows of a store by row groups: from memory, from the local disk, or from the objects."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import pyarrow as pa

from streamsft.errors import ConfigError, StoreError
from streamsft.sources.blockrows import Block, DecodedBlock
from streamsft.sources.carried import values_of
from streamsft.sources.footers import RemoteFile
from streamsft.sources.forkgate import OfProcess
from streamsft.sources.groupcache import GroupCache
from streamsft.sources.groupfetch import Decode
from streamsft.sources.groupindex import GroupIndex, Seen, content_of
from streamsft.sources.groupreader import GroupReader
from streamsft.sources.grouptier import DiskTier, Tier
from streamsft.sources.objects import Objects
from streamsft.sources.storecolumns import StoreColumns
from streamsft.types import Bools, Int32s, Ints

__all__ = ["IO_COUNTS", "GroupRows", "ReadOptions", "keeping"]

IO_COUNTS = (
    "bytes_fetched",
    "groups_fetched",
    "rows_fetched",
    "rows_served",
    "memory_hits",
    "tier_hits",
    "microseconds_waiting",
)
"""What `RowGroupStore.io` counts."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How row groups are read.

    Attributes:
        memory: bytes of decoded row groups that a process keeps.
        prefetch: bytes of decoded row groups that it fetches before they are needed; 0 fetches none.
        deadline: seconds that a read is tried for.
        requests: row groups that a process fetches at a time.

    Raises:
        ConfigError: a value is out of range.
    """

    memory: int = 1 << 30
    prefetch: int = 256 << 20
    deadline: float = 120.0
    requests: int = 16

    def __post_init__(self) -> None:
        for name, least in (("memory", 1), ("prefetch", 0), ("deadline", 0), ("requests", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < 2**62:
                raise ConfigError(f"io.{name}: {value!r} is not a number of at least {least}")


@dataclass(slots=True)
class _Counts:
    """What was fetched; all counts under one lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    bytes: int = 0
    groups: int = 0
    rows: int = 0
    served: int = 0
    tier: int = 0


@final
class GroupRows(OfProcess):
    """The rows of a store that is read by row groups; thread-safe, and opened anew in a forked process.

    Args:
        objects: where the files are.
        index: what is known of them.
        extras: columns that travel with the rows because they were named.
        tier: where groups are kept on the local disk.
        options: how much is kept and fetched ahead in memory, and how long reads are tried.
    """

    def __init__(
        self, objects: Objects, index: GroupIndex, extras: Sequence[str], tier: Tier | None, options: ReadOptions
    ) -> None:
        self.index = index
        self._objects = objects
        self._extras = tuple(extras)
        self._options = options
        self._disk = None if tier is None else DiskTier(tier)

    def _begin(self) -> None:
        self._opening = threading.Lock()
        self._cache: GroupCache | None = None
        self._counts = _Counts()
        self._reader = GroupReader(self._objects, self.index.files, self._options.deadline)
        self._carried: dict[int, int] = {}

    @property
    def io(self) -> dict[str, int]:
        """What this process has read so far; see `IO_COUNTS`."""
        self._begin_here()
        counts, cache = self._counts, self._cache
        values = (counts.bytes, counts.groups, counts.rows, counts.served, cache.hits if cache else 0, counts.tier,
                  round(cache.seconds_waiting * 1e6) if cache else 0)  # fmt: skip
        return dict(zip(IO_COUNTS, values, strict=True))

    def expect(self, reader: int, groups: Iterable[tuple[int, int]]) -> None:
        """See `GroupedSource.expect`."""
        self._groups.expect(reader, groups)

    def download(self, advance: Callable[[int], None] | None) -> None:
        """See `RowGroupStore.download`."""
        if self._disk is None:
            raise StoreError("tier: there is none to download the store to; give the store one")
        self._begin_here()
        groups = len(self.index.sidecar.blocks)
        size = sum(self._size(group) for group in range(groups))
        if size > self._disk.budget:
            raise StoreError(
                f"tier: the store takes {size:,} bytes on the disk, and tier.budget is {self._disk.budget:,}; "
                "raise it, or leave tier.whole out to keep what was used last"
            )
        missing = [group for group in range(groups) if not self._disk.has(self._file_of(group))]
        at_once = max(1, self._options.requests)
        for first in range(0, len(missing), at_once):
            self._groups.get(missing[first : first + at_once])
            if advance is not None:
                advance(groups - len(missing) + first + len(missing[first : first + at_once]))

    def read(self, index: Ints) -> tuple[list[Int32s], list[Bools]]:
        """See `RowGroupStore.read`."""
        self._begin_here()
        ids: list[Any] = [None] * len(index)
        masks: list[Any] = [None] * len(index)
        for block, places, rows in self._by_group(index):
            starts, stops = block.bounds[rows].tolist(), block.bounds[rows + 1].tolist()
            for place, start, stop in zip(places.tolist(), starts, stops, strict=True):
                ids[place] = block.ids[start:stop]
                masks[place] = block.mask[start:stop]
        with self._counts.lock:
            self._counts.served += len(index)
        return ids, masks

    def carried(self, index: Ints) -> dict[str, list[Any]]:
        """See `RowGroupStore.read_carried`."""
        found: dict[str, list[Any]] = {name: [None] * len(index) for name in self.index.sidecar.carried}
        for block, places, rows in self._by_group(index) if found else ():
            assert block.carried is not None
            part = block.carried.take(pa.array(rows))
            for name, values in found.items():
                for place, value in zip(places.tolist(), values_of(part.column(name)), strict=True):
                    values[place] = value
        return found

    @property
    def _groups(self) -> GroupCache:
        self._begin_here()
        with self._opening:
            if self._cache is None:
                self._cache = GroupCache(
                    self._fetch,
                    self._size,
                    memory=int(self._options.memory),
                    ahead=int(self._options.prefetch),
                    threads=int(self._options.requests),
                    deadline=float(self._options.deadline),
                )
            return self._cache

    def _by_group(self, index: Ints) -> Iterator[tuple[DecodedBlock, Ints, Ints]]:
        """Per group of the rows `index`: the group, places in `index`, and numbers of the rows in the group."""
        if not len(index):
            return
        bounds = self.index.bounds
        if not 0 <= int(index.min()) <= int(index.max()) < int(bounds[-1]):
            raise IndexError(f"rows {index.min()} to {index.max()} of {bounds[-1]:,}: rows are numbered from 0")
        group = bounds.searchsorted(index, "right") - 1
        order = np.argsort(group, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
        numbers = [int(group[places[0]]) for places in parts]
        for number, places, block in zip(numbers, parts, self._groups.get(numbers), strict=True):
            yield block, places, index[places] - bounds[number]

    def _size(self, group: int) -> int:
        bounds, index = self.index.bounds, self.index.sidecar.index
        rows = int(bounds[group + 1] - bounds[group])
        tokens = int(index.bounds[bounds[group + 1]] - index.bounds[bounds[group]])
        return 5 * tokens + 8 * (rows + 1) + self._carried_size(group)

    def _carried_size(self, group: int) -> int:
        """Bytes of what travels with the rows of a group, as its file has them uncompressed."""
        carried = self.index.sidecar.carried
        if carried and group not in self._carried:
            block = self.index.sidecar.blocks[group]
            chunks = self._reader.metadata(block.file).row_group(block.number)
            columns = map(chunks.column, range(chunks.num_columns))
            self._carried[group] = sum(
                int(column.total_uncompressed_size)
                for column in columns
                if column.path_in_schema.split(".")[0] in carried
            )
        return self._carried.get(group, 0)

    def _file_of(self, group: int) -> str:
        assert self._disk is not None
        return self._disk.name(self.index.content(group))

    def _fetch(self, group: int) -> Decode:
        """A group, from the tier or from its object."""
        if self._disk is not None:
            kept = self._disk.get(self._file_of(group))
            if kept is not None and self._fits(group, kept):
                with self._counts.lock:
                    self._counts.tier += 1
                return lambda: kept
            if kept is not None:
                self._disk.discard(self._file_of(group))
        block = self.index.sidecar.blocks[group]
        where = self.index.sidecar.manifest.files[block.file]
        columns = StoreColumns.of(self._reader.schema(block.file), where, self._extras)
        read = self._reader.fetch(block, columns.read)
        return lambda: self._decoded(group, read, columns)

    def _decoded(
        self, group: int, read: Callable[[], tuple[pa.RecordBatch, int]], columns: StoreColumns
    ) -> DecodedBlock:
        """A group that was fetched from its object."""
        block = self.index.sidecar.blocks[group]
        where = self.index.sidecar.manifest.files[block.file]
        batch, size = read()
        found = DecodedBlock.of(batch, columns, where)
        with self._counts.lock:
            self._counts.bytes += size
            self._counts.groups += 1
            self._counts.rows += block.rows
        if not self._fits(group, found):
            raise StoreError(f"{where}, row group {block.number}: its rows are not those of the first use")
        return found if self._disk is None else self._disk.put(self._file_of(group), found) or found

    def _fits(self, group: int, block: DecodedBlock) -> bool:
        """Whether the rows of a decoded group are as long as the index says."""
        bounds = self.index.bounds
        lengths = self.index.sidecar.index.length[bounds[group] : bounds[group + 1]]
        tokens = len(block.ids) == len(block.mask) == int(block.bounds[-1])
        return tokens and np.array_equal(np.diff(block.bounds), lengths)


def keeping(tier: Tier) -> Seen:
    """What keeps the row groups of a scan in a tier, as long as there is room without removing others."""
    disk = DiskTier(tier)

    def keep(file: RemoteFile, block: Block, batch: pa.RecordBatch, columns: StoreColumns) -> None:
        decoded = DecodedBlock.of(batch, columns, file.path)
        if disk.used() + decoded.nbytes < disk.budget:
            disk.put(disk.name(content_of(file, block, columns.carried)), decoded)

    return keep
