"""Preference pairs in packs: where their branches stand, and what of a batch they change.

A pair that shares its prompt is one document with two branches: positions go on from the shared tokens in both, and
`branch_ids` (0 shared, 1 chosen, 2 rejected) tells attention that neither sees the other. A pair that shares nothing
(`streamsft.sources.pairs.SideBySide`) is two documents, each with a number and positions of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from streamsft.errors import ConfigError
from streamsft.sources.tokennames import PAIR
from streamsft.stream.records import DocumentTable
from streamsft.types import Ints

__all__ = ["CHOSEN_BRANCH", "REJECTED_BRANCH", "Pairs", "pairs_of", "place_branches"]

CHOSEN_BRANCH, REJECTED_BRANCH = 1, 2


class Pairs(NamedTuple):
    """The preference pairs of some packs, in pack order; int64[pairs] each."""

    pack: Ints
    """Number of the pack."""
    slot: Ints
    """First slot of the pair in its pack."""
    shared: Ints
    """Tokens that both branches see; 0 where each has its prompt."""
    chosen: Ints
    """Tokens of the chosen branch, behind those."""
    rejected: Ints
    """Tokens of the rejected branch, behind that."""

    def __len__(self) -> int:
        return len(self.pack)

    def starts(self, slots: int) -> Ints:
        """First slot of the chosen and of the rejected branch of each pair, slots numbered over all packs; ascending.

        Args:
            slots: of a pack.

        Returns:
            int64[pairs, 2].
        """
        chosen = self.pack * slots + self.slot + self.shared
        return np.stack([chosen, chosen + self.chosen], axis=1)


def pairs_of(table: DocumentTable, carried: Mapping[str, Any]) -> Pairs:
    """Those of the documents that are pairs."""
    found = carried.get(PAIR)
    pair = np.zeros((len(table.pack), 2), np.int64) if found is None else np.asarray(found, np.int64)
    at = np.flatnonzero(pair[:, 1])
    shared, chosen = pair[at].T
    return Pairs(table.pack[at], table.slot[at], shared, chosen, table.length[at] - shared - chosen)


def place_branches(pairs: Pairs, position_ids: Ints, document_ids: Ints, align: int) -> Ints | None:
    """Correct the positions and numbers of documents that are pairs, in place.

    Args:
        pairs: the pairs.
        position_ids: int64[packs, slots], counted over whole documents.
        document_ids: int64[packs, slots], a pair being one document.
        align: what documents take a multiple of, in slots.

    Returns:
        The branch of each slot, int64[packs, slots]; None where no pair shares tokens.

    Raises:
        ConfigError: documents are aligned, and a pair is two of them, of which the second one would not be.
    """
    packs, slots = position_ids.shape
    starts = pairs.starts(slots)
    rejected = _ranges(starts[:, 1], pairs.rejected)
    position_ids.reshape(-1)[rejected] -= np.repeat(pairs.chosen, pairs.rejected)
    sharing = pairs.shared > 0
    if not sharing.all():
        if align > 1:
            raise ConfigError(
                f"align: {align}: pairs side by side are not aligned; share the prompt, or leave align out"
            )
        begins = np.zeros((packs, slots), np.int64)
        begins.reshape(-1)[starts[~sharing, 1]] = 1
        document_ids += np.where(document_ids > 0, begins.cumsum(axis=1), 0)
    if not sharing.any():
        return None
    branch_ids = np.zeros((packs, slots), np.int64)
    flat = branch_ids.reshape(-1)
    flat[_ranges(starts[sharing, 0], pairs.chosen[sharing])] = CHOSEN_BRANCH
    flat[_ranges(starts[sharing, 1], pairs.rejected[sharing])] = REJECTED_BRANCH
    return branch_ids


def _ranges(first: Ints, length: Ints) -> Ints:
    """``first[i], first[i] + 1, …`` of `length[i]` numbers each, one behind the other."""
    before = np.cumsum(length) - length
    numbers: Ints = np.arange(int(length.sum())) + np.repeat(first - before, length)
    return numbers
