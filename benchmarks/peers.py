"""How else packed batches are made today: the peers that benchmarks/loader.py measures against.

Both read the same token stores as streamsft, from the same disk, and make the same four int64 arrays: `input_ids`,
`labels`, `position_ids` and `document_ids`, a document never cut and never crossing a pack's border. Both fill packs in
draw order ("next-fit"), which costs them no time for planning and some padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import datasets
import numpy as np
import torch
from numpy.typing import NDArray

Documents: TypeAlias = Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]


def list_building(
    stores: Sequence[Path], weights: Sequence[float], *, sequence_length: int, packs: int, seed: int
) -> Iterator[list[torch.Tensor]]:
    """Yield batches the usual way: stream rows as Python lists, extend lists, make tensors of full ones."""
    streams = [
        datasets.load_from_disk(str(store)).to_iterable_dataset().shuffle(seed=seed, buffer_size=1000).repeat(None)
        for store in stores
    ]
    share = [weight / sum(weights) for weight in weights]
    rows = datasets.interleave_datasets(streams, probabilities=share, seed=seed)
    batch: list[list[list[int]]] = [[], [], [], []]
    pack: list[list[int]] = [[], [], [], []]
    documents = 0
    for row in rows:
        ids, mask = row["input_ids"][:sequence_length], row["loss_mask"][:sequence_length]
        if len(pack[0]) + len(ids) > sequence_length:
            missing = sequence_length - len(pack[0])
            for field, column, padding in zip(batch, pack, (0, -100, 0, 0), strict=True):
                field.append(column + [padding] * missing)
            pack, documents = [[], [], [], []], 0
            if len(batch[0]) == packs:
                yield [torch.tensor(field, dtype=torch.int64) for field in batch]
                batch = [[], [], [], []]
        documents += 1
        labels = [token if supervised else -100 for token, supervised in zip(ids, mask, strict=True)]
        labels[0] = -100
        pack[0].extend(ids)
        pack[1].extend(labels)
        pack[2].extend(range(len(ids)))
        pack[3].extend([documents] * len(ids))


def arrow_fetch(
    stores: Sequence[Path], weights: Sequence[float], *, sequence_length: int, packs: int, seed: int, rows: int = 256
) -> Iterator[list[torch.Tensor]]:
    """Yield batches the careful way: fetch `rows` rows at a time as Arrow, pack and write them with numpy."""
    rng = np.random.default_rng(seed)
    share = np.asarray(weights) / sum(weights)
    readers = [_fetches(store, rows, rng) for store in stores]
    buffers: list[Documents] = [iter(()) for _ in stores]
    batch = _Batch(packs, sequence_length)
    while True:
        for source in rng.choice(len(stores), rows, p=share).tolist():
            document = next(buffers[source], None)
            if document is None:
                buffers[source] = next(readers[source])
                document = next(buffers[source])
            ids, labels = document[0][:sequence_length], document[1][:sequence_length]
            if not batch.add(ids, labels):
                yield [torch.from_numpy(array) for array in batch.arrays]
                batch = _Batch(packs, sequence_length)
                batch.add(ids, labels)


class _Batch:
    """Four arrays that documents are written into, one slice a document and array."""

    def __init__(self, packs: int, sequence_length: int) -> None:
        shape = (packs, sequence_length)
        self.arrays = [np.zeros(shape, np.int64), np.full(shape, -100, np.int64)]
        self.arrays += [np.zeros(shape, np.int64), np.zeros(shape, np.int64)]
        self._positions = np.arange(sequence_length)
        self._packs, self._length = shape
        self._pack = -1
        self._open()

    def _open(self) -> bool:
        self._pack, self._used, self._documents = self._pack + 1, 0, 0
        if self._pack == self._packs:
            return False
        self._rows = [array[self._pack] for array in self.arrays]
        return True

    def add(self, ids: NDArray[np.int32], labels: NDArray[np.int32]) -> bool:
        """Write one document; False if the batch is full."""
        tokens = len(ids)
        start, end = self._used, self._used + tokens
        if end > self._length:
            if not self._open():
                return False
            start, end = 0, tokens
        self._used, self._documents = end, self._documents + 1
        rows = self._rows
        rows[0][start:end] = ids
        rows[1][start:end] = labels
        rows[2][start:end] = self._positions[:tokens]
        rows[3][start:end] = self._documents
        return True


def _fetches(store: Path, rows: int, rng: np.random.Generator) -> Iterator[Documents]:
    """Yield the documents of `rows` shuffled rows at a time, without end: token ids and labels."""
    table = datasets.load_from_disk(str(store)).select_columns(["input_ids", "loss_mask"]).with_format("arrow")
    while True:
        order = rng.permutation(len(table))
        for start in range(0, len(order), rows):
            fetched = table[order[start : start + rows].tolist()]
            column = fetched.column("input_ids").combine_chunks()
            borders, tokens = column.offsets.to_numpy(), column.values.to_numpy()
            mask = fetched.column("loss_mask").combine_chunks().values.to_numpy()
            labels = np.where(mask.view(np.bool_), tokens, np.int32(-100))
            labels[borders[:-1]] = -100
            ends = borders.tolist()
            yield zip(
                [tokens[a:b] for a, b in pairwise(ends)],
                [labels[a:b] for a, b in pairwise(ends)],
                strict=True,
            )
