"""`Packer`: the stage that makes packs of the samples of a mix."""

from __future__ import annotations

import logging
from typing import final

import numpy as np

from streamsft.errors import ConfigError
from streamsft.sources.base import Source
from streamsft.sources.streaming import StreamingSource
from streamsft.stream.documents import Documents
from streamsft.stream.faces import Info, LaneDataset, whole
from streamsft.stream.interleave import Interleave
from streamsft.stream.lane import Lane
from streamsft.stream.packing import Overflow, Packing
from streamsft.stream.plan import Plan
from streamsft.stream.reading import samples
from streamsft.stream.sourcestream import SourceStream
from streamsft.types import Pack, Sample, Shard

__all__ = ["Packer", "check_packer"]

logger = logging.getLogger(__name__)

_FEW_PACKS = 64  # a window of fewer packs leaves best-fit little to choose from


def check_packer(value: object, where: str = "Loader") -> Packer:
    """`value`, if it is a `Packer`.

    Raises:
        ConfigError: it is another stage.
    """
    if not isinstance(value, Packer):
        raise ConfigError(
            f"{where}: {type(value).__name__} is no Packer; give Packer(mix, sequence_length), which takes a mix or "
            "one source"
        )
    return value


@final
class Packer(LaneDataset[Pack]):
    """An endless stream of packs: rows of `sequence_length` slots, filled with whole samples.

    Args:
        mix: an `Interleave`, or one source by itself.
        sequence_length: slots per pack.
        lookahead: draws that are packed together by best-fit decreasing; 0 packs in draw order; None takes
            ``max(1024, sequence_length // 4)``.
        overflow: a sample longer than a pack: ``truncate`` keeps its prefix (and leaves the sample out if nothing
            supervised is left), ``drop`` leaves it out, ``split`` cuts it into fragments that continue its positions,
            ``error`` raises. A source may have its own (``store.stream(overflow="split")``). What is left out is
            counted in the metrics.
        align: in batches each document takes a multiple of so many slots; those behind its tokens are its own, with
            positions that go on, and without labels. It divides `sequence_length`.
        shard: which of several disjoint parts to iterate; a `Loader` shares the work out by itself.

    Raises:
        ConfigError: a value is out of range, or `mix` is only a part of its stream.
        EmptySourceError: a source with a weight above 0 has no row that could be drawn.
        DataError: ``overflow: error`` and a row is too long.
    """

    def __init__(
        self,
        mix: Interleave | SourceStream | StreamingSource | Source,
        sequence_length: int,
        *,
        lookahead: int | None = None,
        overflow: Overflow = "truncate",
        align: int = 1,
        shard: Shard | None = None,
    ) -> None:
        super().__init__(shard or Shard())
        if not isinstance(mix, Interleave):
            mix = Interleave([mix], [1.0], seed=mix.seed if isinstance(mix, SourceStream) else 0)
        self.mix = whole(mix, "Packer")
        self.packing = Packing(sequence_length=sequence_length, lookahead=lookahead, overflow=overflow, align=align)
        self.mixture = mix.mixture(self.packing)
        self._warn_of_small_windows()

    @property
    def name(self) -> str:
        return "packer"

    @property
    def info(self) -> Info:
        how = f"best-fit over {self.packing.window:,} draws" if self.packing.best_fit else "next-fit in draw order"
        if self.packing.align > 1:
            how += f", documents take multiples of {self.packing.align}"
        detail = f"{self.packing.sequence_length:,} slots, {how}, overflow: {self.packing.overflow}"
        return Info(self.name, detail, None, (self.mix.tree(self.mixture.leaves),))

    def plan(self, lanes: int = 1) -> Plan:
        return Plan(self.mixture, seed=self.mix.seed, packing=self.packing, lanes=lanes)

    def shares(self, step: int) -> dict[str, float]:
        """What the weights ask for at a step: each source's part of all draws, or of their tokens."""
        return self.mixture.weights.shares(step)

    def _made(self, lane: Lane, documents: Documents, packs: int) -> list[Pack]:
        found: list[list[Sample]] = [[] for _ in range(packs)]
        made = samples(lane.plan.leaves, lane.read, documents)
        for pack, sample in zip(documents.pack.tolist(), made, strict=True):
            found[pack].append(sample)
        return [Pack(samples=tuple(group), sequence_length=self.packing.sequence_length) for group in found]

    def _warn_of_small_windows(self) -> None:
        if not self.packing.best_fit:
            return
        limit = self.packing.sequence_length
        if any(leaf.streams for leaf in self.mixture.leaves):
            return  # lengths are unknown until they are read
        means = []
        for leaf in self.mixture.leaves:
            cut = limit if leaf.packed(self.packing).overflow == "truncate" else np.iinfo(np.int32).max
            lengths = leaf.indexed.lengths if leaf.usable is None else leaf.indexed.lengths[leaf.usable]
            means.append(float(self.packing.taken(np.minimum(lengths, cut).astype(np.int64)).mean()))
        packs = self.packing.window * float(np.dot([leaf.share for leaf in self.mixture.leaves], means)) / limit
        if packs < _FEW_PACKS:
            logger.warning(
                "packing: a window of %d draws fills only about %.0f packs of %d slots, which leaves the packer little "
                "to choose from; raise packing.lookahead to %d or more",
                self.packing.window,
                packs,
                limit,
                int(np.ceil(self.packing.window * _FEW_PACKS / packs)),
            )
