"""Which packs make a step, and which of them a rank owns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from streamsft.errors import StateError
from streamsft.metrics.stats import SourceInfo
from streamsft.sources.rowids import RowIds
from streamsft.stream.balance import balanced_share
from streamsft.stream.documents import Documents, Stretch, gathered
from streamsft.stream.feed import read_ahead
from streamsft.stream.lane import Lane
from streamsft.stream.lanestate import LaneState
from streamsft.stream.plan import Plan
from streamsft.stream.state import is_before_edit
from streamsft.stream.topology import Topology
from streamsft.types import Bools, Int32s, Ints

__all__ = ["Mixes", "StepPlan", "StepPlanner"]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepPlan:
    """One rank's part of a step.

    Attributes:
        step: number of the step, from 1.
        stretches: this rank's packs.
        packs: number of those packs.
        refused: rows of streaming sources refused on the way to these documents, (source, reason, count) each.
        lanes: state behind this step of every lane that these packs came from.
    """

    step: int
    stretches: Sequence[Stretch]
    packs: int
    lanes: Mapping[int, LaneState]
    refused: Sequence[tuple[int, str, int]] = ()

    @property
    def documents(self) -> Documents:
        """The documents of the packs, these numbered from 0."""
        return gathered(self.stretches)


@final
class Mixes:
    """The mix in force, and the one that an edit has replaced as long as a window of it is open.

    Attributes:
        plan: what is drawn.
        before: what was drawn before the edit.
        leaves: the sources of `plan`, then those of `before` alone, in the numbers that documents name them by.
    """

    def __init__(self, plan: Plan, before: Plan | None = None) -> None:
        self.plan = plan
        self.before = before
        self.leaves = list(plan.leaves)
        if before is None:
            return
        for at, leaf in enumerate(before.leaves):
            known = plan.same(leaf)
            before.numbers[at] = len(self.leaves) if known is None else known
            if known is None:
                self.leaves.append(leaf)

    @cached_property
    def streaming(self) -> list[int]:
        """Numbers of the leaves that are read in order."""
        return [number for number, leaf in enumerate(self.leaves) if leaf.streams]

    @cached_property
    def owned(self) -> bool:
        """Whether a source is dealt to lanes, whose rows then are read as they come, no step before its turn."""
        return any(leaf.owned for leaf in self.leaves)

    @cached_property
    def names(self) -> list[str]:
        """Names of `leaves`; a source whose content an edit changed stands there twice."""
        return [leaf.name for leaf in self.leaves]

    @property
    def sources(self) -> list[SourceInfo]:
        """What is known of each of `leaves`; those of the mix before an edit alone have weight 0."""
        return [
            SourceInfo(
                name=leaf.name,
                groups=leaf.groups,
                weight=leaf.share if number < len(self.plan.leaves) else 0.0,
                rows=0 if leaf.streams else len(leaf.indexed),
                rejected=getattr(leaf.source, "rejected", {}),
                dropped=leaf.dropped,
                reasons=getattr(leaf.source, "reasons", ()),
                io=tuple(getattr(leaf.source, "io", ())),
            )
            for number, leaf in enumerate(self.leaves)
        ]

    def of(self, state: Any) -> Plan:
        """The plan that a lane's JSON state belongs to.

        Raises:
            StateError: it belongs to the mix before the edit, which is not at hand.
        """
        if not is_before_edit(state):
            return self.plan
        if self.before is None:
            raise StateError("the state has open windows of the mix before an edit: load it with that mix as `before`")
        return self.before


@final
class StepPlanner:
    """Plans the steps of one rank, one after the other.

    Args:
        mixes: what is drawn, made for as many lanes as `topology` has.
        topology: how steps are made.
        step: steps that lie behind.
        lanes: state of each lane that has been drawn from.
    """

    def __init__(self, mixes: Mixes, topology: Topology, step: int, lanes: Mapping[int, LaneState]) -> None:
        self.topology = topology
        self.step = step
        self._mixes = mixes
        self._states = lanes
        self._shares = [range(*topology.share(place)) for place in range(topology.lanes_per_step)]
        self._lanes: dict[int, Lane] = {}

    def skip(self) -> None:
        """Leave the next step to another worker, whose lanes are not this one's."""
        self.step += 1

    def _lane(self, number: int) -> Lane:
        """A lane, opened when it is first drawn from: those of the other workers are not this one's to read."""
        if number not in self._lanes:
            self._lanes[number] = Lane(self._mixes.plan, number, self._states.get(number), self._mixes.before)
        return self._lanes[number]

    def read(self, number: int, stored: Ints) -> tuple[Sequence[Int32s], Sequence[Bools]]:
        """Ids (int32[n] each) and masks (bool[n] each) of rows `stored` of a source in the last step planned."""
        leaf = self._mixes.leaves[number]
        if not leaf.streams:
            return leaf.read(stored)
        ids: list[Int32s] = [_NO_IDS] * len(stored)
        masks: list[Bools] = [_NO_MASK] * len(stored)
        lanes = stored % self._mixes.plan.lanes
        for lane in np.unique(lanes).tolist():
            places = np.flatnonzero(lanes == lane)
            found = self._lanes[lane].read(number, stored[places])
            for place, row_ids, row_mask in zip(places.tolist(), *found, strict=True):
                ids[place], masks[place] = row_ids, row_mask
        return ids, masks

    def read_ids(self, number: int, stored: Ints) -> RowIds:
        """Ids of rows `stored` of a source that can read them alone."""
        return self._mixes.leaves[number].read_ids(stored)

    def announce(self, *, new: bool = False) -> None:
        """Tell sources what is read behind what was planned; on `new` lanes alone, of which nothing was told yet."""
        for lane in self._lanes.values():
            if not new or not lane.announced:
                lane.announce()

    def next(self) -> StepPlan:
        """Plan the next step. Only lanes that this rank's packs lie in are planned."""
        self.step += 1
        topology = self.topology
        parts: list[Stretch] = []
        states = {}
        group = zip(topology.group(self.step - 1), self._shares, strict=True)
        lanes = {number: (self._lane(number), share) for number, share in group if share}
        if self._mixes.streaming:
            read_ahead(due for lane, _ in lanes.values() for due in lane.due())
        for number, (lane, share) in lanes.items():
            parts += lane.stretches(topology.global_batch_size // topology.lanes_per_step, self.step, share)
            states[number] = lane.state
        if topology.balanced:
            parts = balanced_share(parts, topology.dp.index, topology.dp.count, topology.balance)
        refused = self._refused(gathered(parts)) if self._mixes.streaming else ()
        return StepPlan(step=self.step, stretches=parts, packs=topology.packs, lanes=states, refused=refused)

    def _refused(self, documents: Documents) -> list[tuple[int, str, int]]:
        """Rows of streaming sources that were refused on the way to these documents."""
        counts: Counter[tuple[int, str]] = Counter()
        for number in self._mixes.streaming:
            mine = (documents.source == number) & (documents.first == 1)
            for lane, stored in self._by_lane(documents.stored[mine]):
                for reason, count in self._lanes[lane].refused(number, stored):
                    counts[number, reason] += count
        return [(number, reason, count) for (number, reason), count in sorted(counts.items())]

    def _by_lane(self, stored: Ints) -> Iterator[tuple[int, Ints]]:
        """Each lane's part of rows of a streaming source."""
        lanes = stored % self._mixes.plan.lanes
        for lane in np.unique(lanes).tolist():
            yield lane, stored[lanes == lane]


_NO_IDS = np.empty(0, np.int32)
_NO_MASK = np.empty(0, np.bool_)
