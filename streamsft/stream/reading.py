"""Reading the rows of planned documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, cast

import numpy as np

from streamsft.errors import DataError, MetricError
from streamsft.order.sorting import stable_order
from streamsft.sources.rowids import RowIds
from streamsft.stream.carrying import Carried, carried_of, extras_of
from streamsft.stream.documents import Documents
from streamsft.stream.mixture import Leaf
from streamsft.types import Bools, Floats, Int32s, Ints, Sample

__all__ = ["Read", "ReadIds", "Valued", "measured", "read_documents", "samples"]

Read = Callable[[int, Ints], tuple[Sequence[Int32s], Sequence[Bools]]]
"""From the number of a leaf and rows of it (int64[k]) to their ids (int32[n] each) and masks (bool[n] each)."""


ReadIds = Callable[[int, Ints], RowIds]
"""The same, ids alone."""


class Valued(Protocol):
    """A user's metric as far as reading is concerned: a name, and a number per sample."""

    @property
    def name(self) -> str: ...

    def measure(self, sample: Sample, /) -> float: ...


def read_documents(
    leaves: Sequence[Leaf], read: Read, documents: Documents, read_ids: ReadIds | None = None
) -> tuple[RowIds, list[Bools]]:
    """Token ids and loss masks of each document, cut to the part that was planned; views where sources give views.

    With `read_ids` the masks of documents whose `labels_from` is known are left unread, and come out empty; without
    it all ids are those of arrays.

    Raises:
        DataError: a source gave another number of tokens than its lengths say; names the source and the row.
    """
    told = documents.labels_from >= 0
    unread = told if read_ids is not None else np.zeros(len(told), np.bool_)
    group = documents.source * 2 + unread
    order = stable_order(group, 2 * len(leaves))
    counts = np.bincount(group)
    parts: list[RowIds] = []
    masks: list[Bools] = []
    stop = 0
    for number in np.flatnonzero(counts).tolist():
        start, stop = stop, stop + int(counts[number])
        stored = documents.stored[order[start:stop]]
        if read_ids is not None and number & 1:
            parts.append(read_ids(number >> 1, stored))
            masks += [_UNREAD] * len(stored)
        else:
            found = read(number >> 1, stored)
            parts.append(RowIds.of([_one_behind_the_other(row) for row in found[0]]))
            masks += found[1]
    ids = RowIds.joined(parts)
    if len(counts) > 1:
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        ids = ids.take(places)
        masks = masks if unread.all() else [masks[place] for place in places.tolist()]
    return _cut(leaves, documents, ids, masks, np.flatnonzero(~unread)), masks


def _one_behind_the_other(ids: Int32s) -> Int32s:
    """The ids as filling packs needs them: most sources give them so."""
    if ids.dtype == np.int32 and ids.flags.c_contiguous:
        return ids
    return np.ascontiguousarray(np.asarray(ids).astype(np.int32, casting="same_kind"))


def _cut(leaves: Sequence[Leaf], documents: Documents, ids: RowIds, masks: list[Bools], masked: Ints) -> RowIds:
    """Compare with what was planned what was read, and cut it to that, masks in place."""
    given = ids.lengths
    promised = documents.start + documents.length + documents.cut
    wrong = given < promised
    for place in masked.tolist():
        if len(masks[place]) != given[place]:
            wrong[place] = True
    if wrong.any() or len(ids) != len(documents.source):
        at = int(np.argmax(wrong))
        where = f"source {leaves[int(documents.source[at])].name!r}, row {documents.row[at]}"
        raise DataError(
            f"{where}: read() gave {given[at]} ids and {len(masks[at])} mask entries where lengths says "
            f"{promised[at]}; the members of a source must agree, and its contents must not change"
        )
    for place in np.flatnonzero(given != documents.length).tolist():
        if masks[place] is not _UNREAD:
            start = int(documents.start[place])
            masks[place] = masks[place][start : start + int(documents.length[place])]
    return ids.cut(documents.start, documents.length)


_UNREAD = np.empty(0, np.bool_)


def samples(leaves: Sequence[Leaf], read: Read, documents: Documents) -> list[Sample]:
    """The documents as `Sample` objects, in the order given; `leaves` are what they are numbered by."""
    ids, masks = read_documents(leaves, read, documents)
    return _samples(leaves, documents, ids, masks, carried_of(leaves, documents))


def _samples(
    leaves: Sequence[Leaf], documents: Documents, ids: RowIds, masks: list[Bools], carried: Carried
) -> list[Sample]:
    names = [leaf.name for leaf in leaves]
    rows = documents.row.tolist()
    passes, starts, sources = documents.pass_index.tolist(), documents.start.tolist(), documents.source.tolist()
    return [
        Sample(
            input_ids=row_ids, loss_mask=masks[i], source=names[sources[i]], row=rows[i],
            pass_index=passes[i], start=starts[i], extras=extras_of(carried, i),
        )
        for i, row_ids in enumerate(cast(list[Int32s], ids.views(slice(None))))
    ]  # fmt: skip


def measured(
    leaves: Sequence[Leaf],
    documents: Documents,
    ids: RowIds,
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
