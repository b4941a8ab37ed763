"""Preference pairs of made-up tokens, as sources and as stores, and what each answer is alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsft.sources.store import TokenStore
from tests.fakes import ListSource

__all__ = ["PairSource", "answers", "pair_row", "pair_source", "pair_store"]

Array = NDArray[Any]
Sizes = tuple[int, int, int]
"""Tokens of the prompt, of the chosen and of the rejected answer."""


def pair_row(prompt: Sequence[int], chosen: Sequence[int], rejected: Sequence[int]) -> tuple[list[int], list[int]]:
    """Ids and mask of a pair: each branch begins with the prompt's last token."""
    ids = [*prompt, *chosen, prompt[-1], *rejected]
    mask = [*[0] * len(prompt), *[1] * len(chosen), 0, *[1] * len(rejected)]
    return ids, mask


class PairSource(ListSource):
    """A plain-Python source of pairs.

    Args:
        name: its name.
        rows: prompt, chosen and rejected tokens of each.
    """

    carried = ("pair",)

    def __init__(self, name: str, rows: Sequence[tuple[Sequence[int], Sequence[int], Sequence[int]]]) -> None:
        super().__init__(name, [pair_row(*row) for row in rows])
        self.pairs = np.array([[len(prompt) - 1, len(chosen) + 1] for prompt, chosen, _ in rows], np.int32)
        self.whole = np.ones(len(rows), np.bool_)

    def read_carried(self, index: Array) -> dict[str, Array]:
        return {"pair": self.pairs[index]}


def pair_source(name: str, sizes: Sequence[Sizes], vocabulary: int = 1000, seed: int = 0) -> PairSource:
    """Pairs of the given sizes with random tokens."""
    random = np.random.default_rng(seed)
    return PairSource(name, [tuple(random.integers(0, vocabulary, n).tolist() for n in size) for size in sizes])


def pair_store(count: int, vocabulary: int = 300, seed: int = 0, name: str = "pairs") -> TokenStore:
    """A store in memory: prompts of 2 to 8 tokens and answers of 1 to 7; the chosen ones count up from the prompt."""
    random = np.random.default_rng(seed)
    with TokenStore.writer(None, name=name, pairs=True) as writer:
        for row in range(count):
            prompt, rejected = (random.integers(0, vocabulary, random.integers(*n)) for n in ((2, 9), (1, 8)))
            chosen = (prompt[-1] + 1 + np.arange(random.integers(1, 8))) % vocabulary
            ids, mask = pair_row(prompt.tolist(), chosen.tolist(), rejected.tolist())
            writer.append(
                np.array(ids, np.int32),
                np.array(mask, np.bool_),
                np.array([len(ids)], np.int32),
                np.array([row]),
                pairs=np.array([[len(prompt) - 1, len(chosen) + 1]], np.int32),
            )
        return writer.close()


def answers(source: Any, row: int) -> list[tuple[Array, Array]]:
    """Ids and mask of the chosen and of the rejected answer of a stored row that shares its prompt, each whole."""
    (ids,), (mask,) = source.read(np.array([row]))
    shared, chosen = source.read_carried(np.array([row]))["pair"][0].tolist()
    border = shared + chosen
    return [
        (ids[:border], mask[:border]),
        (np.concatenate([ids[:shared], ids[border:]]), np.concatenate([mask[:shared], mask[border:]])),
    ]
