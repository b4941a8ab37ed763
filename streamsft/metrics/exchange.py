"""One all-gather of one vector, safe even when ranks declare different metrics."""

from __future__ import annotations

from typing import final

import numpy as np

from streamsft.comm import Comm, gather_json
from streamsft.errors import MetricError
from streamsft.metrics.ledger import Layout
from streamsft.types import Ints

__all__ = ["FRAME", "Exchange"]

FRAME = 32768


@final
class Exchange:
    """Gathers the vectors of ledgers of one layout.

    A vector begins with its layout's hash, and a transport given vectors of different lengths may hang or abort
    the process. So the first exchange sends a frame of `FRAME` numbers whatever the layout; once all hashes are
    seen to be equal, exact lengths are sent. Only a layout that does not fit the frame (256 kB) costs a second
    collective, once in a run.

    Attributes:
        collectives: all-gathers made so far.
    """

    def __init__(self, comm: Comm, layout: Layout) -> None:
        self.comm = comm
        self.layout = layout
        self.collectives = 0
        self._agreed = False

    def change(self, layout: Layout) -> None:
        """Gather vectors of `layout` from now on; all ranks change at once."""
        if layout.hash != self.layout.hash:
            self.layout, self._agreed = layout, False

    def gather(self, vector: Ints) -> Ints:
        """Every rank's vector, int64[ranks, n], in rank order. Collective.

        Raises:
            MetricError: ranks have different layouts; raised on all of them.
        """
        if self._agreed:
            return self._all_gather(vector)
        frame = np.zeros(FRAME, np.int64)
        frame[: len(vector)] = vector[:FRAME]
        first = self._all_gather(frame)
        if (first[:, 0] != first[0, 0]).any():
            raise MetricError(self._difference())
        self._agreed = True
        if len(vector) <= FRAME:
            return first[:, : len(vector)]
        return np.concatenate([first, self._all_gather(vector[FRAME:])], axis=1)

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
