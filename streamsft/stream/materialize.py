"""The packs of steps as arrays of tokens, and their way between processes as one bytes object."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, cast, final

import numpy as np
from numpy.typing import NDArray

from streamsft import errors
from streamsft.errors import StreamsftError
from streamsft.stream.aligning import slots_taken
from streamsft.stream.carrying import carried_of, from_blob, part_of, to_blob
from streamsft.stream.documents import Documents, gathered
from streamsft.stream.labelling import Labelled, label_stretches, runs_of
from streamsft.stream.lanestate import LaneState
from streamsft.stream.mixture import Leaf
from streamsft.stream.reading import Read, ReadIds, Valued, measured, read_documents
from streamsft.stream.records import BatchDocuments, DocumentTable, KnownDocuments, Places, StepEnd
from streamsft.stream.shipping import Buffers
from streamsft.stream.steps import Mixes, StepPlan
from streamsft.types import Bools, IdBuffer, Int32s, Ints

__all__ = ["RawBatch", "error_to_buffers", "materialize"]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RawBatch:
    """One rank's part of a step, its packs filled up with padding.

    Attributes:
        ids: token ids, int32[packs, sequence_length]; 0 on padding.
        runs: slots without a label and with one, in turn, over all packs, int64[2 * stretches + 1]; labels are the
            supervised tokens but for the first of each document.
        places: where documents stand.
        documents: what is known of the documents, and what the step leaves beside them.
    """

    ids: Int32s
    runs: Ints
    places: Places
    documents: BatchDocuments

    @classmethod
    def skipped(cls, step: StepPlan) -> RawBatch:
        """What takes the place of a step that is left out: no pack, but the lanes behind it."""
        nothing = np.empty(0, np.int64)
        documents = BatchDocuments(
            packs=0,
            slots=0,
            known=KnownDocuments(DocumentTable(*(nothing for _ in DocumentTable._fields))),
            chosen=slice(0, 0),
            before=0,
            values={},
            carried={},
            end=StepEnd(step=step.step, refused=(), lanes=step.lanes),
        )
        return cls(
            ids=np.empty((0, 0), np.int32),
            runs=nothing,
            places=Places(nothing, nothing, nothing, (), begun=True),
            documents=documents,
        )

    def counting(self, counts: Sequence[tuple[int, str, int]]) -> RawBatch:
        """The batch with counts of what was read for it, (source, name, count) each, beside those of refused rows."""
        if not counts:
            return self
        end = self.documents.end._replace(refused=(*self.documents.end.refused, *counts))
        return replace(self, documents=replace(self.documents, end=end))

    def to_buffers(self) -> Buffers:
        """The batch for the way out of a worker process."""
        table, values, (step, refused, lanes) = self.documents.table, self.documents.values, self.documents.end
        header = {
            "step": step,
            "shapes": [len(table.source), len(self.runs), *self.ids.shape],
            "values": list(values),
            "refused": list(refused),
            "used": self.places.used,
            "begun": self.places.begun,
            "lanes": {number: state.to_json() for number, state in lanes.items()},
        }
        arrays: list[NDArray[Any]] = [*table, *self.places[:3], self.runs, *values.values(), self.ids]
        return [_header(header), *arrays, to_blob(self.documents.carried)]

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, mixes: Mixes) -> RawBatch:
        """Read what `to_buffers` or `error_to_buffers` gave in this run; the arrays are read-only views of `data`.

        Raises:
            StreamsftError: the one that `data` stands for.
        """
        at = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(bytes(data[8:at]))
        if "error" in header:
            raise getattr(errors, header["error"])(header["message"])
        entries, runs, *shape = header["shapes"]

        def next_array(dtype: type[np.generic], count: int) -> NDArray[Any]:
            nonlocal at
            array = np.frombuffer(data, dtype, count, at)
            at += array.nbytes
            return array

        fields = len(DocumentTable._fields)
        columns = next_array(np.int64, (fields + 3) * entries).reshape(fields + 3, entries)
        table, (number, origin, reach) = DocumentTable(*columns[:fields]), columns[fields:]
        places = Places(number, origin, reach, header["used"], header["begun"])
        of_labels = next_array(np.int64, runs)
        values = {name: next_array(np.float64, entries) for name in header["values"]}
        end = StepEnd(
            step=header["step"],
            refused=tuple((source, reason, count) for source, reason, count in header["refused"]),
            lanes={
                int(n): LaneState.from_json(lane, mixes.of(lane), f"lane {n}") for n, lane in header["lanes"].items()
            },
        )
        ids = next_array(np.int32, math.prod(shape)).reshape(shape)
        carried = from_blob(bytes(data[at:]))
        documents = BatchDocuments(
            packs=shape[0],
            slots=shape[1],
            known=KnownDocuments(table),
            chosen=slice(0, entries),
            before=0,
            values=values,
            carried=carried,
            end=end,
        )
        return cls(ids=ids, runs=of_labels, places=places, documents=documents)


def error_to_buffers(error: StreamsftError) -> Buffers:
    """An error in the place of a batch."""
    return [_header({"error": type(error).__name__, "message": str(error)})]


def _header(value: Mapping[str, Any]) -> bytes:
    """JSON behind its length, filled up so that arrays behind it are aligned."""
    text = json.dumps(value).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def materialize(
    leaves: Sequence[Leaf],
    read: Read,
    read_ids: ReadIds | None,
    steps: Sequence[StepPlan],
    slots: int,
    metrics: Sequence[Valued] = (),
    align: int = 1,
) -> Iterator[RawBatch]:
    """Read the tokens of one rank's part of some steps, all at once. An error comes where its step would.

    Args:
        leaves: what documents are numbered by.
        read: gives ids and masks of rows of a leaf.
        read_ids: gives ids alone; asked only for rows whose masks can be told from their first label. None reads all.
        steps: what was planned.
        slots: the sequence length.
        metrics: user metrics, evaluated on each document.
        align: what documents take a multiple of, in slots.

    Raises:
        DataError: a source gave another number of tokens than its lengths say.
        MetricError: a metric's function failed or gave no number; names the metric, the source and the row.
    """
    if not steps:
        return
    documents = gathered(stretch for step in steps for stretch in step.stretches)
    try:
        ids, masks = read_documents(leaves, read, documents, None if metrics else read_ids)
        carried = carried_of(leaves, documents)
        values = measured(leaves, documents, ids, masks, carried, metrics) if metrics else {}
    except Exception:  # whatever a user's code raises: step by step it is raised again, in its place
        if len(steps) == 1:
            raise
        for step in steps:
            yield from materialize(leaves, read, read_ids, [step], slots, metrics, align)
        return
    chunk = _arranged(documents, masks, sum(step.packs for step in steps), slots, align)
    number, origin, reach, used, begun = chunk.places
    gaps = (reach - documents.length).tolist()
    ends = np.cumsum([step.packs for step in steps])
    runs, turns = runs_of(chunk.labelled, ends * slots)
    opened = 0
    for step, closed, (first, last) in zip(steps, ends.tolist(), pairwise(turns), strict=True):
        mine = slice(chunk.borders[opened], chunk.borders[closed])
        flat = _filled(ids.views(mine), gaps[mine])
        known = BatchDocuments(
            packs=step.packs,
            slots=slots,
            known=chunk.known,
            chosen=mine,
            before=opened,
            values={name: numbers[mine] for name, numbers in values.items()},
            carried=part_of(carried, mine) if carried else {},
            end=StepEnd(step=step.step, refused=step.refused, lanes=step.lanes),
        )
        yield RawBatch(
            ids=flat.reshape(step.packs, slots),
            runs=runs[first:last],
            places=Places(number[mine], origin[mine], reach[mine], used[opened:closed], begun),
            documents=known,
        )
        opened = closed


class _Chunk(NamedTuple):
    """What is known of the documents of some steps, packs numbered over all of them."""

    known: KnownDocuments
    places: Places
    labelled: Labelled
    borders: Sequence[int]
    """Number of documents before each pack, and of all."""


def _arranged(documents: Documents, masks: Sequence[Bools], packs: int, slots: int, align: int) -> _Chunk:
    """What is told by numbers per document, and so for some steps at a time."""
    taken = slots_taken(documents.length, align)
    place = taken.cumsum()
    place -= taken  # with all padding behind packs left out
    borders = documents.pack.searchsorted(np.arange(packs + 1))
    opened = borders[documents.pack]
    slot = place - place[opened]
    first = documents.pack * slots + slot
    labelled = label_stretches(documents, first, masks)
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
        supervised=labelled.supervised,
        turns=labelled.turns,
    )
    used = (slot + taken)[borders[1:] - 1]
    reach = np.diff(first, append=packs * slots)
    places = Places(table.number, slot - documents.start, reach, used.tolist(), not documents.start.any())
    return _Chunk(KnownDocuments(table), places, labelled, borders.tolist())


def _filled(ids: list[IdBuffer], gaps: Sequence[int]) -> Int32s:
    """Packs end to end, int32[slots of all of them], from the ids of their documents.

    Args:
        ids: of each document; filled up too.
        gaps: slots up to the next document, which are padding.
    """
    behind = [at for at, gap in enumerate(gaps) if gap]
    if behind:
        nothing = memoryview(bytes(4 * max([gaps[at] for at in behind])))
        for at in reversed(behind):
            ids.insert(at + 1, nothing[: 4 * gaps[at]])
    joined = bytearray().join(cast(list[memoryview], ids))  # in half the time that `np.concatenate` takes
    return np.frombuffer(joined, np.int32)
