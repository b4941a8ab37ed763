"""Holding rows out of a streaming source: decided by what a row says, never by where it stands."""

from __future__ import annotations

import hashlib
import heapq
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, final

from streamsft.errors import ConfigError
from streamsft.sources.rawrows import BadRow
from streamsft.sources.shardvalues import decode_values
from streamsft.sources.streaming import RawRow, ShardReader

__all__ = ["HELD_OUT", "HoldOut", "all_rows", "content_hash", "held_rows"]

HELD_OUT = "held_out"
"""The reason for which a training stream refuses held rows."""

_KEY = b"streamsft.holdout"
_ROWS = 512  # decoded at a time


@final
@dataclass(frozen=True, slots=True)
class HoldOut:
    """Which rows of a source are kept from training: give one of the two.

    A row is held if the hash of its content is below a threshold. So rows with the same content are on the same
    side, in whatever file and order they stand, and with the same `fraction` in whatever source.

    Attributes:
        fraction: the share of different rows, in (0, 1); the threshold follows from it.
        rows: how many: the rows with the smallest hashes, and with the last of them every row of the same content.
            To find them all rows are read once, each time the source is made; give a fraction where that takes too
            long.
    """

    fraction: float | None = None
    rows: int | None = None

    def __post_init__(self) -> None:
        if (self.fraction is None) == (self.rows is None):
            raise ConfigError("holdout: give either a fraction or a number of rows")
        if self.fraction is not None and not (_is_number(self.fraction) and 0 < self.fraction < 1):
            raise ConfigError(f"holdout: {self.fraction!r} is no fraction above 0 and below 1")
        if self.rows is not None and (type(self.rows) is not int or self.rows < 1):
            raise ConfigError(f"holdout: {self.rows!r} is no number of rows >= 1")

    @classmethod
    def of(cls, value: HoldOut | float | int) -> HoldOut:
        """An integer is a number of rows, another number a fraction.

        Raises:
            ConfigError: it is neither.
        """
        if isinstance(value, HoldOut):
            return value
        return cls(rows=value) if isinstance(value, int) and not isinstance(value, bool) else cls(fraction=value)

    def threshold(self, reader: ShardReader, where: str) -> int:
        """The `content_hash` below which a row of `reader` is held.

        Raises:
            ConfigError: there are no more rows than are to be held.
            DataError: the rows cannot be read.
        """
        return self.threshold_of((content_hash(row) for _, row in _decoded(reader)), where)

    def threshold_of(self, hashes: Iterable[int], where: str) -> int:
        """The same for the `content_hash` of each row, which are gone through only if a number of rows is held.

        Raises:
            ConfigError: there are no more rows than are to be held.
        """
        if self.fraction is not None:
            return max(1, math.floor(self.fraction * 2**64))
        assert self.rows is not None
        smallest = heapq.nsmallest(self.rows + 1, hashes)
        if len(smallest) <= self.rows:
            raise ConfigError(
                f"{where}: holdout: {self.rows} rows are to be held, and it has {len(smallest)}; nothing would be "
                "left to train on"
            )
        return smallest[self.rows - 1] + 1


def content_hash(row: dict[str, Any]) -> int:
    """A 64-bit hash of a decoded row; the order of its keys does not count."""
    text = json.dumps(row, sort_keys=True, separators=(",", ":"), default=_plain)
    return int.from_bytes(hashlib.blake2b(text.encode("ascii"), digest_size=8, key=_KEY).digest(), "little")


def all_rows(reader: ShardReader) -> Iterator[RawRow]:
    """Every row of `reader` once, in the order of the data."""
    for unit in range(reader.units(1)):
        yield from reader.read(unit, 1, None)


def held_rows(reader: ShardReader, threshold: int) -> Iterator[RawRow]:
    """The held rows of `reader`, each once, in the order of the data: finite.

    Args:
        reader: reads the rows.
        threshold: as `HoldOut.threshold` gives it.

    Raises:
        DataError: the rows cannot be read.
    """
    return (raw for raw, row in _decoded(reader) if content_hash(row) < threshold)


def _decoded(reader: ShardReader) -> Iterator[tuple[RawRow, dict[str, Any]]]:
    rows = all_rows(reader)
    while block := list(islice(rows, _ROWS)):
        for raw, row in zip(block, decode_values([raw.value for raw in block]), strict=True):
            if not isinstance(row, BadRow):
                yield raw, row


def _plain(value: Any) -> Any:
    """What stands for a value that JSON does not have, such as bytes, dates and arrays."""
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if callable(as_list := getattr(value, "tolist", None)):
        return as_list()
    return {type(value).__name__: str(value)}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
