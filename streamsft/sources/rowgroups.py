"""Token stores that are read by row groups: Parquet files on any file system, such as object storage."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self, final

from streamsft.engine import Engine
from streamsft.errors import StoreError
from streamsft.sources.forkgate import RENEWING
from streamsft.sources.groupindex import GroupIndex, open_index, reopen_index
from streamsft.sources.grouprows import GroupRows, ReadOptions, keeping
from streamsft.sources.grouptier import Tier
from streamsft.sources.indexing import rows_at
from streamsft.sources.manifest import Manifest
from streamsft.sources.objects import Location, Objects
from streamsft.sources.opening import Layout
from streamsft.sources.pairs import carried_names, with_pairs
from streamsft.sources.rowids import RowIds
from streamsft.types import Bools, Int32s, Ints, Sample, Shard, check_name, samples_of

__all__ = ["RowGroupStore"]


@final
class RowGroupStore:
    """A named, indexable source over Parquet files that are read by row groups; also a map-style dataset.

    The files may lie on a disk or on any file system that `pyarrow.fs` or fsspec knows. They have the columns of a
    `TokenStore`, keep the same rules, and the same rows have the same fingerprint. The first time all rows are read;
    what planning needs of them is kept in the cache folder, as long as no object changes.

    Shuffled by row groups (``stream(shuffle_groups=16)``, in a config ``shuffle: row_groups``), each group is read once
    per pass. Groups are kept in memory, in a `Tier` on the local disk if there is one, and fetched ahead. Reads that
    fail are tried again until a deadline. May be used by threads, after a fork, and in spawned processes.
    """

    def __init__(
        self,
        name: str,
        objects: Objects,
        index: GroupIndex,
        *,
        extras: Sequence[str],
        tier: Tier | None,
        options: ReadOptions,
    ) -> None:
        """Use `open` instead."""
        self._name = check_name(name)
        self._objects = objects
        self._extras = tuple(extras)
        self._tier, self._options = tier, options
        self._remembered = (index.sidecar.kept, index.digest)
        self._index: GroupIndex | None = index
        self._opened: GroupRows | None = None

    @classmethod
    def open(
        cls,
        location: Location,
        *,
        name: str | None = None,
        filesystem: Any = None,
        extras: Sequence[str] = (),
        vocabulary: int | None = None,
        tier: Tier | None = None,
        options: ReadOptions | None = None,
        verify: bool = False,
        advance: Callable[[int], None] | None = None,
        engine: Engine | None = None,
    ) -> Self:
        """Open Parquet files where they lie.

        Args:
            location: an address (``s3://bucket/folder``) or path of a file or folder, or a list, on one file system.
            name: the source's name; by default the location's last part.
            filesystem: a `pyarrow.fs.FileSystem` or an fsspec file system; by default the address says it.
            extras: further columns that travel with the rows.
            vocabulary: number of token ids there are; a store with a larger id is refused.
            tier: where to keep row groups on the local disk.
            options: how much is kept and fetched ahead in memory, and how long reads are tried.
            verify: read all rows again, check them, and compare them with those of the first time.
            advance: called with the bytes behind it while all rows are read.
            engine: has them read and checked, where there is no tier.

        Raises:
            StoreError: there is no store, it cannot be read, or a row breaks a rule.
        """
        objects = Objects(location, filesystem)
        options = options or ReadOptions()
        seen = None if tier is None else keeping(tier)
        index = open_index(objects, extras, options.deadline, seen, advance, verify=verify, engine=engine)
        if vocabulary is not None and (largest := index.sidecar.manifest.largest_id) >= vocabulary:
            raise StoreError(
                f"{objects.shown}: input_ids holds {largest}, and the tokenizer in use has {vocabulary:,} ids, from 0; "
                "use the tokenizer that the store was made with"
            )
        return cls(name or _name_of(location), objects, index, extras=extras, tier=tier, options=options)

    def download(self, advance: Callable[[int], None] | None = None) -> None:
        """Fetch all row groups that the tier does not hold yet.

        Args:
            advance: called with the number of groups behind it, of `groups`.

        Raises:
            StoreError: there is no tier, the store does not fit its budget, or a group cannot be read.
        """
        self._rows.download(advance)

    @property
    def name(self) -> str:
        """The source's name."""
        return self._name

    @property
    def manifest(self) -> Manifest:
        """What the store holds."""
        return self._known.sidecar.manifest

    @property
    def fingerprint(self) -> str:
        """Digest of the ordered rows (ids, masks, numbers), 32 hexadecimal digits; the same in every layout."""
        return self.manifest.fingerprint

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files, below the folder that they share."""
        return self.manifest.files

    @property
    def rejected(self) -> Mapping[str, int]:
        """Rows that were not stored: not known here."""
        return {}

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return self.manifest.tokens

    @property
    def lengths(self) -> Int32s:
        """Tokens per row, int32[rows]."""
        return self._known.sidecar.index.length

    @property
    def sequence_lengths(self) -> Int32s:
        """The same as `lengths`, under the name that samplers which group by length ask for."""
        return self.lengths

    @property
    def supervised(self) -> Int32s:
        """Supervised tokens at index 1 or later per row, int32[rows]."""
        return self._known.sidecar.index.supervised

    @property
    def first_supervised(self) -> Int32s:
        """Index >= 1 of the first supervised token per row, int32[rows]; the row's length where there is none."""
        return self._known.sidecar.index.first_supervised

    @property
    def row_numbers(self) -> Ints:
        """Number of each row in the source's input order, int64[rows], strictly increasing."""
        return self._known.sidecar.index.row

    @property
    def whole(self) -> Bools | None:
        """True where a row must not be cut, for it holds images or is a pair, bool[rows]; None where all may be."""
        return self._known.sidecar.index.uncut

    @property
    def groups(self) -> int:
        """Number of row groups."""
        return len(self._known.sidecar.blocks)

    @property
    def layout(self) -> Layout:
        """How the rows lie in their files."""
        return Layout(kind="parquet", files=self._known.sizes, blocks=self.groups)

    @property
    def group_bounds(self) -> Ints:
        """Rows before each row group, int64[groups + 1]."""
        return self._known.bounds

    def origin(self, index: int) -> str:
        """Where stored row `index` came from, as ``file:row``."""
        rows = self._known.sidecar.index
        return f"{self.files[rows.file[index]]}:{rows.file_row[index]}"

    @property
    def io(self) -> dict[str, int]:
        """What this process has read of the store so far; see `IO_COUNTS`."""
        return self._rows.io

    def expect(self, reader: int, groups: Iterable[tuple[int, int]]) -> None:
        """See `GroupedSource.expect`."""
        self._rows.expect(reader, groups)

    def read(self, index: Ints) -> tuple[list[Int32s], list[Bools]]:
        """Ids (int32[n] each) and masks (bool[n] each) of the stored rows `index` (int64[k] in [0, rows)).

        The arrays are views of decoded row groups. Order and repeats are kept.

        Raises:
            IndexError: a row that is not there.
            StoreError: a row group cannot be read until the deadline, or its object has changed.
        """
        return self._rows.read(index)

    def read_ids(self, index: Ints) -> RowIds:
        """The ids alone."""
        return RowIds.of(self._rows.read(index)[0])

    @property
    def carried(self) -> tuple[str, ...]:
        """What travels with the rows: images if there are any, the extras that were named, and ``pair`` of pairs."""
        return carried_names(self._known.sidecar.carried, self._known.sidecar.index)

    def read_carried(self, index: Ints) -> dict[str, Any]:
        """As of a `TokenStore`."""
        found = self._rows.carried(index) if self._known.sidecar.carried else {}
        return with_pairs(found, self._known.sidecar.index, index)

    def __len__(self) -> int:
        return self.manifest.rows

    def __getitem__(self, index: int) -> Sample:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """The samples of several rows at once, as ``DataLoader`` asks for them; see `rows_at` for what is taken."""
        index = rows_at(indices, len(self), f"source {self._name!r}")
        ids, masks = self.read(index)
        carried = self.read_carried(index)
        extras = [dict(zip(carried, values, strict=True)) for values in zip(*carried.values(), strict=True)]
        return samples_of(self._name, ids, masks, self.row_numbers[index].tolist(), extras or None)

    def stream(
        self,
        *,
        seed: int = 0,
        shard: Shard | None = None,
        shuffle: bool = True,
        shuffle_groups: int | None = None,
        overflow: Any = None,
    ) -> Any:
        """The endless, shuffled iterable over this store; see `streamsft.stream.sourcestream.SourceStream`."""
        from streamsft.stream.sourcestream import SourceStream

        return SourceStream(
            self, seed=seed, shard=shard, shuffle=shuffle, shuffle_groups=shuffle_groups, overflow=overflow
        )

    def __repr__(self) -> str:
        size = f"{len(self):,} rows, {self.tokens:,} tokens in {self.groups:,} row groups"
        return f"RowGroupStore({self._name!r}, {size}, {self._objects.shown})"

    @property
    def _known(self) -> GroupIndex:
        if self._index is None:
            place, digest = self._remembered
            assert place is not None
            self._index = reopen_index(place, digest)
        return self._index

    @property
    def _rows(self) -> GroupRows:
        if self._opened is None:
            known = self._known
            with RENEWING:
                self._opened = self._opened or GroupRows(self._objects, known, self._extras, self._tier, self._options)
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        return {
            "name": self._name,
            "objects": self._objects,
            "extras": self._extras,
            "tier": self._tier,
            "options": self._options,
            "remembered": self._remembered,
            "index": self._index if self._remembered[0] is None else None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._name, self._objects, self._extras = state["name"], state["objects"], state["extras"]
        self._tier, self._options, self._index = state["tier"], state["options"], state["index"]
        self._remembered, self._opened = state["remembered"], None


def _name_of(location: Location) -> str:
    first = location if isinstance(location, str | os.PathLike) else location[0]
    last = os.fspath(first).split("?")[0].rstrip("/").rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9_.-]", "_", last.removesuffix(".parquet"))
