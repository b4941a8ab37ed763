"""What `scale.py` simulates with: sources with lengths that are worked out when asked for, and many ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsft.order.keys import derive_key
from streamsft.stream.mixture import Leaf, Mixture
from streamsft.stream.packing import Packing
from streamsft.stream.plan import Plan
from streamsft.stream.weights import WeightTree

SEQUENCE_LENGTH = 4096
SHUFFLE_GROUPS = 16
_TABLE = 4096
TOKEN_BYTES = 5  # of a decoded row group
PREFETCH = 256 << 20  # io.prefetch
_EXPECTED = 127  # groups that a store takes of what it is told, at most, but for the one being read

Array = NDArray[Any]

LENGTHS = np.clip(np.random.default_rng(1).lognormal(np.log(300), 0.8, _TABLE), 16, 8192).astype(np.int32)
"""Tokens of rows: a median of 300, a mean near 400."""
MEAN_LENGTH = float(LENGTHS.mean())


class Column:
    """A column of as many rows as one likes: row r has what a short table has at r modulo its length."""

    def __init__(self, table: Array) -> None:
        self._table = table

    def __getitem__(self, index: Array) -> Array:
        return self._table[index & (_TABLE - 1)]


class Numbers:
    """Row numbers without gaps."""

    def __getitem__(self, index: Array) -> Array:
        return index


class Synthetic:
    """A source of any number of rows that takes no memory. It can be planned, not read.

    Args:
        name: its name.
        rows: number of rows.
        group_rows: rows of each row group; 0 for a source without row groups.
    """

    def __init__(self, name: str, rows: int, group_rows: int = 0) -> None:
        self.name = name
        self.fingerprint = f"{derive_key(0, name):032x}"
        self._rows = rows
        self.lengths = Column(LENGTHS)
        self.first_supervised = Column(np.full(_TABLE, 10, np.int32))
        self.supervised = Column(LENGTHS - 10)
        self.row_numbers = Numbers()
        if group_rows:
            self.group_bounds = np.append(np.arange(0, rows, group_rows), rows)
            self._foretold = min(_EXPECTED, -(-PREFETCH // int(group_rows * MEAN_LENGTH * TOKEN_BYTES)))

    def __len__(self) -> int:
        return self._rows

    def read(self, index: Array) -> Any:
        raise NotImplementedError(f"{self.name} has lengths only")

    read_ids = read

    def origin(self, index: int) -> str:
        return f"{self.name}:{index}"

    def expect(self, reader: int, groups: Iterable[tuple[int, int]]) -> None:
        """Take what a store with one group being read would."""
        list(islice(groups, 1 + self._foretold))


def make_plan(sources: int, rows: int, lanes: int, group_rows: int = 0) -> Plan:
    """The plan of a mix of equal shares of so many sources, which have so many rows together."""
    stores: list[Any] = [Synthetic(f"source-{n:03}", rows // sources, group_rows) for n in range(sources)]
    mixed = SHUFFLE_GROUPS if group_rows else None
    leaves = tuple(Leaf(source=store, share=1 / sources, shuffle_groups=mixed) for store in stores)
    weights = WeightTree("mix", tuple((WeightTree(leaf.name), 1.0) for leaf in leaves))
    packing = Packing(sequence_length=SEQUENCE_LENGTH)
    return Plan(Mixture(leaves=leaves, weights=weights), seed=7, packing=packing, lanes=lanes)


class EqualRanks:
    """Rank 0 of a group in which all have the same to say; counts the bytes that each is sent.

    Attributes:
        bytes: what `all_gather` gave out since it was last set to 0.
    """

    def __init__(self, size: int) -> None:
        self.rank, self.size, self.bytes = 0, size, 0

    def all_gather(self, array: Array) -> Array:
        everyone = np.repeat(np.asarray(array)[None], self.size, axis=0)
        self.bytes += everyone.nbytes
        return everyone

    def barrier(self) -> None:
        return None


class SpeakingRanks:
    """Rank 0 of a group in which each has its own payload, for `gather_bytes`; counts the bytes that each is sent."""

    def __init__(self, payloads: Sequence[bytes]) -> None:
        self.rank, self.size, self.bytes = 0, len(payloads), 0
        self._payloads = payloads

    def all_gather(self, array: Array) -> Array:
        if array.dtype == np.int64:
            everyone = np.array([[len(payload)] for payload in self._payloads])
        else:
            everyone = np.zeros((self.size, len(array)), np.uint8)
            for row, payload in zip(everyone, self._payloads, strict=True):
                row[: len(payload)] = np.frombuffer(payload, np.uint8)
        self.bytes += everyone.nbytes
        return everyone

    def barrier(self) -> None:
        return None
