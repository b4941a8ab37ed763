"""Which tokens of packs are labels, told by stretches of them: chats have few, and numpy fills long ones fast."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from streamsft.stream.documents import Documents
from streamsft.types import Bools, Int32s, Ints

__all__ = ["IGNORE_INDEX", "Labelled", "label_stretches", "labels_of", "runs_of"]

IGNORE_INDEX = -100
"""Label of what is not trained on: the default `ignore_index` of `torch.nn.functional.cross_entropy`."""

_ANY = np.iinfo(np.int32).max  # no token id is above it


class Labelled(NamedTuple):
    """The labels of some packs, end to end."""

    stretches: Int32s
    """First slot of each stretch of labels and the slot behind it, int32[stretches, 2], ascending. There is a slot
    without a label between any two."""
    supervised: Ints
    """Labels of each document, int64[documents]."""
    turns: Ints
    """Stretches of each document, int64[documents]."""


def label_stretches(documents: Documents, firsts: Ints, masks: Sequence[Bools]) -> Labelled:
    """Where the labels of documents are: supervised tokens but for the first of each.

    Args:
        documents: the documents.
        firsts: slot of each one's first token, int64[documents], ascending.
        masks: their loss masks; not looked at where `labels_from` tells.
    """
    before = np.minimum(np.maximum(documents.labels_from - documents.start, 1), documents.length)
    supervised = documents.length - before
    turns = (supervised > 0).astype(np.int64)
    stretches = np.empty((len(firsts), 2), np.int32)
    stretches[:, 0], stretches[:, 1] = firsts + before, firsts + documents.length
    told = documents.labels_from >= 0
    if told.all():
        return Labelled(stretches if turns.all() else stretches[turns > 0], supervised, turns)
    others = np.flatnonzero(~told)
    found = _masked(firsts[others], [masks[at] for at in others.tolist()])
    supervised[others], turns[others] = found.supervised, found.turns
    stretches = np.concatenate([stretches[told & (turns > 0)], found.stretches])
    return Labelled(stretches[stretches[:, 0].argsort(kind="stable")], supervised, turns)


def _masked(firsts: Ints, masks: Sequence[Bools]) -> Labelled:
    """The labels of documents by their masks."""
    length = np.fromiter(map(len, masks), np.int64, len(masks))
    place = length.cumsum() - length
    labelled = np.concatenate(masks)  # no stretch goes on from one document to the next, as first tokens are no labels
    labelled[place] = False
    borders = np.flatnonzero(np.diff(labelled, prepend=False, append=False)).reshape(-1, 2)
    document = place.searchsorted(borders[:, 0], "right") - 1
    turns = np.bincount(document, minlength=len(masks))
    supervised = np.zeros(len(masks), np.int64)
    np.add.at(supervised, document, borders[:, 1] - borders[:, 0])
    return Labelled((borders + (firsts - place)[document, None]).astype(np.int32), supervised, turns)


def runs_of(labelled: Labelled, ends: Ints) -> tuple[Ints, list[int]]:
    """Slots without a label and with one, in turn, step by step, each with those behind its last label at the end.

    Args:
        labelled: the labels of some steps.
        ends: number of slots up to the end of each step, int64[steps].

    Returns:
        int64[2 * stretches + steps], and where the runs of each step begin, and end.
    """
    behind = labelled.stretches[:, 0].searchsorted(ends)
    borders = np.insert(labelled.stretches.reshape(-1).astype(np.int64), 2 * behind, ends)
    return np.diff(borders, prepend=0), [0, *(2 * behind + np.arange(1, len(ends) + 1)).tolist()]


def labels_of(ids: Ints, runs: Ints) -> Ints:
    """The id where there is a label, else `IGNORE_INDEX`: int64, of the shape of `ids`.

    Args:
        ids: token ids from 0 to below 2**31, int64.
        runs: slots of ``ids.reshape(-1)`` without a label and with one, in turn, int64[2 * stretches + 1].
    """
    most = _in_turn(1 << len(runs).bit_length())[: len(runs)].repeat(runs).reshape(ids.shape)
    # The smaller of the two takes less time than a choice by a mask.
    return np.minimum(ids, most, out=most)


@lru_cache(maxsize=4)
def _in_turn(count: int) -> Ints:
    """What ids are at most where there is no label and where there is one, in turn, int64[count]."""
    most = np.full(count, IGNORE_INDEX, np.int64)
    most[1::2] = _ANY
    most.flags.writeable = False
    return most
