"""What a source of rows must offer to be drawn from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeGuard, runtime_checkable

from streamsft.sources.rowids import RowIds
from streamsft.types import Bools, IdBuffer, Int32s, Ints, lacking

__all__ = ["GroupedSource", "IdsSource", "Source", "is_grouped", "is_source", "missing_members"]


class Source(Protocol):
    """A named, indexable dataset whose lengths are known without reading tokens.

    Anything with these members can be mixed, packed and resumed; nothing needs to be inherited. An
    object must be picklable for loaders with worker processes, and its contents must not change.
    All arrays have one entry per stored row, in a fixed order.
    """

    @property
    def name(self) -> str:
        """Unique over the mix; letters, digits, ``_``, ``.`` and ``-``."""

    @property
    def fingerprint(self) -> str:
        """A short hex digest of the ordered contents (tokens, masks, row numbers), not of paths."""

    def __len__(self) -> int:
        """Number of stored rows."""

    @property
    def lengths(self) -> Int32s:
        """Tokens per row, int32[rows]."""

    @property
    def supervised(self) -> Int32s:
        """Supervised tokens at index 1 or later per row, int32[rows]; a document's first token has no context."""

    @property
    def first_supervised(self) -> Int32s:
        """Index >= 1 of the first supervised token per row, int32[rows]; the row's length where there is none."""

    @property
    def row_numbers(self) -> Ints:
        """Number of each row in the input, int64[rows], strictly increasing; gaps are rejected rows."""

    def read(self, index: Ints) -> tuple[Sequence[Int32s], Sequence[Bools]]:
        """Token ids (int32[n] each) and loss masks (bool[n] each) of the stored rows `index` (int64[k]).

        The arrays may be read-only views. Order and repeats are kept.
        """

    def origin(self, index: int) -> str:
        """Where stored row `index` came from, as ``file:row`` for messages."""


@runtime_checkable
class IdsSource(Source, Protocol):
    """A source that can leave the masks unread of rows whose `first_supervised` and `supervised` tell all of them."""

    def read_ids(self, index: Ints) -> RowIds | Sequence[IdBuffer]:
        """Token ids of the stored rows `index` (int64[k]), as `read` gives them, or as the memory of such arrays."""


class GroupedSource(Source, Protocol):
    """A `Source` whose rows are stored in groups that are read whole, such as the row groups of Parquet files."""

    @property
    def group_bounds(self) -> Ints:
        """Stored rows before each group, int64[groups + 1]: from 0 to the number of rows, not decreasing."""

    def expect(self, reader: int, groups: Iterable[tuple[int, int]]) -> None:
        """Be told what will be read next, so that it can be fetched ahead.

        Args:
            reader: who will read; what it said before no longer holds.
            groups: numbers of the groups in the order that it needs them, each with the rows that it reads before.
                May be endless: no more is taken of it than is fetched ahead.
        """


_MEMBERS = (
    "name",
    "fingerprint",
    "__len__",
    "lengths",
    "supervised",
    "first_supervised",
    "row_numbers",
    "read",
    "origin",
)


def is_source(value: Any) -> TypeGuard[Source]:
    """Whether `value` has the members of a `Source`. None of them is evaluated, so nothing is opened."""
    return not missing_members(value)


def missing_members(value: Any) -> list[str]:
    """The members of a `Source` that `value` lacks. None of them is evaluated, so nothing is opened."""
    return lacking(value, _MEMBERS)


def is_grouped(value: Any) -> TypeGuard[GroupedSource]:
    """Whether `value` has the members of a `GroupedSource`."""
    return is_source(value) and not lacking(value, ("group_bounds", "expect"))
