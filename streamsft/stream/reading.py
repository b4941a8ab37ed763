"""Reading the rows of planned documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, cast

import numpy as np

from streamsft.errors import DataError, MetricError
from streamsft.stream.carrying import Carried, carried_of, extras_of
from streamsft.stream.documents import Documents
from streamsft.stream.mixture import Leaf
from streamsft.types import Bools, Floats, IdBuffer, Int32s, Ints, Sample

__all__ = ["Read", "ReadIds", "Valued", "measured", "read_documents", "samples"]

Read = Callable[[int, Ints], tuple[Sequence[Int32s], Sequence[Bools]]]
"""From the number of a leaf and rows of it (int64[k]) to their ids (int32[n] each) and masks (bool[n] each)."""


ReadIds = Callable[[int, Ints], Sequence[IdBuffer]]
"""The same, ids alone, as arrays or as their memory."""


class Valued(Protocol):
    """A user's metric as far as reading is concerned: a name, and a number per sample."""

    @property
    def name(self) -> str: ...

    def measure(self, sample: Sample, /) -> float: ...


def read_documents(
    leaves: Sequence[Leaf], read: Read, documents: Documents, read_ids: ReadIds | None = None
) -> tuple[list[IdBuffer], list[Bools]]:
    """Token ids and loss masks of each document, cut to the part that was planned; views where sources give views.

    With `read_ids` the masks of documents whose `labels_from` is known are left unread, and come out empty; without
    it all ids are arrays.

    Raises:
        DataError: a source gave another number of tokens than its lengths say; names the source and the row.
    """
    told = documents.labels_from >= 0
    unread = told if read_ids is not None else np.zeros(len(told), np.bool_)
    group = documents.source * 2 + unread
    order = np.argsort(group, kind="stable")
    counts = np.bincount(group)
    ids: list[IdBuffer] = []
    masks: list[Bools] = []
    stop = 0
    for number in np.flatnonzero(counts).tolist():
        start, stop = stop, stop + int(counts[number])
        stored = documents.stored[order[start:stop]]
        if read_ids is not None and number & 1:
            ids += read_ids(number >> 1, stored)
            masks += [_UNREAD] * len(stored)
        else:
            found = read(number >> 1, stored)
            ids += map(_one_behind_the_other, found[0])
            masks += found[1]
    if len(counts) > 1:
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        ids = [ids[place] for place in places.tolist()]
        masks = masks if unread.all() else [masks[place] for place in places.tolist()]
    _check(leaves, documents, ids, masks, np.flatnonzero(~unread))
    return ids, masks


def _one_behind_the_other(ids: Int32s) -> Int32s:
    """The ids as filling packs needs them: most sources give them so."""
    if ids.dtype == np.int32 and ids.flags.c_contiguous:
        return ids
    return np.ascontiguousarray(np.asarray(ids).astype(np.int32, casting="same_kind"))


def _check(leaves: Sequence[Leaf], documents: Documents, ids: list[IdBuffer], masks: list[Bools], masked: Ints) -> None:
    """Compare with what was planned what was read, and cut it to that."""
    given = np.fromiter(map(len, ids), np.int64, len(ids))
    promised = documents.start + documents.length + documents.cut
    wrong = given < promised
    for place in masked.tolist():
        if len(masks[place]) != given[place]:
            wrong[place] = True
    if wrong.any() or len(ids) != len(documents.source):
        at = int(np.argmax(wrong))
        where = f"source {leaves[int(documents.source[at])].name!r}, row {documents.row[at]}"
        raise DataError(
            f"{where}: read() gave {len(ids[at])} ids and {len(masks[at])} mask entries where lengths says "
            f"{promised[at]}; the members of a source must agree, and its contents must not change"
        )
    for place in np.flatnonzero(given != documents.length).tolist():
        part = slice(int(documents.start[place]), int(documents.start[place] + documents.length[place]))
        ids[place] = ids[place][part]
        if masks[place] is not _UNREAD:
            masks[place] = masks[place][part]


_UNREAD = np.empty(0, np.bool_)


def samples(leaves: Sequence[Leaf], read: Read, documents: Documents) -> list[Sample]:
    """The documents as `Sample` objects, in the order given; `leaves` are what they are numbered by."""
    ids, masks = read_documents(leaves, read, documents)
    return _samples(leaves, documents, cast(list[Int32s], ids), masks, carried_of(leaves, documents))


def _samples(
    leaves: Sequence[Leaf], documents: Documents, ids: Sequence[Int32s], masks: list[Bools], carried: Carried
) -> list[Sample]:
    names = [leaf.name for leaf in leaves]
    rows = documents.row.tolist()
    passes, starts, sources = documents.pass_index.tolist(), documents.start.tolist(), documents.source.tolist()
    return [
        Sample(
            input_ids=ids[i], loss_mask=masks[i], source=names[sources[i]], row=rows[i],
            pass_index=passes[i], start=starts[i], extras=extras_of(carried, i),
        )
        for i in range(len(ids))
    ]  # fmt: skip


def measured(
    leaves: Sequence[Leaf],
    documents: Documents,
    ids: Sequence[Int32s],
    masks: list[Bools],
    carried: Carried,
    metrics: Sequence[Valued],
) -> dict[str, Floats]:
    """What each metric says of each document, float64[documents].

    Raises:
        MetricError: a metric's function failed or gave no number; names the metric, the source and the row.
    """
    found = _samples(leaves, documents, ids, masks, carried)
    values = {}
    for metric in metrics:
        numbers = np.empty(len(found), np.float64)
        for at, sample in enumerate(found):
            try:
                numbers[at] = metric.measure(sample)
            except MetricError:
                raise
            except Exception as error:
                raise MetricError(
                    f"metric {metric.name!r} failed on source {sample.source!r}, row {sample.row}: {error!r}"
                ) from error
        values[metric.name] = numbers
    return values
