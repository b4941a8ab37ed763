"""One all-gather of one vector, safe even when ranks declare different metrics."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import final

import numpy as np

from streamsft.comm import Comm, gather_json
from streamsft.errors import MetricError
from streamsft.metrics.ledger import Layout
from streamsft.types import Ints

__all__ = ["FRAME", "Exchange"]

FRAME = 32768
_ALL_FRAMES = 2**24  # numbers in the frames of all ranks together, 128 MiB, of which each rank is sent all
_LEAST = 1024  # numbers of a frame at least
_HEAD = 2  # of a compressed vector: the layout's hash, and how many bytes follow
_TOGETHER = 8  # ranks whose vectors are restored at a time: those of a thousand, of 200 sources, would take gigabytes


@final
class Exchange:
    """Gathers the vectors of ledgers of one layout.

    A vector begins with its layout's hash, and a transport given vectors of different lengths may hang or abort
    the process. So the first exchange sends a frame of `frame` numbers whatever the layout; once all hashes are seen to
    be equal, vectors that fit the frame are sent in their exact length.

    Vectors that do not fit it are sent compressed, in a frame each time: most of what many sources could have seen
    since the last log step they have not. Only where what changed does not fit the frame even so is the rest
    gathered in a second collective.

    Attributes:
        collectives: all-gathers made so far.
        frame: numbers that a rank sends at most in the first all-gather of a log step: `FRAME` (256 kB) up to 512
            ranks, beyond them their part of 128 MiB.
    """

    def __init__(self, comm: Comm, layout: Layout) -> None:
        self.comm = comm
        self.layout = layout
        self.collectives = 0
        self.frame = max(_LEAST, min(FRAME, _ALL_FRAMES // comm.size))
        self._agreed = False

    def change(self, layout: Layout) -> None:
        """Gather vectors of `layout` from now on; all ranks change at once."""
        if layout.hash != self.layout.hash:
            self.layout, self._agreed = layout, False

    def gather(self, vector: Ints) -> Iterator[Ints]:
        """Every rank's vector in rank order, some ranks at a time, int64[ranks, n] each. Collective.

        Raises:
            MetricError: ranks have different layouts; raised on all of them, before the first are returned.
        """
        frame = self.frame
        fits = len(vector) <= frame
        sent = vector if fits else _compressed(vector)
        if not (self._agreed and fits):
            sent = np.concatenate([sent, np.zeros(max(0, frame - len(sent)), np.int64)])
        found = self._all_gather(sent[:frame])
        if (found[:, 0] != found[0, 0]).any():
            raise MetricError(self._difference())
        self._agreed = True
        if fits:
            return _in_parts(found[:, : len(vector)])
        longest = _HEAD - int(-found[:, 1].max() // 8)
        if longest > frame:
            rest = np.zeros(longest - frame, np.int64)
            rest[: len(sent) - frame] = sent[frame:]
            found = np.concatenate([found, self._all_gather(rest)], axis=1)
        return (np.stack([_restored(row) for row in part]) for part in _in_parts(found))

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


def _in_parts(rows: Ints) -> Iterator[Ints]:
    """Some rows at a time."""
    return (rows[start : start + _TOGETHER] for start in range(0, len(rows), _TOGETHER))


def _compressed(vector: Ints) -> Ints:
    """Layout's hash, number of bytes, and the vector in these bytes; int64[…]."""
    data = zlib.compress(vector.tobytes(), 1)
    padded = data + bytes(-len(data) % 8)
    return np.concatenate([vector[:1], [len(data)], np.frombuffer(padded, np.int64)])


def _restored(sent: Ints) -> Ints:
    """The vector that `_compressed` made `sent` of, which may be padded."""
    return np.frombuffer(zlib.decompress(sent[_HEAD:].tobytes()[: int(sent[1])]), np.int64)
