"""Preference pairs as rows of tokens: a prompt with two answers, of which the first is preferred.

A row is the tokens that both answers see, then the chosen branch, then the rejected branch. Each branch begins with the
last token of the prompt (or the first in which the two differ), from which its first word is predicted, so labels need
no exception: the first token of a branch has none, like that of a document::

    shared        chosen branch     rejected branch
    w1 w2 w3 w4   w5 yes of course  w5 no way          (w1 … w5: the prompt)

Two numbers per row say where they stand: `shared_length` (4) and `chosen_length` (4). Lengths, mixing, packing and
resuming take a pair for a row like any other; it is never cut.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from streamsft.errors import StoreError
from streamsft.sources.base import Source
from streamsft.sources.index import RowIndex
from streamsft.sources.tokennames import CHOSEN, PAIR, SHARED
from streamsft.types import Bools, Int32s, Ints

__all__ = ["SideBySide", "carried_names", "holds_pairs", "validate_pairs", "with_pairs"]


def holds_pairs(source: Any) -> bool:
    """Whether the rows of a source are preference pairs."""
    return PAIR in getattr(source, "carried", ())


def carried_names(columns: Sequence[str], index: RowIndex) -> tuple[str, ...]:
    """The names of what travels with the rows of a store: its `columns`, and ``pair`` of pairs."""
    return (*columns, PAIR) if index.chosen_length is not None else tuple(columns)


def with_pairs(columns: dict[str, list[Any]], index: RowIndex, rows: Ints) -> dict[str, Any]:
    """What travels with `rows` of a store: its `columns`, and ``pair`` of pairs."""
    pairs = index.pairs(rows)
    return columns if pairs is None else {**columns, PAIR: pairs}


def validate_pairs(pairs: Int32s, lengths: Int32s, loss_mask: Bools, where: Callable[[int], str]) -> None:
    """Check the pairs of some rows.

    Args:
        pairs: `shared_length` and `chosen_length`, int32[k, 2].
        lengths: tokens per row, int32[k].
        loss_mask: of the rows end to end, bool[sum of lengths].
        where: names one of the rows.

    Raises:
        StoreError: a branch is empty or has nothing supervised, or what has no label is supervised: a shared token or
            the first of a branch.
    """
    shared, chosen = pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64)
    wrong = (shared < 1) | (chosen < 2) | (lengths - shared - chosen < 2)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise StoreError(
            f"{where(at)}: {SHARED} is {shared[at]} and {CHOSEN} {chosen[at]} of {lengths[at]} tokens; at least one "
            "token must be shared, and each branch must have two: its first is not trained on"
        )
    ends = np.cumsum(lengths, dtype=np.int64)
    starts = ends - lengths
    before = np.zeros(len(loss_mask) + 1, np.int64)
    np.cumsum(loss_mask, out=before[1:])
    first, second = starts + shared, starts + shared + chosen
    answered = (before[second] > before[first]) & (before[ends] > before[second])
    wrong = (before[first + 1] > before[starts]) | loss_mask[second] | ~answered
    if wrong.any():
        at = int(np.argmax(wrong))
        raise StoreError(
            f"{where(at)}: in each branch behind the {shared[at]} shared tokens something must be trained on, but not "
            "its first token, nor what is shared; correct the mask, or leave the pair out"
        )


@final
class SideBySide:
    """A store of pairs whose answers have the prompt each: a row is the prompt with the one, then with the other.

    The two are documents of their own in packs, always of one pack, so that any attention for packed documents does.
    It is a `Source` like the store, under the same name.

    Args:
        store: the pairs; read by index.

    Raises:
        StoreError: its rows are no pairs.
    """

    def __init__(self, store: Any) -> None:
        if not holds_pairs(store):
            raise StoreError(f"source {store.name}: its rows are no preference pairs")
        self.store: Source = store
        self._read_carried: Callable[[Ints], dict[str, Any]] = store.read_carried
        self._shared = self._read_carried(np.arange(len(store)))[PAIR][:, 0].astype(np.int32)
        self.carried = (PAIR,)
        made = f"side by side {store.fingerprint}"
        self.fingerprint = hashlib.blake2b(made.encode(), digest_size=16).hexdigest()

    @property
    def name(self) -> str:
        """The store's name."""
        return self.store.name

    @property
    def lengths(self) -> Int32s:
        """Tokens per row, int32[rows]."""
        lengths: Int32s = self.store.lengths + self._shared
        return lengths

    @property
    def supervised(self) -> Int32s:
        """Supervised tokens per row, int32[rows]."""
        return self.store.supervised

    @property
    def first_supervised(self) -> Int32s:
        """Index of the first of them, int32[rows]; it is in the chosen answer."""
        return self.store.first_supervised

    @property
    def row_numbers(self) -> Ints:
        """Number of each row in the source's input order, int64[rows]."""
        return self.store.row_numbers

    @property
    def rejected(self) -> Any:
        """Rows of the input that were not stored, by reason."""
        return getattr(self.store, "rejected", {})

    @property
    def whole(self) -> Bools:
        """No row may be cut, bool[rows]."""
        return np.ones(len(self.store), np.bool_)

    def __len__(self) -> int:
        return len(self.store)

    def origin(self, index: int) -> str:
        """Where stored row `index` came from."""
        return self.store.origin(index)

    def read(self, index: Ints) -> tuple[list[Int32s], list[Bools]]:
        """Ids (int32[n] each) and masks (bool[n] each) of the rows `index` (int64[k])."""
        ids, masks = self.store.read(index)
        shared, chosen = self._read_carried(index)[PAIR].T.tolist()
        borders = list(zip(shared, chosen, strict=True))
        return (
            [_doubled(row, *border) for row, border in zip(ids, borders, strict=True)],
            [_doubled(row, *border) for row, border in zip(masks, borders, strict=True)],
        )

    def read_carried(self, index: Ints) -> dict[str, Any]:
        """``pair`` of the rows `index`, int32[k, 2]: nothing is shared, and the chosen branch has the prompt."""
        pairs = self._read_carried(index)[PAIR]
        return {PAIR: np.stack([np.zeros_like(pairs[:, 0]), pairs.sum(axis=1, dtype=np.int32)], axis=1)}


def _doubled(row: Any, shared: int, chosen: int) -> Any:
    """A row of ids, or its mask, with the shared part in front of the rejected branch too."""
    border = shared + chosen
    return np.concatenate([row[:border], row[:shared], row[border:]])
