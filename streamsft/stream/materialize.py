"""The packs of steps as arrays of tokens, and their way between processes as one bytes object."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from streamsft import errors
from streamsft.errors import StreamsftError
from streamsft.stream.carrying import carried_of, from_blob, part_of, to_blob
from streamsft.stream.documents import Documents
from streamsft.stream.lane import LaneState
from streamsft.stream.mixture import Leaf
from streamsft.stream.reading import Read, ReadIds, Valued, measured, read_documents
from streamsft.stream.records import BatchDocuments, DocumentTable, StepEnd
from streamsft.stream.steps import Mixes, StepPlan
from streamsft.types import Bools, Int32s, Ints

__all__ = ["RawBatch", "error_to_bytes", "materialize"]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RawBatch:
    """One rank's part of a step, its packs filled up with padding.

    Attributes:
        ids: token ids, int32[packs, sequence_length]; 0 on padding.
        labelled: True where a token is a label: supervised and not the first of its document, bool[packs,
            sequence_length].
        documents: what is known of the documents, and what the step leaves beside them.
    """

    ids: Int32s
    labelled: Bools
    documents: BatchDocuments

    @classmethod
    def skipped(cls, step: StepPlan) -> RawBatch:
        """What takes the place of a step that is left out: no pack, but the lanes behind it."""
        nothing = np.empty(0, np.int64)
        table = DocumentTable(*(nothing for _ in DocumentTable._fields))
        end = StepEnd(step=step.step, refused=(), lanes=step.lanes)
        return cls(
            ids=np.empty((0, 0), np.int32),
            labelled=np.empty((0, 0), np.bool_),
            documents=BatchDocuments(packs=0, table=table, values={}, carried={}, end=end),
        )

    def counting(self, counts: Sequence[tuple[int, str, int]]) -> RawBatch:
        """The batch with counts of what was read for it, (source, name, count) each, beside those of refused rows."""
        if not counts:
            return self
        end = self.documents.end._replace(refused=(*self.documents.end.refused, *counts))
        return replace(self, documents=replace(self.documents, end=end))

    def to_bytes(self) -> bytes:
        """The batch as one bytes object, for the way out of a worker process."""
        table, values, (step, refused, lanes) = self.documents.table, self.documents.values, self.documents.end
        header = {
            "step": step,
            "shapes": [len(table.source), *self.ids.shape],
            "values": list(values),
            "refused": list(refused),
            "lanes": {number: state.to_json() for number, state in lanes.items()},
        }
        arrays: list[NDArray[Any]] = [*table, *values.values(), self.ids, self.labelled]
        return b"".join([_header(header), *(array.tobytes() for array in arrays), to_blob(self.documents.carried)])

    @classmethod
    def from_bytes(cls, data: bytes, mixes: Mixes) -> RawBatch:
        """Read what `to_bytes` or `error_to_bytes` wrote in this run; the arrays are read-only views of `data`.

        Raises:
            StreamsftError: the one that `data` stands for.
        """
        at = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:at])
        if "error" in header:
            raise getattr(errors, header["error"])(header["message"])
        entries, *shape = header["shapes"]

        def next_array(dtype: type[np.generic], count: int) -> NDArray[Any]:
            nonlocal at
            array = np.frombuffer(data, dtype, count, at)
            at += array.nbytes
            return array

        table = DocumentTable(*(next_array(np.int64, entries) for _ in DocumentTable._fields))
        values = {name: next_array(np.float64, entries) for name in header["values"]}
        end = StepEnd(
            step=header["step"],
            refused=tuple((source, reason, count) for source, reason, count in header["refused"]),
            lanes={
                int(n): LaneState.from_json(lane, mixes.of(lane), f"lane {n}") for n, lane in header["lanes"].items()
            },
        )
        ids = next_array(np.int32, math.prod(shape)).reshape(shape)
        labelled = next_array(np.bool_, math.prod(shape)).reshape(shape)
        carried = from_blob(data[at:])
        documents = BatchDocuments(packs=shape[0], table=table, values=values, carried=carried, end=end)
        return cls(ids=ids, labelled=labelled, documents=documents)


def error_to_bytes(error: StreamsftError) -> bytes:
    """An error as the bytes object that takes the place of a batch."""
    return _header({"error": type(error).__name__, "message": str(error)})


def _header(value: Mapping[str, Any]) -> bytes:
    """JSON behind its length, filled up so that arrays behind it are aligned."""
    text = json.dumps(value).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def materialize(
    leaves: Sequence[Leaf],
    read: Read,
    read_ids: ReadIds,
    steps: Sequence[StepPlan],
    slots: int,
    metrics: Sequence[Valued] = (),
) -> Iterator[RawBatch]:
    """Read the tokens of one rank's part of some steps, all at once. An error comes where its step would.

    Args:
        leaves: what documents are numbered by.
        read: gives ids and masks of rows of a leaf.
        read_ids: gives ids alone; asked only for rows whose masks can be told from their first label.
        steps: what was planned.
        slots: the sequence length.
        metrics: user metrics, evaluated on each document.

    Raises:
        DataError: a source gave another number of tokens than its lengths say.
        MetricError: a metric's function failed or gave no number; names the metric, the source and the row.
    """
    if not steps:
        return
    documents = Documents.join([(step.documents, step.packs) for step in steps])
    try:
        ids, masks = read_documents(leaves, read, documents, None if metrics else read_ids)
        carried = carried_of(leaves, documents)
        values = measured(leaves, documents, ids, masks, carried, metrics) if metrics else {}
    except Exception:  # whatever a user's code raises: step by step it is raised again, in its place
        if len(steps) == 1:
            raise
        for step in steps:
            yield from materialize(leaves, read, read_ids, [step], slots, metrics)
        return
    borders = np.cumsum([0, *(len(step.documents.source) for step in steps)]).tolist()
    for step, (first, stop) in zip(steps, pairwise(borders), strict=True):
        table, all_ids, labelled = _filled(step, ids[first:stop], masks[first:stop], slots)
        mine = BatchDocuments(
            packs=step.packs,
            table=table,
            values={name: numbers[first:stop] for name, numbers in values.items()},
            carried=part_of(carried, slice(first, stop)),
            end=StepEnd(step=step.step, refused=step.refused, lanes=step.lanes),
        )
        yield RawBatch(ids=all_ids, labelled=labelled, documents=mine)


def _filled(step: StepPlan, ids: list[Int32s], masks: list[Bools], slots: int) -> tuple[DocumentTable, Int32s, Bools]:
    """The packs of a step from the tokens of its documents: the table, `RawBatch.ids` and `RawBatch.labelled`."""
    documents, packs = step.documents, step.packs
    place = np.cumsum(documents.length) - documents.length  # with all padding left out
    borders = documents.pack.searchsorted(np.arange(packs + 1))
    opened = borders[documents.pack]
    slot = place - place[opened]
    padding = (slots - (slot + documents.length)[borders[1:] - 1]).tolist()
    labelled, supervised, turns = _labelled(documents, documents.pack * slots + slot, masks, packs * slots)
    nothing = np.zeros(max(padding), np.int32)
    for missing, stop in zip(reversed(padding), reversed(borders[1:].tolist()), strict=True):
        ids.insert(stop, nothing[:missing])
    table = DocumentTable(
        source=documents.source,
        row=documents.row,
        pass_index=documents.pass_index,
        start=documents.start,
        first=documents.first,
        length=documents.length,
        pack=documents.pack,
        number=np.arange(1, len(place) + 1) - opened,
        slot=slot,
        cut=documents.cut,
        supervised=supervised,
        turns=turns,
    )
    flat = np.concatenate(ids, dtype=np.int32, casting="same_kind")
    return table, flat.reshape(packs, slots), labelled.reshape(packs, slots)


def _labelled(documents: Documents, firsts: Ints, masks: Sequence[Bools], slots: int) -> tuple[Bools, Ints, Ints]:
    """Where labels are, bool[slots], and per document their number and that of their stretches.

    Args:
        documents: the documents.
        firsts: slot of each one's first token, over all packs.
        masks: their loss masks; empty where `labels_from` tells.
        slots: slots of all packs.
    """
    unknown = documents.labels_from < 0
    before = np.minimum(np.maximum(documents.labels_from - documents.start, 1), documents.length)
    before[unknown] = documents.length[unknown]
    supervised = documents.length - before
    stops = firsts + documents.length
    runs = np.empty(2 * len(firsts) + 1, np.int64)  # without labels and with them, in turn
    runs[0:-1:2] = before + firsts
    runs[2:-1:2] -= stops[:-1]
    runs[1::2] = supervised
    runs[-1] = slots - stops[-1]
    pattern = np.zeros(len(runs), np.bool_)
    pattern[1::2] = True
    labelled = pattern.repeat(runs)
    turns = (supervised > 0).astype(np.int64)
    for at in np.flatnonzero(unknown).tolist():
        mine = labelled[firsts[at] : stops[at]]
        mine[1:] = masks[at][1:]
        supervised[at] = np.count_nonzero(mine)
        turns[at] = np.count_nonzero(mine[1:] > mine[:-1])
    return labelled, supervised, turns
