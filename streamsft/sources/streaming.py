"""`StreamingSource`: rows that are read in order, whose lengths are unknown until they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, final

from streamsft.errors import ConfigError
from streamsft.types import Bools, Int32s, check_name

__all__ = ["Encoded", "RawRow", "Refused", "RowEncoder", "ShardReader", "StreamingSource"]

_SHUFFLE_WINDOW = 1000
_BLOCK_BYTES = 64 << 20


class RawRow(NamedTuple):
    """A row as a reader hands it out, not yet tokenized."""

    number: int
    """Its number in the source: its number in the file from 0, plus 2**32 for each file before it."""
    value: Any
    """What the encoder takes."""
    size: int
    """Bytes it holds in memory, roughly."""
    after: Any
    """Where its unit goes on behind it, as JSON; what `ShardReader.read` takes."""


class Encoded(NamedTuple):
    """A row as tokens."""

    input_ids: Int32s
    loss_mask: Bools


class Refused(NamedTuple):
    """A row that gave no tokens, and why."""

    reason: str
    detail: str


RowEncoder = Callable[[Sequence[Any]], Sequence[Encoded | Refused]]


class ShardReader(Protocol):
    """Reads a dataset in units that can be read independently: files, row groups, or every n-th row of one."""

    @property
    def fingerprint(self) -> str:
        """A hex digest of what is read: the same for the same data wherever it lies."""

    def units(self, lanes: int) -> int:
        """How many units to cut the data into for `lanes` readers: at least `lanes` if there are as many rows."""

    def read(self, unit: int, lanes: int, position: Any) -> Iterator[RawRow]:
        """The rows of one of ``units(lanes)`` units, from `position` (None is its start).

        Raises:
            DataError: the data cannot be read; names file and row.
        """

    def where(self, number: int) -> str:
        """Row `number` as ``file:row`` for messages."""


@final
@dataclass(frozen=True, kw_only=True)
class StreamingSource:
    """A named source that is read in order, shard by shard, and tokenized as it is drawn.

    Attributes:
        name: unique over the mix.
        reader: reads the rows.
        encode: tokenizes rows; picklable for worker processes.
        shuffle: whether shards and rows are shuffled, anew in each pass.
        shuffle_window: rows that are shuffled together, in closed blocks.
        block_bytes: a block is closed early when its rows hold this many bytes.
    """

    name: str
    reader: ShardReader
    encode: RowEncoder
    shuffle: bool = True
    shuffle_window: int = _SHUFFLE_WINDOW
    block_bytes: int = _BLOCK_BYTES

    def __post_init__(self) -> None:
        check_name(self.name)
        if not isinstance(self.shuffle_window, int) or self.shuffle_window < 1:
            raise ConfigError(
                f"source {self.name!r}: shuffle_window {self.shuffle_window!r} is not a number of rows >= 1"
            )

    @property
    def fingerprint(self) -> str:
        return self.reader.fingerprint

    @property
    def rejected(self) -> Mapping[str, int]:
        """Nothing is known before rows are read."""
        return {}
