"""`StreamingSource`: rows that are read in order, whose lengths are unknown until they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Unpack, final

from streamsft.errors import ConfigError
from streamsft.types import Bools, Int32s, Shard, check_name

if TYPE_CHECKING:
    from streamsft.sources.store import TokenStore
    from streamsft.stream.feedstream import FeedStream
    from streamsft.text.streaming import EncoderOptions, ShardSource

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
@dataclass(frozen=True, init=False, eq=False)
class StreamingSource:
    """A named source that is read in order, shard by shard, and tokenized as it is drawn.

    Args:
        data: a path, glob, folder or a list of these, a `HubDataset`, a `datasets.IterableDataset`, or a `ShardReader`.
        name: unique over the mix.
        transform: makes tokens of rows: a `ChatTokenizer`, or a function from a row (a dict) to a mapping with
            ``input_ids`` and ``loss_mask``, or to None to leave it out. Without it, rows hold these two themselves.
        messages: replaces the format alone: a function from a row to a `Conversation`, to a list of messages, to a
            mapping with ``messages`` and perhaps ``tools`` and ``system``, or to None to leave it out.
        format: format of conversations; by default the tokenizer's, or detected from the first rows.
        columns: from a name in the format to the data's own name of that column.
        filters: functions of a row, in a list or by name; a row is kept if all are true. Rows that are left out
            are counted by the function's name. Functions given here must be picklable for worker processes.
        token_filters: the same after tokenizing, of ``{"input_ids": int32[n], "loss_mask": bool[n]}``.
        on_bad_row: ``skip`` counts rows that cannot be read or tokenized by reason; ``error`` stops at the first.
        holdout: keeps rows from training, in every pass: a fraction or a number of rows; see `HoldOut`.
        shuffle: whether shards and rows are shuffled, anew in each pass.
        shuffle_window: rows that are shuffled together, in closed blocks.
        block_bytes: a block is closed early when its rows hold this many bytes.
        overflow: what a `Packer` does with its rows that are too long: ``truncate``, ``drop``, ``split`` or ``error``;
            by default what it does with all.
        reader: reads the rows, in place of `data`.
        encode: tokenizes rows, in place of all from `transform` to `holdout`; picklable for worker processes. What it
            lists as its attribute `reasons` is counted by reason, other refusals under ``other``.

    Raises:
        ConfigError: an argument is wrong.
        DataError: the data cannot be found or read, or has no known format.
    """

    name: str
    reader: ShardReader
    encode: RowEncoder
    shuffle: bool
    shuffle_window: int
    block_bytes: int
    overflow: Any

    def __init__(
        self,
        data: ShardSource | None = None,
        *,
        name: str,
        shuffle: bool = True,
        shuffle_window: int = _SHUFFLE_WINDOW,
        block_bytes: int = _BLOCK_BYTES,
        overflow: Any = None,
        reader: ShardReader | None = None,
        encode: RowEncoder | None = None,
        **options: Unpack[EncoderOptions],
    ) -> None:
        check_name(name)
        if type(shuffle_window) is not int or shuffle_window < 1:
            raise ConfigError(f"source {name!r}: shuffle_window {shuffle_window!r} is not a number of rows >= 1")
        if overflow not in (None, "truncate", "drop", "split", "error"):
            raise ConfigError(f"source {name!r}: overflow {overflow!r} is none of truncate, drop, split, error")
        if (data is None) == (reader is None):
            raise ConfigError(f"source {name!r}: give data, or a reader in its place")
        if encode is not None and options:
            raise ConfigError(f"source {name!r}: encode stands in place of {', '.join(options)}; give one")
        if reader is None or encode is None:
            from streamsft.text.streaming import open_shards, shard_encoder

            if reader is None:
                assert data is not None
                reader = open_shards(data, name)
            encode = encode or shard_encoder(reader, name, **options)
        fields = {"name": name, "reader": reader, "encode": encode, "shuffle": shuffle}
        fields |= {"shuffle_window": shuffle_window, "block_bytes": block_bytes, "overflow": overflow}
        for field, value in fields.items():
            object.__setattr__(self, field, value)

    @property
    def fingerprint(self) -> str:
        """Digest of the data and of what makes tokens of it.

        Raises:
            DataError: the data cannot be read.
            ConfigError: it cannot be told what a function does; give it a `version` attribute.
        """
        made = getattr(self.encode, "fingerprint", None)
        if not isinstance(made, str):
            return self.reader.fingerprint
        return blake2b(f"{self.reader.fingerprint} {made}".encode(), digest_size=16).hexdigest()

    @property
    def rejected(self) -> Mapping[str, int]:
        """Nothing is known before rows are read."""
        return {}

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons for which a row may be refused, as far as the encoder's `reasons` tell, in alphabetical order."""
        return tuple(sorted({*getattr(self.encode, "reasons", ()), "nothing_supervised", "too_long"}))

    def held_out(self) -> TokenStore:
        """The rows that `holdout` keeps from training, as a finite source named ``<name>.holdout``, in memory.

        Raises:
            ConfigError: none are held out.
            EmptySourceError: none of them can be used.
            DataError: the data cannot be read.
        """
        from streamsft.text.streaming import held_out

        return held_out(self)

    def stream(self, *, seed: int = 0, shard: Shard | None = None) -> FeedStream:
        """The source as an endless stream of samples, in a new order each pass if it is shuffled.

        Args:
            seed: seed of the order.
            shard: which part of the stream; for a rank and a worker
                ``Shard(rank * workers + worker, ranks * workers)``. The parts of a pass are disjoint and complete.
        """
        from streamsft.stream.feedstream import FeedStream

        return FeedStream(self, seed=seed, shard=shard)
