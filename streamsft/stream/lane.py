"""A lane: one endless, deterministic stream of packs, and the unit of resuming."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import final

import numpy as np

from streamsft.errors import StateError
from streamsft.stream.documents import Documents, Stretch, gathered
from streamsft.stream.feed import Feed, read_ahead
from streamsft.stream.lanestate import LaneState
from streamsft.stream.plan import Plan, Window
from streamsft.types import Bools, Int32s, Ints

__all__ = ["Lane"]

_PLANNED = 16384  # draws of all lanes that are planned together: enough to vectorise, and two megabytes


@final
class Lane:
    """A cursor over the windows of one lane of a plan.

    Args:
        plan: what is drawn.
        number: which of the plan's lanes.
        state: where to go on; None starts.
        before: the plan that an edit of the mix has replaced, which the open window is finished under.
    """

    def __init__(self, plan: Plan, number: int, state: LaneState | None = None, before: Plan | None = None) -> None:
        self.number = number
        self._state = state or LaneState.start(plan, number)
        self._next = plan
        self.plan = plan
        self._feeds: dict[int, Feed] = {}
        if self._state.before_edit:
            assert before is not None
            self.plan = before
        self._open_feeds()
        self._open: Window | None = None
        self._planned: list[Window] = []  # those behind the open one
        self._ahead = 1
        self.announced: Window | None = None  # the last one that sources were told of
        self._opened = self._state.opened
        self._resumed = 0  # packs of the open window that were given out before it was opened here
        self._change_mix()

    @property
    def state(self) -> LaneState:
        """Where the lane stands behind the last pack taken, in its one canonical form."""
        return self._state

    def take(self, count: int) -> Documents:
        """The documents of the next `count` packs, numbered from 0."""
        read_ahead(self.due())
        return gathered(self.stretches(count, 0, range(count)))

    def stretches(self, count: int, step: int, share: range) -> list[Stretch]:
        """Take the next `count` packs, which go to `step`: those whose numbers among them are in `share`."""
        if self._feeds:
            self._forget()
        parts = []
        taken = 0
        while taken < count:
            window = self._window(step)
            start = self._state.emitted
            stop = min(window.packs, start + count - taken)
            first, last = max(start, start + share.start - taken), min(stop, start + share.stop - taken)
            if first < last:
                parts.append(Stretch(window.documents, window.borders, first, last))
            taken += stop - start
            self._advance(window, stop)
        return parts

    def rest(self) -> tuple[Documents, int]:
        """The documents of the open window's packs that are left, and the number of those packs; takes none."""
        self._forget()
        window = self._window()
        start = self._state.emitted
        return window.documents.packs(start, window.packs), window.packs - start

    def announce(self) -> None:
        """Tell sources that are read by groups what is left of the open window, and then; once per window."""
        window = self._open
        if window is not None and window is not self.announced:
            self.announced = window
            left = window.documents.packs(self._state.emitted, window.packs)
            self.plan.group_orders.announce(self.number, left, window.drawn, self.plan.numbers)

    def advance(self, count: int) -> None:
        """Count the next `count` packs of the open window as taken."""
        self._advance(self._window(), self._state.emitted + count)

    def _forget(self) -> None:
        """Drop the rows of windows that are closed; those of the last call of `take` were needed until now."""
        used = {number: at for at, number in enumerate(self.plan.numbers)}
        self._feeds = {number: feed for number, feed in self._feeds.items() if number in used}
        for number, feed in self._feeds.items():
            feed.forget(self._state.drawn[used[number]])

    def due(self) -> Iterator[tuple[Feed, int]]:
        """How far streaming sources are to be read ahead now: as much of the next window's rows as was given out of
        the open one since it was opened.

        So a lane tokenizes some rows at each step rather than a window's at once. What is read has no part in the
        state.
        """
        window, state = self._open, self._state
        if window is None:
            return
        given, packs = state.emitted - self._resumed, window.packs - self._resumed
        for at, feed in self._streaming().items():
            drawn = int(window.drawn[at])
            if ahead := (drawn - state.drawn[at]) * given // packs:
                yield feed, drawn + ahead - 1

    def _open_feeds(self) -> None:
        """Stand in the streaming sources of the plan where the state says, unless the lane does already."""
        for at, state in self._state.feeds.items():
            number = self.plan.numbers[at]
            if number not in self._feeds:
                self._feeds[number] = self.plan.feed(at, self.number, self._state.drawn[at], state)

    def _change_mix(self) -> None:
        """At a window's border, go over to the plan that an edit has set."""
        if self.plan is not self._next and not self._state.emitted:
            self._state = self._state.moved(self.plan, self._next, self.number)
            self._opened = 0
            self.plan = self._next
            self._open_feeds()

    def _streaming(self) -> dict[int, Feed]:
        """The cursors over the plan's streaming sources, by leaf number."""
        return {at: self._feeds[self.plan.numbers[at]] for at in self.plan.streaming}

    def _window(self, step: int = 0) -> Window:
        if self._open is None:
            state = self._state
            if self.plan.scheduled:
                state = self._weighed(state, state.opened or step)
                self._opened = state.opened
            due, drawn = np.array(state.due, np.int64), np.array(state.drawn, np.int64)
            self._resumed = state.emitted
            self._open = self._next_window(state, due, drawn)
            if state.emitted >= self._open.packs:
                raise StateError(
                    f"lane {self.number}: {state.emitted} packs of window {state.window} were given out, "
                    f"but it holds {self._open.packs}: the state belongs to other data"
                )
        return self._open

    def _next_window(self, state: LaneState, due: Ints, drawn: Ints) -> Window:
        """The window at whose start, by these due times and draw counts, the lane stands; some are planned together."""
        if self.plan is not self._next or not self.plan.alike:
            return self.plan.window(self.number, state.window, due, drawn, self._streaming(), state.opened)
        if not self._planned:
            self._planned = self.plan.windows(self.number, state.window, due, drawn, self._ahead)
            most = max(1, _PLANNED // (self.plan.draws * self.plan.lanes))
            self._ahead = min(2 * self._ahead, most)  # the first alone, for it is waited for
        return self._planned.pop(0)

    def _weighed(self, state: LaneState, step: int) -> LaneState:
        """The state with due times by the weights of `step`."""
        due = self.plan.schedule(step).rescaled(
            np.array(state.due, np.int64), self.plan.schedule(state.basis), self.plan.first_due(self.number, step)
        )
        return replace(state, due=tuple(due.tolist()), opened=step)

    def _advance(self, window: Window, emitted: int) -> None:
        if emitted < window.packs:
            state = self._state
            self._state = LaneState(
                window=state.window,
                due=state.due,
                drawn=state.drawn,
                emitted=emitted,
                feeds=state.feeds,
                basis=state.basis,
                opened=self._opened,
                before_edit=state.before_edit,
            )
            return
        drawn = tuple(window.drawn.tolist())
        self._state = LaneState(
            window=self._state.window + 1,
            due=tuple(window.due.tolist()),
            drawn=drawn,
            emitted=0,
            feeds={at: feed.state(drawn[at]) for at, feed in self._streaming().items()},
            basis=self._opened,
            before_edit=self._state.before_edit,
        )
        self._open = None
        self._change_mix()

    def refused(self, number: int, stored: Ints) -> Iterator[tuple[str, int]]:
        """Rows of streaming source `number` that were refused on the way to rows `stored`, by reason."""
        for row in self._feeds[number].rows((stored // self.plan.lanes).tolist()):
            yield from row.refused.items()

    def read(self, number: int, stored: Ints) -> tuple[Sequence[Int32s], Sequence[Bools]]:
        """Ids (int32[n] each) and masks (bool[n] each) of rows that the last call of `take` or `rest` named.

        Args:
            number: number of the source.
            stored: the rows, as in `Documents`.
        """
        if number not in self._feeds:
            return self.plan.leaves[self.plan.numbers.index(number)].read(stored)
        rows = self._feeds[number].rows((stored // self.plan.lanes).tolist())
        return [row.input_ids for row in rows], [row.loss_mask for row in rows]
