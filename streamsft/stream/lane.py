"""A lane: one endless, deterministic stream of packs, and the unit of resuming."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from streamsft.errors import StateError
from streamsft.stream.plan import Documents, Plan, Window

__all__ = ["Lane", "LaneState"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LaneState:
    """Where a lane stands: the start of its open window, and the packs given out since.

    Attributes:
        window: number of the open window, from 0.
        due: due time of each source at its start.
        drawn: draws of each source before it.
        emitted: packs of the open window that were given out; less than the window holds.
    """

    window: int
    due: tuple[int, ...]
    drawn: tuple[int, ...]
    emitted: int

    def to_json(self) -> dict[str, Any]:
        """The state as plain JSON values."""
        return {"window": self.window, "due": list(self.due), "drawn": list(self.drawn), "emitted": self.emitted}

    @classmethod
    def from_json(cls, value: Any, sources: int, where: str) -> LaneState:
        """Read what `to_json` wrote.

        Raises:
            StateError: a field is missing, no non-negative integer, or not one per source.
        """
        try:
            fields = {name: value[name] for name in ("window", "due", "drawn", "emitted")}
            extra = set(value) - set(fields)
            due, drawn = tuple(fields["due"]), tuple(fields["drawn"])
        except (KeyError, TypeError) as error:
            raise StateError(f"{where}: not the state of a lane ({error!r})") from error
        numbers = [fields["window"], fields["emitted"], *due, *drawn]
        if extra or len(due) != sources or len(drawn) != sources:
            raise StateError(f"{where}: holds {len(due)} sources and fields {sorted(value)}, not {sources} sources")
        if not all(isinstance(number, int) and not isinstance(number, bool) and number >= 0 for number in numbers):
            raise StateError(f"{where}: holds something that is no integer >= 0")
        return cls(window=fields["window"], due=due, drawn=drawn, emitted=fields["emitted"])


@final
class Lane:
    """A cursor over the windows of one lane of a plan.

    Args:
        plan: what is drawn.
        number: which of the plan's lanes.
        state: where to go on; None starts.
    """

    def __init__(self, plan: Plan, number: int, state: LaneState | None = None) -> None:
        self.plan = plan
        self.number = number
        first = tuple(plan.first_due(number).tolist())
        self._state = state or LaneState(window=0, due=first, drawn=(0,) * len(first), emitted=0)
        self._open: Window | None = None

    @property
    def state(self) -> LaneState:
        """Where the lane stands behind the last pack taken, in its one canonical form."""
        return self._state

    def take(self, count: int) -> Documents:
        """The documents of the next `count` packs, packs numbered from 0."""
        parts: list[tuple[Documents, int]] = []
        while count:
            window = self._window()
            start = self._state.emitted
            stop = min(window.packs, start + count)
            parts.append((window.documents.packs(start, stop), stop - start))
            count -= stop - start
            self._advance(window, stop)
        return Documents.join(parts)

    def rest(self) -> tuple[Documents, int]:
        """The documents of the open window's packs that are left, and the number of those packs; takes none."""
        window = self._window()
        start = self._state.emitted
        return window.documents.packs(start, window.packs), window.packs - start

    def advance(self, count: int) -> None:
        """Count the next `count` packs of the open window as taken."""
        self._advance(self._window(), self._state.emitted + count)

    def _window(self) -> Window:
        if self._open is None:
            state = self._state
            due, drawn = np.array(state.due, np.int64), np.array(state.drawn, np.int64)
            self._open = self.plan.window(self.number, state.window, due, drawn)
            if state.emitted >= self._open.packs:
                raise StateError(
                    f"lane {self.number}: {state.emitted} packs of window {state.window} were given out, "
                    f"but it holds {self._open.packs}: the state belongs to other data"
                )
        return self._open

    def _advance(self, window: Window, emitted: int) -> None:
        if emitted < window.packs:
            self._state = replace(self._state, emitted=emitted)
            return
        self._state = LaneState(
            window=self._state.window + 1,
            due=tuple(window.due.tolist()),
            drawn=tuple(window.drawn.tolist()),
            emitted=0,
        )
        self._open = None
