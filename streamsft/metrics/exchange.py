"""One all-gather of one vector, safe even when ranks declare different metrics."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import final

import numpy as np

from streamsft.comm import Comm, gather_json
from streamsft.errors import MetricError
from streamsft.metrics.ledger import Layout, Ledger
from streamsft.types import Ints

__all__ = ["FRAME", "Exchange"]

FRAME = 32768
_LEAST = 1024  # numbers of a frame at least
_HEAD = 2  # of a compressed vector: the layout's hash, and how many bytes follow
_TOGETHER = 32  # ranks whose vectors are restored at a time: a thousand of them, of 200 sources, would take gigabytes


@final
class Exchange:
    """Gathers the vectors of ledgers of one layout.

    A vector begins with its layout's hash, and a transport given vectors of different lengths may hang or abort
    the process. So the first exchange sends a frame of `FRAME` numbers (256 kB) whatever the layout; once all hashes
    are seen to be equal, vectors that fit the frame are sent in their exact length.

    Of vectors that do not fit it only what an empty ledger does not have is sent, compressed, in a frame each time:
    most of what many sources could have seen since the last log step they have not. Every rank learns how much,
    and the next frames are twice the most that there has been, up to `FRAME`. Only where what changed does not fit the
    frame even so is the rest gathered in a second collective.

    Attributes:
        collectives: all-gathers made so far.
    """

    def __init__(self, comm: Comm, layout: Layout) -> None:
        self.comm = comm
        self.layout = layout
        self.collectives = 0
        self._agreed = False
        self._most = 0  # numbers of a compressed vector

    def change(self, layout: Layout) -> None:
        """Gather vectors of `layout` from now on; all ranks change at once."""
        if layout.hash != self.layout.hash:
            self.layout, self._agreed, self._most = layout, False, 0

    def gather(self, vector: Ints) -> Iterator[Ints]:
        """Every rank's vector in rank order, some ranks at a time, int64[≤ 32, n] each. Collective.

        Raises:
            MetricError: ranks have different layouts; raised on all of them, before the first are returned.
        """
        fits = len(vector) <= FRAME
        empty = vector[:0] if fits else Ledger(self.layout).vector()
        sent = vector if fits else _compressed(vector, empty)
        frame = min(FRAME, max(2 * self._most, _LEAST)) if self._agreed else FRAME
        if not (self._agreed and fits):
            sent = np.concatenate([sent, np.zeros(max(0, frame - len(sent)), np.int64)])
        found = self._all_gather(sent if fits and self._agreed else sent[:frame])
        if (found[:, 0] != found[0, 0]).any():
            raise MetricError(self._difference())
        self._agreed = True
        if fits:
            return _together(found[:, : len(vector)])
        longest = _HEAD - int(-found[:, 1].max() // 8)
        self._most = max(self._most, longest)
        if longest > frame:
            rest = np.zeros(longest - frame, np.int64)
            rest[: len(sent) - frame] = sent[frame:]
            found = np.concatenate([found, self._all_gather(rest)], axis=1)
        return (np.stack([_restored(row, empty) for row in rows]) for rows in _together(found))

    def _all_gather(self, vector: Ints) -> Ints:
        self.collectives += 1
        return self.comm.all_gather(vector)

    def _difference(self) -> str:
        everyone = gather_json(self.comm, self.layout.lines)
        for rank, lines in enumerate(everyone):
            if lines != everyone[0]:
                only = [f"rank 0 has {line!r}" for line in everyone[0] if line not in lines]
                only += [f"rank {rank} has {line!r}" for line in lines if line not in everyone[0]]
                break
        return "metrics differ between ranks; declare the same ones in the same order everywhere: " + "; ".join(
            only or ["their order differs"]
        )


def _together(rows: Ints) -> Iterator[Ints]:
    """Some rows at a time."""
    return (rows[start : start + _TOGETHER] for start in range(0, len(rows), _TOGETHER))


def _compressed(vector: Ints, empty: Ints) -> Ints:
    """Layout's hash, number of bytes, and in these what `vector` has that `empty` has not, and where; int64[…]."""
    at = np.flatnonzero(vector != empty)
    data = zlib.compress(np.concatenate([np.diff(at, prepend=0), vector[at]]).tobytes(), 1)
    padded = data + bytes(-len(data) % 8)
    return np.concatenate([vector[:1], [len(data)], np.frombuffer(padded, np.int64)])


def _restored(sent: Ints, empty: Ints) -> Ints:
    """The vector that `_compressed` made `sent` of, which may be padded."""
    numbers = np.frombuffer(zlib.decompress(sent[_HEAD:].tobytes()[: int(sent[1])]), np.int64)
    gaps, values = numbers.reshape(2, -1)
    vector = empty.copy()
    vector[np.cumsum(gaps)] = values
    return vector
