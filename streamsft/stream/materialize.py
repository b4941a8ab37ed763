"""Reading the tokens of planned documents, and shipping them between processes as one bytes object."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, final

import numpy as np
from numpy.typing import NDArray

from streamsft import errors
from streamsft.errors import DataError, MetricError, StreamsftError
from streamsft.metrics.stats import SampleStats
from streamsft.stream.carrying import Carried, carried_of, extras_of, from_blob, part_of, to_blob
from streamsft.stream.documents import Documents
from streamsft.stream.lane import LaneState
from streamsft.stream.mixture import Leaf
from streamsft.stream.steps import Mixes, StepPlan
from streamsft.types import Bools, Floats, Int32s, Ints, Sample

__all__ = ["DocumentTable", "RawBatch", "Valued", "error_to_bytes", "materialize", "read_documents", "samples"]

Read = Callable[[int, Ints], tuple[Sequence[Int32s], Sequence[Bools]]]
"""From the number of a leaf and rows of it (int64[k]) to their ids (int32[n] each) and masks (bool[n] each)."""


class Valued(Protocol):
    """A user's metric as far as reading is concerned: a name, and a number per sample."""

    @property
    def name(self) -> str: ...

    def measure(self, sample: Sample, /) -> float: ...


class DocumentTable(NamedTuple):
    """What is known of each document of a batch, in pack order; int64[documents] each."""

    source: Ints
    """Number of the source in the order of names."""
    row: Ints
    """The row's number in the source's input order."""
    pass_index: Ints
    """How often the source had been gone through before."""
    start: Ints
    """First token taken of the row."""
    first: Ints
    """1, but 0 in the further fragments of a split row."""
    length: Ints
    """Tokens taken."""
    pack: Ints
    """Number of the pack, never decreasing."""
    cut: Ints
    """Tokens that truncation removed."""
    supervised: Ints
    """Labels: supervised tokens but for the first."""

    def packs(self, start: int, stop: int) -> tuple[slice, DocumentTable]:
        """Which documents lie in packs `start` to `stop` (exclusive), and their part, packs numbered from 0 again."""
        first, last = np.searchsorted(self.pack, (start, stop)).tolist()
        part = DocumentTable(*(column[first:last] for column in self))
        return slice(first, last), part._replace(pack=part.pack - start)


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RawBatch:
    """One rank's part of a step as flat arrays.

    Attributes:
        step: number of the step, from 1.
        packs: number of packs.
        table: one entry per document, in pack order.
        ids: token ids of all documents one after the other, int32[tokens].
        labelled: True where a token is a label: supervised and not the first of its document, bool[tokens].
        values: per user metric a number per document, float64[documents].
        refused: rows of streaming sources that were refused on the way, (source, reason, count) each.
        lanes: state behind this step of the lanes it came from.
        carried: what travels with the documents beside their tokens.
    """

    step: int
    packs: int
    table: DocumentTable
    ids: Int32s
    labelled: Bools
    values: Mapping[str, Floats] = field(default_factory=dict)
    refused: Sequence[tuple[int, str, int]] = ()
    lanes: Mapping[int, LaneState] = field(default_factory=dict)
    carried: Carried = field(default_factory=dict)

    @classmethod
    def skipped(cls, step: StepPlan) -> RawBatch:
        """What takes the place of a step that is left out: no pack, but the lanes behind it."""
        nothing = np.empty(0, np.int64)
        table = DocumentTable(*(nothing for _ in DocumentTable._fields))
        empty = np.empty(0, np.int32)
        return cls(step=step.step, packs=0, table=table, ids=empty, labelled=empty.astype(np.bool_), lanes=step.lanes)

    def part(self, start: int, stop: int) -> RawBatch:
        """The batch of packs `start` to `stop` (exclusive), as views."""
        chosen, table = self.table.packs(start, stop)
        ends = np.cumsum(self.table.length)[chosen]
        tokens = slice(int(ends[0] - table.length[0]), int(ends[-1]))
        return replace(
            self,
            packs=stop - start,
            table=table,
            ids=self.ids[tokens],
            labelled=self.labelled[tokens],
            values={name: value[chosen] for name, value in self.values.items()},
            refused=() if start else self.refused,
            carried=part_of(self.carried, chosen),
        )

    def stats(self, slots: int) -> SampleStats:
        """What the metrics need to know of this batch, which has `slots` token slots."""
        return SampleStats(
            source=self.table.source.astype(np.int32),
            tokens=self.table.length,
            supervised=self.table.supervised,
            cut=self.table.cut,
            first=self.table.first.astype(np.bool_),
            pass_index=self.table.pass_index,
            packs=self.packs,
            slots=slots,
            values=dict(self.values),
            refused=self.refused,
        )

    def to_bytes(self) -> bytes:
        """The batch as one bytes object, for the way out of a worker process."""
        header = {
            "step": self.step,
            "packs": self.packs,
            "shapes": [len(self.table.source), len(self.ids)],
            "values": list(self.values),
            "refused": list(self.refused),
            "lanes": {number: state.to_json() for number, state in self.lanes.items()},
        }
        arrays: list[NDArray[Any]] = [*self.table, *self.values.values(), self.ids, self.labelled]
        return b"".join([_header(header), *(array.tobytes() for array in arrays), to_blob(self.carried)])

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
        documents, tokens = header["shapes"]

        def next_array(dtype: type[np.generic], count: int) -> NDArray[Any]:
            nonlocal at
            array = np.frombuffer(data, dtype, count, at)
            at += array.nbytes
            return array

        return cls(
            step=header["step"],
            packs=header["packs"],
            table=DocumentTable(*(next_array(np.int64, documents) for _ in DocumentTable._fields)),
            values={name: next_array(np.float64, documents) for name in header["values"]},
            ids=next_array(np.int32, tokens),
            labelled=next_array(np.bool_, tokens),
            refused=tuple((source, reason, count) for source, reason, count in header["refused"]),
            lanes={
                int(n): LaneState.from_json(lane, mixes.of(lane), f"lane {n}") for n, lane in header["lanes"].items()
            },
            carried=from_blob(data[at:]),
        )


def error_to_bytes(error: StreamsftError) -> bytes:
    """An error as the bytes object that takes the place of a batch."""
    return _header({"error": type(error).__name__, "message": str(error)})


def _header(value: Mapping[str, Any]) -> bytes:
    """JSON behind its length, filled up so that arrays behind it are aligned."""
    text = json.dumps(value).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def read_documents(names: Sequence[str], read: Read, documents: Documents) -> tuple[list[Int32s], list[Bools]]:
    """Token ids and loss masks of each document, cut to the part that was planned; views where sources give views.

    Raises:
        DataError: a source gave another number of tokens than its lengths say; names the source and the row.
    """
    order = np.argsort(documents.source, kind="stable")
    counts = np.bincount(documents.source)
    ids: list[Int32s] = []
    masks: list[Bools] = []
    stop = 0
    for source in np.flatnonzero(counts).tolist():
        start, stop = stop, stop + int(counts[source])
        found = read(source, documents.stored[order[start:stop]])
        ids += found[0]
        masks += found[1]
    if len(counts) > 1:
        places = np.argsort(order, kind="stable").tolist()
        ids, masks = [ids[place] for place in places], [masks[place] for place in places]
    read_lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    promised = documents.start + documents.length + documents.cut
    wrong = (read_lengths < promised) | (read_lengths != np.fromiter(map(len, masks), np.int64, len(ids)))
    if wrong.any() or len(ids) != len(documents.source):
        at = int(np.argmax(wrong))
        raise DataError(
            f"source {names[int(documents.source[at])]!r}, row {documents.row[at]}: read() gave {len(ids[at])} ids and "
            f"{len(masks[at])} mask entries where lengths says {promised[at]}; the members of a source must agree, and "
            "its contents must not change"
        )
    for place in np.flatnonzero(read_lengths != documents.length).tolist():
        part = slice(int(documents.start[place]), int(documents.start[place] + documents.length[place]))
        ids[place] = ids[place][part]
        masks[place] = masks[place][part]
    return ids, masks


def samples(leaves: Sequence[Leaf], read: Read, documents: Documents) -> list[Sample]:
    """The documents as `Sample` objects, in the order given; `leaves` are what they are numbered by."""
    names = [leaf.name for leaf in leaves]
    ids, masks = read_documents(names, read, documents)
    rows = documents.row.tolist()
    passes, starts, sources = documents.pass_index.tolist(), documents.start.tolist(), documents.source.tolist()
    carried = carried_of(leaves, documents)
    return [
        Sample(
            input_ids=ids[i], loss_mask=masks[i], source=names[sources[i]], row=rows[i],
            pass_index=passes[i], start=starts[i], extras=extras_of(carried, i),
        )
        for i in range(len(ids))
    ]  # fmt: skip


def materialize(leaves: Sequence[Leaf], read: Read, step: StepPlan, metrics: Sequence[Valued]) -> RawBatch:
    """Read the tokens of one rank's part of a step.

    Args:
        leaves: what documents are numbered by.
        read: gives ids and masks of rows of a leaf.
        step: what was planned.
        metrics: user metrics, evaluated on each document.

    Raises:
        MetricError: a metric's function failed or gave no number; names the metric, the source and the row.
    """
    documents = step.documents
    ids, masks = read_documents([leaf.name for leaf in leaves], read, documents)
    labelled = np.concatenate(masks, dtype=np.bool_, casting="unsafe")
    firsts = np.cumsum(documents.length) - documents.length
    labelled[firsts] = False
    table = DocumentTable(
        source=documents.source,
        row=documents.row,
        pass_index=documents.pass_index,
        start=documents.start,
        first=documents.first,
        length=documents.length,
        pack=documents.pack,
        cut=documents.cut,
        supervised=np.add.reduceat(labelled, firsts, dtype=np.int64),
    )
    return RawBatch(
        step=step.step,
        packs=step.packs,
        table=table,
        ids=np.concatenate(ids, dtype=np.int32, casting="same_kind"),
        labelled=labelled,
        values=_values(samples(leaves, read, documents), metrics) if metrics else {},
        refused=step.refused,
        lanes=step.lanes,
        carried=carried_of(leaves, documents),
    )


def _values(found: Sequence[Sample], metrics: Sequence[Valued]) -> dict[str, Floats]:
    """What each metric says of each sample."""
    values = {}
    for metric in metrics:
        values[metric.name] = numbers = np.empty(len(found), np.float64)
        for at, sample in enumerate(found):
            try:
                numbers[at] = metric.measure(sample)
            except MetricError:
                raise
            except Exception as error:
                raise MetricError(
                    f"metric {metric.name!r} failed on source {sample.source!r}, row {sample.row}: {error!r}"
                ) from error
    return values
