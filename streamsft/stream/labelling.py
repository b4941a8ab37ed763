"""Which tokens of packs are labels, told by stretches of them: chats have few, and numpy fills long ones fast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from streamsft.stream.documents import Documents
from streamsft.types import Bools, Int32s, Ints

__all__ = ["IGNORE_INDEX", "Labelled", "label_stretches", "labels_of"]

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


def labels_of(ids: Int32s, stretches: Int32s) -> Ints:
    """The id where there is a label, else `IGNORE_INDEX`: int64, of the shape of `ids`.

    Args:
        ids: token ids >= 0, int32.
        stretches: where labels are, int32[stretches, 2], as in `Labelled`; slots are those of ``ids.reshape(-1)``.
    """
    runs = np.empty(stretches.size + 1, np.int64)  # slots without a label and with one, in turn
    edges = stretches.reshape(-1)
    runs[:-1], runs[-1] = edges, ids.size
    runs[1:] -= edges
    most = np.empty(len(runs), np.int32)
    most[::2], most[1::2] = IGNORE_INDEX, _ANY
    # The smaller of the two, rather than a choice by a mask, is what processors have one instruction for.
    chosen = most.repeat(runs).reshape(ids.shape)
    return np.minimum(ids, chosen, out=chosen).astype(np.int64)
