"""`ShardDataset`: a Hugging Face `IterableDataset` as shards of a streaming source, read from any position."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, final

from streamsft.errors import ConfigError, DataError, StateError, StreamsftError
from streamsft.shown import placed
from streamsft.sources.rawrows import null_pruner
from streamsft.sources.shardrows import FILE_SHIFT, Unit
from streamsft.sources.shardstate import packed, unpacked
from streamsft.sources.shardunits import Part, cut, explain
from streamsft.sources.shardvalues import PlainValue
from streamsft.sources.streaming import RawRow

if TYPE_CHECKING:
    import datasets

__all__ = ["ShardDataset"]

logger = logging.getLogger("streamsft")

_ROWS = 64  # read at a time, between two states
_SAMPLED = 8  # rows of the first and the last shard that the fingerprint covers
_OBJECT_BYTES = 200


@final
class ShardDataset:
    """The rows of a `datasets.IterableDataset` as a `ShardReader`.

    `datasets` reads one shard at a time; which shard, in which order and from where is decided here. Positions are
    ``[state, row of the batch, row of the shard]``, the state being what `datasets` says of its own pipeline.
    Parquet is read by row group, so that `datasets` seeks to the row group; other formats it reads again from the
    start of the shard, without making rows of what is passed over. Give local files by their paths instead.

    A unit is a shard. Where there are fewer than lanes it is a row group of a Parquet file, and where these are too
    few as well, every n-th row.

    Args:
        dataset: not shuffled and not divided among nodes: both are done here.
        name: the source's name, for messages.

    Raises:
        ConfigError: the dataset is shuffled or divided.
    """

    def __init__(self, dataset: datasets.IterableDataset, *, name: str = "dataset") -> None:
        _check_plain(dataset, name)
        self._dataset = dataset.with_format(None)
        self._name = name
        self._units: dict[int, tuple[bool, tuple[Unit, ...]]] = {}
        self._fingerprint = ""
        self._process = os.getpid()

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the shards, for messages."""
        return tuple(f"{self._name}[{shard}]" for shard in range(self._dataset.num_shards))

    @property
    def fingerprint(self) -> str:
        """Digest of the columns, the number of shards, and the first rows of the first and the last shard.

        Raises:
            DataError: they cannot be read.
        """
        if not self._fingerprint:
            shards = self._dataset.num_shards
            described: list[Any] = [shards, repr(self._dataset.features)]
            for shard in sorted({0, shards - 1}) if shards else ():
                rows = islice(self._rows(False, Unit(file=shard), None), _SAMPLED)
                described.append([repr(row.value.row) for row in rows])
            self._fingerprint = hashlib.blake2b(json.dumps(described).encode(), digest_size=16).hexdigest()
        return self._fingerprint

    def units(self, lanes: int) -> int:
        """Number of units for `lanes` readers.

        Raises:
            DataError: a shard cannot be read.
        """
        return len(self._cut(lanes)[1])

    def read(self, unit: int, lanes: int, position: Any) -> Iterator[RawRow]:
        """The rows of unit number `unit` of ``units(lanes)`` from `position` on.

        A row's number is its number in its shard plus 2**32 times the number of the shard (of the row group, where
        row groups are the units).

        Raises:
            DataError: the shard cannot be read.
            StateError: the position was taken of another pipeline.
        """
        resharded, units = self._cut(lanes)
        return self._rows(resharded, units[unit], position)

    def where(self, number: int) -> str:
        """Row `number` as ``dataset[shard]:row``."""
        shard, row = divmod(number, 1 << FILE_SHIFT)
        return f"{self._name}[{shard}]:{row}"

    def _cut(self, lanes: int) -> tuple[bool, tuple[Unit, ...]]:
        if lanes not in self._units:
            shards, resharded = self._dataset.num_shards, False
            if shards < lanes:
                with _reading(self._name):
                    more = self._dataset.reshard().num_shards
                resharded = more > shards
                shards = max(more, shards)
            parts = [Part(file=shard) for shard in range(shards)]
            if shards < lanes:
                parts = [part for part in parts if self._count(resharded, part, 1)]
            units = cut(parts, lanes, lambda part, limit: self._count(resharded, part, limit))
            if self._dataset.num_shards < lanes:
                what = f"{self._dataset.num_shards} shard{'s' * (self._dataset.num_shards != 1)}"
                logger.warning("%s", explain(self._name, what, units, lanes))
            self._units[lanes] = (resharded, units)
        return self._units[lanes]

    def _count(self, resharded: bool, part: Part, limit: int) -> int:
        return sum(1 for _ in islice(self._rows(resharded, Unit(file=part.file), None), limit))

    def _rows(self, resharded: bool, unit: Unit, position: Any) -> Iterator[RawRow]:
        self._unlock()
        name = f"{self._name}[{unit.file}]"
        with _reading(name):
            whole = self._dataset.reshard() if resharded else self._dataset
            shard = whole.shard(whole.num_shards, unit.file)
            if not resharded:
                shard = shard.reshard()  # its parts in order are the shard, and its state then names the part
        fresh = shard.state_dict()
        state, behind, row = _checked(position, name)
        if position is not None:
            shard.load_state_dict(unpacked(state, fresh))
        prune = null_pruner(shard.features.arrow_schema) if shard.features else None
        base = unit.file << FILE_SHIFT
        row -= behind
        batches = shard.iter(_ROWS)  # unlike iter(shard) it does not divide the shard among a loader's workers
        while True:
            with _reading(placed(self.where(base + row))):
                batch = next(batches, None)
            if batch is None:
                return
            names = list(batch)
            for inside, values in enumerate(zip(*batch.values(), strict=True), 1):
                row += 1
                if inside <= behind or (row - 1) % unit.step != unit.start:
                    continue
                value = dict(zip(names, values, strict=True))
                size = sum(len(item) if isinstance(item, str | bytes) else 8 for item in values) + _OBJECT_BYTES
                decoded = prune(value) if prune else value
                yield RawRow(base + row - 1, PlainValue(decoded, name, row - 1), size, [state, inside, row])
            state, behind = packed(shard.state_dict(), fresh), 0

    def _unlock(self) -> None:
        """Let remote files be read in a process that was forked off: the locks of `fsspec` are not valid there."""
        if self._process != os.getpid():
            import fsspec

            fsspec.asyn.reset_lock()
            self._process = os.getpid()


def _checked(position: Any, name: str) -> tuple[Any, int, int]:
    if position is None:
        return [], 0, 0
    match position:
        case [state, int(inside), int(row)] if 0 <= inside <= row:
            return state, inside, row
    raise StateError(f"{name}: {position!r} is no position in a dataset; the state is of other data")


@contextmanager
def _reading(where: str) -> Iterator[None]:
    """Say where it was when `datasets`, or a function mapped over the dataset, fails."""
    try:
        yield
    except StreamsftError:
        raise
    except Exception as error:
        raise DataError(f"{where}: cannot be read: {type(error).__name__}: {error}") from error


def _check_plain(dataset: datasets.IterableDataset, name: str) -> None:
    if getattr(dataset, "_distributed", None) is not None:
        raise ConfigError(
            f"source {name}: the dataset was divided by split_dataset_by_node; give it whole, for ranks and workers "
            "are each given their part here"
        )
    stages = [getattr(dataset, "_ex_iterable", None)]
    while stages:
        stage = stages.pop()
        if type(stage).__name__ == "BufferShuffledExamplesIterable":
            raise ConfigError(
                f"source {name}: the dataset was shuffled, and would lose the rows in its buffer when training is "
                "resumed; leave shuffle() out, and give shuffle_window instead"
            )
        stages += [getattr(stage, "ex_iterable", None), *(getattr(stage, "ex_iterables", None) or [])]
        stages = [stage for stage in stages if stage is not None]
