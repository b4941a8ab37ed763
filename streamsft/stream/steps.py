"""Which packs make a step, and which of them a rank owns."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from streamsft.errors import ConfigError, StateError
from streamsft.sources.base import IdsSource
from streamsft.stream.documents import Documents
from streamsft.stream.lane import Lane, LaneState
from streamsft.stream.plan import Plan
from streamsft.stream.state import is_before_edit
from streamsft.types import Bools, Int32s, Ints, Shard

__all__ = ["Mixes", "StepPlan", "StepPlanner", "Topology"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """How steps are made of lanes, and lanes shared among ranks.

    Attributes:
        global_batch_size: packs per step over all ranks.
        dp: which data-parallel rank of how many.
        lanes_per_step: lanes that one step draws from.
        lane_groups: groups of lanes that take turns, a step each.

    Raises:
        ConfigError: the global batch cannot be divided; the message has the values that can.
    """

    global_batch_size: int
    dp: Shard
    lanes_per_step: int = 1
    lane_groups: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.dp, Shard):
            raise ConfigError(f"dp: {self.dp!r} is no Shard; give Shard(rank, ranks)")
        for name in ("global_batch_size", "lanes_per_step", "lane_groups"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"loader.{name}: {value!r} is not an integer of at least 1")
        for name, value in (("dp size", self.dp.count), ("loader.lanes_per_step", self.lanes_per_step)):
            if self.global_batch_size % value:
                allowed = [n for n in range(1, self.global_batch_size + 1) if self.global_batch_size % n == 0]
                raise ConfigError(
                    f"{name} {value} does not divide loader.global_batch_size {self.global_batch_size}; "
                    f"it may be one of {', '.join(map(str, allowed))}"
                )

    def __str__(self) -> str:
        """What a rank has of a step, in words."""
        dp = self.dp
        return f"{self.global_batch_size} packs per step, rank {dp.index} of {dp.count} takes {self.packs}"

    def check_owners(self, workers: int) -> None:
        """Refuse a topology in which two processes would read the same lane, for sources that are dealt to lanes.

        Raises:
            ConfigError: with the values that are possible.
        """
        for name, value, of, total in (
            ("dp size", self.dp.count, "lanes_per_step", self.lanes_per_step),
            ("loader.workers", max(workers, 1), "lane_groups", self.lane_groups),
        ):
            if total % value:
                allowed = [n for n in range(1, total + 1) if total % n == 0]
                raise ConfigError(
                    f"{name} {value} does not divide loader.{of} {total}, and one process reads each lane of a source "
                    f"that streams or is shuffled by row groups; it may be one of {', '.join(map(str, allowed))}"
                )

    @classmethod
    def of(
        cls,
        global_batch_size: int,
        dp: Shard,
        lanes_per_step: int | None = None,
        lane_groups: int | None = None,
        *,
        owned: bool,
    ) -> Topology:
        """The topology asked for, with the defaults of a mix of which one process owns each lane, or of any other.

        Raises:
            ConfigError: a value is out of range, or the global batch cannot be divided.
        """
        usual = (1, 1)
        if owned and isinstance(global_batch_size, int):
            usual = math.gcd(global_batch_size, 8), 4
        return cls(
            global_batch_size=global_batch_size,
            dp=dp,
            lanes_per_step=usual[0] if lanes_per_step is None else lanes_per_step,
            lane_groups=usual[1] if lane_groups is None else lane_groups,
        )

    @property
    def lanes(self) -> int:
        return self.lanes_per_step * self.lane_groups

    @property
    def packs(self) -> int:
        """Packs per step on this rank."""
        return self.global_batch_size // self.dp.count

    def group(self, step: int) -> range:
        """The lanes that `step` draws from, in order."""
        first = step % self.lane_groups * self.lanes_per_step
        return range(first, first + self.lanes_per_step)

    def share(self, place: int) -> tuple[int, int]:
        """Which packs (start, stop) of the `place`-th lane of a step this rank owns; empty where start >= stop."""
        per_lane = self.global_batch_size // self.lanes_per_step
        first = self.dp.index * self.packs - place * per_lane
        return max(first, 0), min(first + self.packs, per_lane)

    @property
    def owned(self) -> list[int]:
        """The lanes that this rank plans, ascending."""
        places = [place for place in range(self.lanes_per_step) if operator.lt(*self.share(place))]
        return [group * self.lanes_per_step + place for group in range(self.lane_groups) for place in places]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepPlan:
    """One rank's part of a step.

    Attributes:
        step: number of the step, from 1.
        documents: the documents of this rank's packs, packs numbered from 0.
        packs: number of those packs.
        refused: rows of streaming sources refused on the way to these documents, (source, reason, count) each.
        lanes: state behind this step of every lane that these packs came from.
    """

    step: int
    documents: Documents
    packs: int
    lanes: Mapping[int, LaneState]
    refused: Sequence[tuple[int, str, int]] = ()


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

    @property
    def names(self) -> list[str]:
        """Names of `leaves`; a source whose content an edit changed stands there twice."""
        return [leaf.name for leaf in self.leaves]

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
            return leaf.indexed.read(stored)
        ids: list[Int32s] = [_NO_IDS] * len(stored)
        masks: list[Bools] = [_NO_MASK] * len(stored)
        lanes = stored % self._mixes.plan.lanes
        for lane in np.unique(lanes).tolist():
            places = np.flatnonzero(lanes == lane)
            found = self._lanes[lane].read(number, stored[places])
            for place, row_ids, row_mask in zip(places.tolist(), *found, strict=True):
                ids[place], masks[place] = row_ids, row_mask
        return ids, masks

    def read_ids(self, number: int, stored: Ints) -> Sequence[Int32s]:
        """Ids of rows `stored` of a source that can read them alone."""
        source = self._mixes.leaves[number].source
        assert isinstance(source, IdsSource)
        return source.read_ids(stored)

    def announce(self, *, new: bool = False) -> None:
        """Tell sources what is read behind what was planned; on `new` lanes alone, of which nothing was told yet."""
        for lane in self._lanes.values():
            if not new or not lane.announced:
                lane.announce()

    def next(self) -> StepPlan:
        """Plan the next step. Only lanes that this rank's packs lie in are planned."""
        self.step += 1
        topology = self.topology
        parts, states = [], {}
        for place, number in enumerate(topology.group(self.step - 1)):
            start, stop = topology.share(place)
            if start < stop:
                taken = self._lane(number).take(topology.global_batch_size // topology.lanes_per_step, self.step)
                parts.append((taken.packs(start, stop), stop - start))
                states[number] = self._lanes[number].state
        documents = Documents.join(parts)
        refused = tuple(self._refused(documents))
        return StepPlan(step=self.step, documents=documents, packs=topology.packs, lanes=states, refused=refused)

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
