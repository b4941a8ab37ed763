"""What a loader's spawned workers import: as little as can be."""

from __future__ import annotations

from collections.abc import Iterator

from torch.utils.data import Sampler

from streamsft.types import Sample

__all__ = ["Spread", "collate"]


class Spread(Sampler[int]):
    """A sampler of a user's own, without a state: rows far apart."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[int]:
        return iter([i * 37 % self.rows for i in range(self.rows)])


def collate(samples: list[Sample]) -> list[tuple[str, int, bytes, bytes]]:
    """Samples as values that can be compared."""
    return [(s.source, s.row, s.input_ids.tobytes(), s.loss_mask.tobytes()) for s in samples]
