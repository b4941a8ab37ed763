"""`EvalLoader`: every sample of some sources once, in as many steps on every rank."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np
import torch
from torch.nn import functional

from streamsft.errors import ConfigError
from streamsft.sources.base import Source, is_source
from streamsft.sources.pairs import holds_pairs
from streamsft.sources.streaming import StreamingSource
from streamsft.stream.collate import IGNORE_INDEX, Batch, collate
from streamsft.stream.documents import Documents, Stretch
from streamsft.stream.interleave import Interleave
from streamsft.stream.materialize import RawBatch, materialize
from streamsft.stream.mixture import Leaf
from streamsft.stream.packing import Overflow, Packing
from streamsft.stream.plan import Plan
from streamsft.stream.steps import StepPlan
from streamsft.types import Bools, Int32s, Ints, Shard

__all__ = ["EvalLoader"]


@final
class EvalLoader:
    """Every sample of some sources once, as the batches of one data-parallel rank. Can be iterated again and again.

    The packs are a function of the sources and the settings alone, and are numbered. A step gives the next
    `batch_size` of them to each rank, in rank order; in the last step the ranks behind the last pack get packs of
    padding, in which no label is. So all ranks make as many steps, which they know without asking each other, and
    `batch_size` packs that stand together on one rank stand together on any number of them.

    It has no state, and shares nothing with the stream that is trained on.

    Args:
        sources: a source, or several with different names; anything that can be read by index.
        sequence_length: slots per pack.
        batch_size: packs per step on each rank.
        packed: fill rows with several samples. Otherwise each document has a row of its own, the longest first, and
            the rows of a batch are as long as the longest of them.
        lookahead: samples that are packed together; as of a `Packer`.
        overflow: what happens to a sample longer than `sequence_length`; as of a `Packer`. What is left out is
            counted in `dropped`.
        align: each document takes a multiple of so many slots; as of a `Packer`.
        dp: this rank among the data-parallel ranks.
        pad_id: token id of padding.

    Raises:
        ConfigError: a value is out of range, a source cannot be read by index, or a name stands twice.
        EmptySourceError: a source has no row that could be evaluated.
        DataError: ``overflow: error`` and a row is too long.
    """

    def __init__(
        self,
        sources: Source | Sequence[Source],
        sequence_length: int,
        *,
        batch_size: int = 8,
        packed: bool = True,
        lookahead: int | None = None,
        overflow: Overflow = "truncate",
        align: int = 1,
        dp: Shard | None = None,
        pad_id: int = 0,
    ) -> None:
        for source in sources if isinstance(sources, Sequence) else [sources]:
            if holds_pairs(source):
                raise ConfigError(
                    f"EvalLoader: source {source.name}: preference pairs are not evaluated; give the chosen answers as "
                    "a set of their own, of format messages or prompt_completion"
                )
        if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
            raise ConfigError(f"EvalLoader: batch_size {batch_size!r} is not a number of packs >= 1")
        self.packing = Packing(sequence_length=sequence_length, lookahead=lookahead, overflow=overflow, align=align)
        self.packed = packed
        self.batch_size = batch_size
        self.dp = Shard() if dp is None else dp
        self.pad_id = pad_id
        mixture = Interleave(_indexed(sources)).mixture(self.packing)
        self._leaves = mixture.leaves
        plan = Plan(mixture, seed=0, packing=self.packing)
        documents = plan._cut(_every_row(self._leaves), {})
        pack = self.packing.pack_windows(documents.length) if packed else _longest_first(documents.length)
        order = np.argsort(pack, kind="stable")
        self._documents = documents._replace(pack=pack).take(order)
        self.packs = int(pack.max()) + 1
        self._borders = self._documents.pack.searchsorted(np.arange(self.packs + 1)).tolist()

    def __len__(self) -> int:
        """Number of steps, the same on every rank."""
        return math.ceil(self.packs / (self.batch_size * self.dp.count))

    @property
    def samples(self) -> int:
        """Rows that are evaluated, over all ranks."""
        return int(self._documents.first.sum())

    @property
    def dropped(self) -> Mapping[str, Mapping[str, int]]:
        """By source, rows that are left out, by reason."""
        return {leaf.name: leaf.dropped for leaf in self._leaves if leaf.dropped}

    def __iter__(self) -> Iterator[Batch]:
        names = [leaf.name for leaf in self._leaves]
        for step in range(len(self)):
            first = (step * self.dp.count + self.dp.index) * self.batch_size
            stop = max(first, min(first + self.batch_size, self.packs))
            batch = collate(self._read(step + 1, first, stop), names, self.pad_id, align=self.packing.align)
            yield _filled_up(batch, self.batch_size, self._slots(first, stop), self.pad_id)

    def _slots(self, first: int, stop: int) -> int:
        """Slots of the rows of packs `first` to `stop`."""
        if self.packed:
            return self.packing.sequence_length
        mine = slice(self._borders[first], self._borders[stop]) if first < stop else slice(0)
        return int(self.packing.taken(self._documents.length[mine]).max(initial=2))

    def _read(self, step: int, first: int, stop: int) -> RawBatch:
        stretches = [Stretch(self._documents, self._borders, first, stop)] if first < stop else []
        plan = StepPlan(step=step, stretches=stretches, packs=stop - first, lanes={})
        if not stretches:
            return RawBatch.skipped(plan)

        def read(number: int, stored: Ints) -> tuple[Sequence[Int32s], Sequence[Bools]]:
            return self._leaves[number].read(stored)

        return next(materialize(self._leaves, read, None, [plan], self._slots(first, stop), align=self.packing.align))


def _indexed(sources: Any) -> list[Source]:
    """The sources as a list, if all can be read by index.

    Raises:
        ConfigError: one cannot.
    """
    given = [sources] if is_source(sources) or isinstance(sources, StreamingSource) else list(sources)
    found: list[Source] = []
    for source in given:
        if isinstance(source, StreamingSource):
            raise ConfigError(
                f"EvalLoader: {source.name!r} is read in order; evaluate a store, such as what its held_out() gives"
            )
        if not is_source(source):
            raise ConfigError(f"EvalLoader: {type(source).__name__} is no source; give token stores, or other sources")
        found.append(source)
    return found


def _every_row(leaves: Sequence[Leaf]) -> Documents:
    """Every row that can be evaluated, source after source, in the order they are stored, each in pack 0."""
    parts = []
    for number, leaf in enumerate(leaves):
        source = leaf.indexed
        stored = np.arange(len(source)) if leaf.usable is None else leaf.usable
        zeros, ones = np.zeros(len(stored), np.int64), np.ones(len(stored), np.int64)
        parts.append(
            Documents(
                source=number * ones,
                stored=stored,
                row=np.asarray(source.row_numbers, np.int64)[stored],
                pass_index=zeros,
                start=zeros,
                first=ones,
                length=source.lengths[stored].astype(np.int64),
                cut=zeros,
                labels_from=-ones,
                pack=zeros,
            )
        )
    return Documents(*map(np.concatenate, zip(*parts, strict=True)))


def _longest_first(lengths: Ints) -> Ints:
    """A pack for each document, numbered from the longest on, int64[documents]."""
    packs = np.empty(len(lengths), np.int64)
    packs[np.argsort(-lengths, kind="stable")] = np.arange(len(lengths))
    return packs


def _filled_up(batch: Batch, packs: int, slots: int, pad_id: int) -> Batch:
    """The batch with packs of padding behind its own, so that there are `packs` of them."""
    missing = packs - len(batch)
    if not missing:
        return batch
    padding = {"input_ids": pad_id, "labels": IGNORE_INDEX, "position_ids": 0, "document_ids": 0}
    tensors: dict[str, Any] = {}
    for name, value in padding.items():
        given = getattr(batch, name)
        tensors[name] = (
            functional.pad(given, (0, 0, 0, missing), value=value)
            if len(given)
            else torch.full((packs, slots), value, dtype=given.dtype)
        )
    return replace(batch, documents=replace(batch.documents, packs=packs), **tensors)
