"""`Info`: a pipeline as a tree that can be printed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import final

__all__ = ["Info"]


@final
@dataclass(frozen=True, slots=True)
class Info:
    """One node of a pipeline; printed, the tree below it."""

    name: str
    detail: str = ""
    weight: float | None = None
    children: tuple[Info, ...] = field(default=())

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        share = "" if self.weight is None else f"{self.weight:7.2%}"
        yield "  ".join(part for part in (self.name, share, self.detail) if part)
        for child in self.children:
            last = child is self.children[-1]
            head, rest = ("└── ", "    ") if last else ("├── ", "│   ")
            for number, line in enumerate(child._lines()):
                yield (rest if number else head) + line
