"""Where a lane stands, as JSON writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from streamsft.errors import StateError
from streamsft.stream.blocks import FeedState
from streamsft.stream.plan import Plan
from streamsft.types import is_count

__all__ = ["LaneState"]


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
            StateError: a part is missing or one too many, or no integer from 0 to below 2**62.
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
        if not all(map(is_count, numbers)):
            wrong = next(number for number in numbers if not is_count(number))
            raise StateError(f"{where}: holds {wrong!r}, which is no integer from 0 to below 2**62")
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
