"""A lane: one endless, deterministic stream of packs, and the unit of resuming."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np

from streamsft.errors import StateError
from streamsft.stream.blocks import FeedState
from streamsft.stream.documents import Documents
from streamsft.stream.feed import Feed
from streamsft.stream.plan import Plan, Window
from streamsft.types import Bools, Int32s, Ints

__all__ = ["Lane", "LaneState"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LaneState:
    """Where a lane stands: the start of its open window, and the packs given out since.

    Attributes:
        window: number of the open window, from 0.
        due: due time of each source at its start.
        drawn: draws of each source before it; of one that is read by groups, its place in the `GroupOrder`.
        emitted: packs of the open window that were given out; less than the window holds.
        feeds: where each streaming source stands at the window's start, by its number in the mix.
        basis: step whose weights `due` is measured by, if weights change with the step.
        opened: step that the open window's first pack was given to, whose weights it was drawn by; 0 before that.
        before_edit: whether the open window was begun under the mix that the last edit replaced.
    """

    window: int
    due: tuple[int, ...]
    drawn: tuple[int, ...]
    emitted: int
    feeds: Mapping[int, FeedState] = field(default_factory=dict)
    basis: int = 0
    opened: int = 0
    before_edit: bool = False

    def to_json(self) -> list[Any]:
        """The state as plain JSON values, short because there may be hundreds of lanes and sources.

        ``[window, emitted, source, …]``, a source as ``[due, drawn]``, and if it streams with its `FeedState` behind
        that; then, if there is more to say, ``{"steps": [basis, opened], "before_edit": true}``.
        """
        sources: list[list[Any]] = [[due, drawn] for due, drawn in zip(self.due, self.drawn, strict=True)]
        for at, feed in self.feeds.items():
            sources[at] += feed.to_json()
        more: dict[str, Any] = {"steps": [self.basis, self.opened]} if self.basis or self.opened else {}
        if self.before_edit:
            more["before_edit"] = True
        return [self.window, self.emitted, *sources, *([more] if more else [])]

    @classmethod
    def from_json(cls, value: Any, plan: Plan, where: str) -> LaneState:
        """Read what `to_json` wrote for a lane of `plan`.

        Raises:
            StateError: a part is missing or one too many, or no number >= 0.
        """
        try:
            window, emitted, *sources = value
            more = sources.pop() if sources and isinstance(sources[-1], dict) else None
            due, drawn = tuple(source[0] for source in sources), tuple(source[1] for source in sources)
            feeds = {at: FeedState.from_json(source[2:]) for at, source in enumerate(sources) if len(source) > 2}
            basis, opened = (more or {}).get("steps", (0, 0))
        except (LookupError, TypeError, ValueError) as error:
            raise StateError(f"{where}: not the state of a lane ({error!r})") from error
        before_edit = more is not None and more.get("before_edit", False)
        if more is not None and (not more or more.keys() - {"steps", "before_edit"} or type(before_edit) is not bool):
            raise StateError(f"{where}: holds {more!r}, which is unknown here")
        if len(due) != len(plan.leaves) or list(feeds) != plan.streaming:
            raise StateError(
                f"{where}: holds {len(due)} sources, {len(feeds)} of them streaming; here there are "
                f"{len(plan.leaves)} and {len(plan.streaming)}"
            )
        numbers = [window, emitted, basis, opened, *due, *drawn]
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise StateError(f"{where}: holds something that is no integer >= 0")
        return cls(
            window=window,
            due=due,
            drawn=drawn,
            emitted=emitted,
            feeds=feeds,
            basis=basis,
            opened=opened,
            before_edit=before_edit,
        )

    @classmethod
    def start(cls, plan: Plan, lane: int) -> LaneState:
        """Where `lane` of `plan` begins."""
        sources = len(plan.leaves)
        return cls(
            window=0,
            due=tuple(plan.first_due(lane, 0).tolist()),
            drawn=(0,) * sources,
            emitted=0,
            feeds={at: FeedState() for at in plan.streaming},
        )

    def moved(self, before: Plan, after: Plan, lane: int) -> LaneState:
        """The state at a window's border under another mix of the same seed, packing and lanes.

        Sources that both have go on where they stand, their waits measured by the new weights. Others start.
        """
        due, drawn = after.first_due(lane, self.basis).tolist(), [0] * len(after.leaves)
        feeds = {at: FeedState() for at in after.streaming}
        old, new = before.schedule(self.basis).stride.tolist(), after.schedule(self.basis).stride.tolist()
        for at, leaf in enumerate(after.leaves):
            known = before.same(leaf)
            if known is None:
                continue
            drawn[at] = self.drawn[known]
            if old[known] and new[at]:
                due[at] = self.due[known] * new[at] // old[known]
            if leaf.streams:
                feeds[at] = self.feeds[known]
        return LaneState(
            window=self.window,
            due=tuple(due),
            drawn=tuple(drawn),
            emitted=0,
            feeds=feeds,
            basis=self.basis if after.scheduled else 0,
        )


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
        self.announced: Window | None = None  # the last one that sources were told of
        self._opened = self._state.opened
        self._resumed = 0  # packs of the open window that were given out before it was opened here
        self._change_mix()

    @property
    def state(self) -> LaneState:
        """Where the lane stands behind the last pack taken, in its one canonical form."""
        return self._state

    def take(self, count: int, step: int = 0) -> Documents:
        """The documents of the next `count` packs, which go to `step`; packs numbered from 0."""
        self._forget()
        self._read_ahead()
        parts: list[tuple[Documents, int]] = []
        while count:
            window = self._window(step)
            start = self._state.emitted
            stop = min(window.packs, start + count)
            parts.append((window.documents.packs(start, stop), stop - start))
            count -= stop - start
            self._advance(window, stop)
        return Documents.join(parts)

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

    def _read_ahead(self) -> None:
        """Read as much of the next window's rows as was given out of the open one since it was opened.

        So a lane tokenizes some rows at each step rather than a window's at once. What is read has no part in the
        state, and what cannot be read is told when it is drawn.
        """
        window, state = self._open, self._state
        if window is None:
            return
        given, packs = state.emitted - self._resumed, window.packs - self._resumed
        for at, feed in self._streaming().items():
            drawn = int(window.drawn[at])
            if ahead := (drawn - state.drawn[at]) * given // packs:
                feed.read_ahead(drawn + ahead - 1)

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
            self._open = self.plan.window(self.number, state.window, due, drawn, self._streaming(), state.opened)
            if state.emitted >= self._open.packs:
                raise StateError(
                    f"lane {self.number}: {state.emitted} packs of window {state.window} were given out, "
                    f"but it holds {self._open.packs}: the state belongs to other data"
                )
        return self._open

    def _weighed(self, state: LaneState, step: int) -> LaneState:
        """The state with due times by the weights of `step`."""
        due = self.plan.schedule(step).rescaled(
            np.array(state.due, np.int64), self.plan.schedule(state.basis), self.plan.first_due(self.number, step)
        )
        return replace(state, due=tuple(due.tolist()), opened=step)

    def _advance(self, window: Window, emitted: int) -> None:
        if emitted < window.packs:
            self._state = replace(self._state, emitted=emitted, opened=self._opened)
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
            return self.plan.leaves[self.plan.numbers.index(number)].indexed.read(stored)
        rows = self._feeds[number].rows((stored // self.plan.lanes).tolist())
        return [row.input_ids for row in rows], [row.loss_mask for row in rows]
