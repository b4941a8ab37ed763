"""Going along a lane by draws and lengths alone, many windows at a time: where a lane stands behind so many packs.

A window's draws do not depend on how the windows before it were packed, and of a window that is passed only the number
of packs matters. So no window is planned but the one at which a walk ends, which is why it takes a fraction of the
time of planning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias, final

import numpy as np

from streamsft.order.keys import derive_key
from streamsft.stream.bins import best_fit_bins
from streamsft.stream.documents import Documents
from streamsft.stream.draws import Drawn, mixed
from streamsft.stream.lane import Lane
from streamsft.stream.lanestate import LaneState
from streamsft.stream.measures import Measures
from streamsft.stream.plan import Plan
from streamsft.types import Ints

__all__ = ["LaneWalk", "Passed", "Pattern"]

_DRAWS = 1 << 17  # draws looked at together: enough to vectorise, and a few megabytes


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """Which steps take packs of a lane: `packs` of them every `every`-th step, from `first` on."""

    first: int
    every: int
    packs: int

    def step(self, pack: Ints | int) -> Ints:
        """The steps that take packs of these numbers, counted from 0 at `first`; int64."""
        return self.first + np.asarray(pack, np.int64) // self.packs * self.every

    def before(self, step: int) -> int:
        """Packs that are taken before `step`."""
        return max(0, -(-(step - self.first) // self.every)) * self.packs


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Passed:
    """Windows that a walk has passed, all their packs taken.

    Attributes:
        start: number of the first pack, counted from the walk's beginning.
        state: where the lane stood before the first window.
        packs: packs per window, int64[windows].
        source: number of the leaf of each draw in the plan, int64[draws], window after window.
        stored: stored row of each draw, int64[draws].
    """

    start: int
    state: LaneState
    packs: Ints
    source: Ints
    stored: Ints


Observe: TypeAlias = Callable[[Passed], None]


@final
class LaneWalk:
    """A walk along one lane of a mix of indexable sources.

    Args:
        plan: the mix; none of its sources streams.
        number: which lane.
        state: where it begins; at a window's border, or within a window of the mix before an edit.
        pattern: which steps take its packs from there on.
        before: the mix before an edit.
        measures: what rows take, per leaf; made here by default.
    """

    def __init__(
        self,
        plan: Plan,
        number: int,
        state: LaneState,
        pattern: Pattern,
        *,
        before: Plan | None = None,
        measures: list[Measures] | None = None,
    ) -> None:
        assert plan.packing is not None
        assert not plan.streaming
        self._plan = plan
        self._packing = plan.packing
        self._number = number
        self._pattern = pattern
        self._before = before
        self._measures = measures or [Measures(leaf, plan.packing) for leaf in plan.leaves]
        self._state = state
        self._taken = 0

    @property
    def state(self) -> LaneState:
        """Where the lane stands, in the form that a `Lane` gives it."""
        return self._state

    @property
    def taken(self) -> int:
        """Packs that lie behind, counted from where the walk began."""
        return self._taken

    def to(self, pack: int, observe: Observe | None = None) -> None:
        """Go on until `pack` packs lie behind; those of windows that are passed wholly are shown to `observe`.

        Of the window that the walk began in, and of that in which it ends, nothing is shown.
        """
        if self._state.emitted or self._state.before_edit:
            self._leave_window(pack)
        for passed in self._passed(pack):
            if observe is not None:
                observe(passed)
        if left := pack - self._taken:
            self._state = replace(self._state, emitted=left, opened=self._opened(self._taken))
            self._taken = pack

    def window(self) -> tuple[Documents, int]:
        """The documents of the open window's packs that lie behind, and the number of those packs.

        Of a window of the mix in force.
        """
        assert not self._state.before_edit
        if not self._state.emitted:
            return _NONE, 0
        lane = Lane(self._plan, self._number, replace(self._state, emitted=0))
        return lane.rest()[0].packs(0, self._state.emitted), self._state.emitted

    def planned(self, passed: Passed, at: int) -> tuple[Documents, int]:
        """The documents of one of the windows that were passed, and the number of its first pack on the walk."""
        starts = passed.start + np.cumsum(passed.packs) - passed.packs
        again = LaneWalk(self._plan, self._number, passed.state, self._pattern, measures=self._measures)
        again._taken = passed.start
        if at:
            again._state = again._behind(at, again._drawn(at), starts)
        start = int(starts[at])
        lane = Lane(self._plan, self._number, replace(again._state, opened=self._opened(start)))
        return lane.rest()[0], start

    def _leave_window(self, pack: int) -> None:
        """Take packs of the open window, as far as it goes; at a window's border, go over to the mix in force."""
        lane = Lane(self._plan, self._number, self._state, self._before)
        if not lane.state.emitted:
            self._state = lane.state
            return
        count = min(pack - self._taken, lane.rest()[1])
        lane.advance(count)
        self._taken += count
        self._state = lane.state

    def _passed(self, pack: int) -> Iterator[Passed]:
        """The next windows whose packs are all among the first `pack`, the walk standing behind those given."""
        most = max(1, _DRAWS // self._plan.draws)
        ahead = 1
        while self._taken < pack:
            drawn = self._drawn(ahead)
            found = self._plan._located(self._number, drawn.source, drawn.number, {})
            packs = self._packs(drawn.source, found.stored)
            ends = self._taken + np.cumsum(packs)
            fits = int(np.searchsorted(ends, pack, side="right"))
            alike = self._alike(ends - packs)
            count = min(fits, alike)
            if count:
                part = slice(0, count * self._plan.draws)
                passed = Passed(
                    start=self._taken,
                    state=self._state,
                    packs=packs[:count],
                    source=drawn.source[part],
                    stored=found.stored[part],
                )
                self._state = self._behind(count, drawn if count == ahead else self._drawn(count), ends - packs)
                self._taken = int(ends[count - 1])
                yield passed
            if fits < min(ahead, alike):  # the next one, whose weights these are, does not fit
                return
            ahead = min(most, 2 * ahead) if count == ahead else count

    def _drawn(self, windows: int) -> Drawn:
        """The draws of the next windows, by the weights that the first of them has."""
        state = self._weighed(self._opened(self._taken))
        due, drawn = np.array(state.due, np.int64), np.array(state.drawn, np.int64)
        schedule = self._plan.schedule(state.opened)
        if self._plan.mixture.unit == "samples":
            return schedule.draw(due, drawn, windows * self._plan.draws)
        return schedule.draw_ahead(due, drawn, windows * self._plan.draws, self._costs)

    def _costs(self, leaf: int, first: int, count: int) -> Ints:
        """Tokens that draws of a leaf take in packs, int64[count]."""
        found = self._plan._located(self._number, np.full(count, leaf), np.arange(first, first + count), {})
        return self._measures[leaf].of(found.stored).tokens

    def _opened(self, pack: int) -> int:
        """The step whose weights a window has that begins with `pack`; 0 where weights do not change."""
        return int(self._pattern.step(pack)) if self._plan.scheduled else 0

    def _weighed(self, opened: int) -> LaneState:
        """The state with its due times by the weights of the step that opens the next window."""
        state = self._state
        if not self._plan.scheduled:
            return state
        schedule = self._plan.schedule(opened)
        start = self._plan.first_due(self._number, opened)
        due = schedule.rescaled(np.array(state.due, np.int64), self._plan.schedule(state.basis), start)
        return replace(state, due=tuple(due.tolist()), opened=opened)

    def _alike(self, starts: Ints) -> int:
        """How many of the windows that begin with packs `starts` have the weights of the first."""
        if not self._plan.scheduled:
            return len(starts)
        steps = self._pattern.step(starts).tolist()
        shares = self._plan.mixture.weights.shares
        first = shares(steps[0])
        return next((at for at, step in enumerate(steps) if shares(step) != first), len(steps))

    def _behind(self, count: int, drawn: Drawn, starts: Ints) -> LaneState:
        """Where the lane stands behind the next `count` windows, which are alike."""
        basis = self._opened(int(starts[count - 1]))
        due = drawn.due
        if count > 1 and basis:  # a source that is not drawn waits for nothing
            due = np.where(self._plan.schedule(basis).stride, due, 0)
        return LaneState(
            window=self._state.window + count,
            due=tuple(due.tolist()),
            drawn=tuple(self._plan.group_orders.settled(self._number, drawn.drawn).tolist()),
            emitted=0,
            basis=basis,
        )

    def _packs(self, source: Ints, stored: Ints) -> Ints:
        """Packs of each window, from its draws window after window; int64[windows]."""
        counts = np.empty(len(source), np.int64)
        parts: list[tuple[Ints, Ints]] = []
        for at, measures in enumerate(self._measures):
            mine = np.flatnonzero(source == at)
            counts[mine], lengths = measures.documents(stored[mine])
            parts.append((mine, lengths))
        first = np.cumsum(counts) - counts
        lengths = np.empty(int(counts.sum()), np.int64)
        for mine, part in parts:
            within = np.arange(len(part)) - np.repeat(np.cumsum(counts[mine]) - counts[mine], counts[mine])
            lengths[np.repeat(first[mine], counts[mine]) + within] = part
        lengths = self._packing.taken(lengths)
        windows = len(source) // self._plan.draws
        if self._packing.best_fit:
            return self._best_fit(lengths, counts.reshape(windows, -1).sum(axis=1))
        return self._next_fit(lengths, counts.reshape(windows, -1))

    def _best_fit(self, lengths: Ints, documents: Ints) -> Ints:
        """Packs of each window with so many documents, whose lengths follow each other."""
        table = np.zeros((len(documents), int(documents.max())), np.int64)
        table[np.arange(table.shape[1]) < documents[:, None]] = lengths
        return best_fit_bins(table, self._packing.sequence_length)

    def _next_fit(self, lengths: Ints, counts: Ints) -> Ints:
        """Packs of each window, whose draws have `counts` (int64[windows, draws]) documents each."""
        packs = []
        ends = np.cumsum(counts).reshape(counts.shape)
        for window, (row, last) in enumerate(zip(counts, ends, strict=True)):
            key = derive_key(self._plan.seed, "window", self._number, self._state.window + window)
            order = mixed([key], len(row))[0]
            taken = row[order]
            at = np.repeat((last - row)[order] - np.cumsum(taken) + taken, taken) + np.arange(int(taken.sum()))
            packs.append(int(self._packing.pack(lengths[at])[-1]) + 1)
        return np.array(packs, np.int64)


_NONE = Documents(*(np.empty(0, np.int64) for _ in Documents._fields))
