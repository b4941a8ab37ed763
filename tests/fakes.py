"""Sources and metrics for tests that need no files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class ListSource:
    """A plain-Python `Source` over given rows of (input_ids, loss_mask); picklable.

    The first token of row r is r, so that a row can be told from its tokens.
    """

    def __init__(
        self, name: str, rows: Sequence[tuple[Sequence[int], Sequence[int]]], row_numbers: Sequence[int] | None = None
    ) -> None:
        self.name = name
        self.ids = [np.array(ids, np.int32) for ids, _ in rows]
        self.masks = [np.array(mask, np.bool_) for _, mask in rows]
        self.row_numbers = np.array(range(len(rows)) if row_numbers is None else row_numbers, np.int64)
        self.lengths = np.array([len(ids) for ids in self.ids], np.int32)
        self.supervised = np.array([int(mask[1:].sum()) for mask in self.masks], np.int32)
        self.first_supervised = np.array(
            [1 + int(np.argmax(m[1:])) if m[1:].any() else len(m) for m in self.masks], np.int32
        )
        digest = hashlib.blake2b(digest_size=16)
        for ids, mask in zip(self.ids, self.masks, strict=True):
            digest.update(len(ids).to_bytes(4, "little") + ids.tobytes() + mask.tobytes())
        digest.update(self.row_numbers.tobytes())
        self.fingerprint = digest.hexdigest()

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, index: Array) -> tuple[list[Array], list[Array]]:
        return [self.ids[i] for i in index.tolist()], [self.masks[i] for i in index.tolist()]

    def origin(self, index: int) -> str:
        return f"{self.name}.list:{self.row_numbers[index]}"


def source(name: str, lengths: Sequence[int], prompt: int = 1) -> ListSource:
    """Rows of the given lengths: row number, then counting tokens; all but the first `prompt` supervised."""
    rows = []
    for row, length in enumerate(lengths):
        ids = ([row, *range(1000, 1000 + length - 1)])[:length]
        rows.append((ids, [0] * min(prompt, length) + [1] * max(0, length - prompt)))
    return ListSource(name, rows)
