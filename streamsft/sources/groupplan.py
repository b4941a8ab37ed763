"""Which row groups are read next, by what each of their readers says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

__all__ = ["GroupPlan"]

_SILENT: Final = 64  # words of each other reader, on average, after which one that says nothing is taken to be gone


@final
class GroupPlan:
    """What is read next by all readers, each of which says anew what it reads as it goes on."""

    def __init__(self) -> None:
        self._expected: dict[int, Sequence[tuple[int, int]]] = {}
        self._spoken: dict[int, int] = {}  # how often any had spoken when a reader last did; the latest at the end
        self._words = 0

    def hear(self, reader: int, wanted: Sequence[tuple[int, int]]) -> None:
        """Have a reader's word stand for what it said before, and forget readers that are gone.

        Args:
            reader: its number.
            wanted: groups in the order in which it reads them, each with the number of rows that it reads before.
        """
        self._words += 1
        self._spoken.pop(reader, None)
        self._spoken[reader] = self._words
        self._expected[reader] = wanted
        while self._words - self._spoken[silent := next(iter(self._spoken))] > _SILENT * len(self._spoken):
            del self._spoken[silent], self._expected[silent]

    def now(self) -> set[int]:
        """The groups that are drawn from."""
        return {group for wanted in self._expected.values() for group, before in wanted if not before}

    def order(self) -> dict[int, int]:
        """The groups in the order in which they are read, with the rows that their first reader reads before."""
        plan: dict[int, int] = {}
        for before, group in sorted((before, group) for wanted in self._expected.values() for group, before in wanted):
            plan.setdefault(group, before)
        return plan
