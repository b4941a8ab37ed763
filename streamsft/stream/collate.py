"""`Batch`: one rank's share of a step as tensors, and the routine that pads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from numbers import Integral
from typing import Any, final

import numpy as np
import torch

from streamsft.errors import ConfigError
from streamsft.metrics.stats import SampleStats
from streamsft.sources.tokennames import PAIR
from streamsft.stream.aligning import fill_gaps
from streamsft.stream.attention import block_causal_mask, cu_seqlens, refuse_branches
from streamsft.stream.branches import Pairs, pairs_of, place_branches
from streamsft.stream.carrying import Carried, images_of
from streamsft.stream.labelling import IGNORE_INDEX, labels_of
from streamsft.stream.lanestate import LaneState
from streamsft.stream.materialize import RawBatch
from streamsft.stream.records import BatchDocuments, Places
from streamsft.types import Ints

__all__ = ["IGNORE_INDEX", "Batch", "collate", "collated"]


@final
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Batch:
    """One rank's share of a step.

    All tensors are int64[packs, sequence_length].

    Attributes:
        step: number of the optimizer step, from 1.
        data_step: number of the step in the stream; above `step` by the steps that were skipped.
        input_ids: token ids; the padding id behind the last document of a pack.
        labels: aligned with `input_ids` (the model shifts them): the token id where it is supervised, -100
            elsewhere, on padding, and on the first token of each document.
        position_ids: position within the document, from 0 in each (fragments of a split row continue); 0 on padding.
        document_ids: 1, 2, … within a pack; 0 on padding.
        branch_ids: of preference pairs that share their prompt, in which positions go on from it in both branches: 1 on
            the chosen branch, 2 on the rejected one, 0 elsewhere. None where there is no such pair.
        sources: names of all sources of the mix, in the order that `stats.source` counts them.
        documents: a table with one entry per document, and what the step leaves beside them.
    """

    step: int
    data_step: int
    input_ids: torch.Tensor
    labels: torch.Tensor
    position_ids: torch.Tensor
    document_ids: torch.Tensor
    sources: Sequence[str]
    documents: BatchDocuments
    branch_ids: torch.Tensor | None = None

    def __len__(self) -> int:
        """Number of packs."""
        return len(self.input_ids)

    def __repr__(self) -> str:
        packs, slots = self.input_ids.shape
        documents = len(self.documents.table.pack)
        return (
            f"Batch(step {self.step}, {packs} x {slots:,} slots, {documents:,} documents, "
            f"{self.supervised_tokens:,} supervised tokens)"
        )

    @cached_property
    def rows(self) -> list[list[tuple[str, int, int]]]:
        """Per pack the (source, row, pass) triple of each document, in the order they stand in it."""
        packs: list[list[tuple[str, int, int]]] = [[] for _ in range(len(self))]
        table = self.documents.table
        columns = (column.tolist() for column in (table.pack, table.source, table.row, table.pass_index))
        for pack, source, row, pass_index in zip(*columns, strict=True):
            packs[pack].append((self.sources[source], row, pass_index))
        return packs

    @property
    def stats(self) -> SampleStats:
        """Numbers about the batch's documents, for metrics."""
        return self.documents.stats

    @property
    def supervised_tokens(self) -> int:
        """Labels that are not -100."""
        return int(self.documents.table.supervised.sum())

    @property
    def lanes(self) -> Mapping[int, LaneState]:
        """State behind this step of the lanes it came from."""
        return self.documents.end.lanes

    def behind(self, lanes: Mapping[int, LaneState]) -> Batch:
        """The batch with the state of lanes that steps before it, which were left out, have moved on."""
        end = self.documents.end._replace(lanes={**lanes, **self.lanes})
        return replace(self, documents=replace(self.documents, end=end))

    @cached_property
    def pairs(self) -> Pairs:
        """Where the batch's preference pairs stand; none in batches of other samples."""
        return pairs_of(self.documents.table, self.carried)

    @property
    def carried(self) -> Carried:
        """What travels with the documents beside their tokens: column → a value (or None) per document, in the order
        of `documents`."""
        return self.documents.carried

    @cached_property
    def images(self) -> dict[str, torch.Tensor]:
        """The images of all documents: ``pixel_values`` [patches, values] and ``image_grid_thw`` int64[images, 3], on
        the device of the other tensors; {} without an image."""
        found = images_of(self.carried)
        return {name: torch.from_numpy(values).to(self.input_ids.device) for name, values in found.items()}

    def split(self, micro_batch_size: int) -> list[Batch]:
        """Views of at most `micro_batch_size` packs each, in order, for gradient accumulation.

        Raises:
            ConfigError: `micro_batch_size` is below 1.
        """
        if not isinstance(micro_batch_size, Integral) or micro_batch_size < 1:
            raise ConfigError(f"micro_batch_size: {micro_batch_size!r} packs; give a whole number of at least 1")
        size = min(micro_batch_size, len(self))
        return [self._part(start, min(start + size, len(self))) for start in range(0, len(self), size)]

    def _part(self, start: int, stop: int) -> Batch:
        documents = self.documents.part(start, stop)
        return self._with(lambda tensor: tensor[start:stop], documents)

    def model_inputs(self, mask_dtype: torch.dtype = torch.bool) -> dict[str, torch.Tensor]:
        """Keyword arguments for ``model(**inputs)`` of a `transformers` causal language model.

        The attention mask is block-causal, [packs, 1, sequence_length, sequence_length]: each document sees
        itself alone, and of a preference pair neither branch the other. Images are among them if there are any.

        Args:
            mask_dtype: bool for attention by `scaled_dot_product_attention` (True is seen). A floating type gives
                the additive form (0 is seen, the type's minimum is not) that the "eager" implementation needs.
        """
        mask = block_causal_mask(self.document_ids, self.branch_ids)
        if mask_dtype != torch.bool:
            hidden = torch.finfo(mask_dtype).min
            mask = torch.zeros(mask.shape, dtype=mask_dtype, device=mask.device).masked_fill_(~mask, hidden)
        return {
            "input_ids": self.input_ids,
            "attention_mask": mask,
            "position_ids": self.position_ids,
            "labels": self.labels,
            **self.images,
        }

    def packed_inputs(self) -> dict[str, Any]:
        """Keyword arguments for ``model(**inputs)`` of a `transformers` causal language model whose attention takes
        borders in place of a mask, such as ``attn_implementation="flash_attention_2"``.

        All packs stand end to end, as one row [1, packs * sequence_length], with the borders of their documents in
        ``cu_seq_lens_q`` and ``cu_seq_lens_k`` (int32) and the longest one's slots in ``max_length_q`` and
        ``max_length_k``. Images are among them if there are any.

        Other implementations ("sdpa", "eager") tell documents from positions that do not go on, as long as there is no
        cache. That is the same but for fragments of split rows, which may go on where the document before ends: use
        `model_inputs` for those.

        Raises:
            ConfigError: a preference pair shares its prompt, which borders cannot say.
        """
        refuse_branches(self.branch_ids)
        borders, longest = cu_seqlens(self.document_ids)
        return {
            "input_ids": self.input_ids.reshape(1, -1),
            "position_ids": self.position_ids.reshape(1, -1),
            "labels": self.labels.reshape(1, -1),
            "cu_seq_lens_q": borders,
            "cu_seq_lens_k": borders,
            "max_length_q": longest,
            "max_length_k": longest,
            "use_cache": False,
            **self.images,
        }

    def shifted_labels(self) -> torch.Tensor:
        """Labels for losses that do not shift: entry i is the label of slot i + 1, -100 in the last slot."""
        shifted = torch.full_like(self.labels, IGNORE_INDEX)
        shifted[:, :-1] = self.labels[:, 1:]
        return shifted

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """The batch with its tensors on `device`."""
        return self._with(lambda tensor: tensor.to(device, non_blocking=non_blocking), self.documents)

    def pin_memory(self) -> Batch:
        """The batch with its tensors in page-locked memory."""
        return self._with(lambda tensor: tensor.pin_memory(), self.documents)

    def _with(self, change: Callable[[torch.Tensor], torch.Tensor], documents: BatchDocuments) -> Batch:
        tensors: dict[str, Any] = {name: change(getattr(self, name)) for name in _TENSORS}
        if self.branch_ids is not None:
            tensors["branch_ids"] = change(self.branch_ids)
        return Batch(step=self.step, data_step=self.data_step, sources=self.sources, documents=documents, **tensors)


_TENSORS = ("input_ids", "labels", "position_ids", "document_ids")


def collate(raw: RawBatch, sources: Sequence[str], pad_id: int = 0, step: int | None = None, align: int = 1) -> Batch:
    """The tensors of a batch.

    Args:
        raw: its tokens and documents.
        sources: names of all sources of the mix.
        pad_id: token id of padding.
        step: number of the optimizer step; by default that of the documents.
        align: what documents take a multiple of, in slots.
    """
    end = raw.documents.end
    input_ids, labels, position_ids, document_ids = _laid_out(raw, pad_id)
    if align > 1 and pad_id:
        fill_gaps(input_ids, raw.documents.table, align, pad_id)
    branch_ids = None
    if PAIR in raw.documents.carried:
        pairs = pairs_of(raw.documents.table, raw.documents.carried)
        branch_ids = place_branches(pairs, position_ids, document_ids, align)
    return Batch(
        step=end.step if step is None else step,
        data_step=end.step,
        sources=sources,
        input_ids=torch.from_numpy(input_ids),
        labels=torch.from_numpy(labels),
        position_ids=torch.from_numpy(position_ids),
        document_ids=torch.from_numpy(document_ids),
        documents=raw.documents,
        branch_ids=None if branch_ids is None else torch.from_numpy(branch_ids),
    )


def collated(raws: Iterator[RawBatch], sources: Sequence[str], pad_id: int, step: int, align: int) -> Iterator[Batch]:
    """Batches, numbered by optimizer steps behind `step`; those that are skipped are not among them. See `collate`."""
    skipped: dict[int, LaneState] = {}
    for raw in raws:
        if not raw.documents.packs:
            skipped |= raw.documents.end.lanes
            continue
        step += 1
        batch = collate(raw, sources, pad_id, step, align)
        if skipped:
            batch, skipped = batch.behind(skipped), {}
        del raw
        yield batch
        del batch


def _laid_out(raw: RawBatch, pad_id: int) -> tuple[Ints, Ints, Ints, Ints]:
    """The four arrays of a batch, int64[packs, sequence_length] each, in the order of `_TENSORS`."""
    places, (packs, slots) = raw.places, raw.ids.shape
    input_ids = raw.ids.astype(np.int64)
    labels = labels_of(input_ids, raw.runs)
    numbers = places.number.repeat(places.reach).reshape(packs, slots)
    positions = _positions(places, slots).reshape(packs, slots)
    for pack, end in enumerate(places.used):
        if end < slots:
            numbers[pack, end:] = positions[pack, end:] = 0
            if pad_id:
                input_ids[pack, end:] = pad_id
    return input_ids, labels, positions, numbers


def _positions(places: Places, slots: int) -> Ints:
    """The position of each slot in its document, going on behind a pack's last one, int64[packs * slots]."""
    counted = _counted(slots)
    if places.begun:
        numbers = counted.data
        return np.frombuffer(bytearray().join([numbers[:reach] for reach in places.reach.tolist()]), np.int64)
    positions = places.origin.repeat(places.reach).reshape(-1, slots)
    return np.subtract(counted, positions, out=positions).reshape(-1)


@lru_cache(maxsize=4)
def _counted(count: int) -> Ints:
    """0, 1, … `count` - 1, once for all batches; int64[count]."""
    numbers = np.arange(count)
    numbers.flags.writeable = False
    return numbers
