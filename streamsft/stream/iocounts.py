"""What is read of sources that count it, such as row groups from object storage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import final

from streamsft.stream.mixture import Leaf

__all__ = ["IoCounts"]


@final
class IoCounts:
    """What this process reads of some leaves, told in parts.

    Args:
        leaves: the leaves; a source that counts what is read of it has these counts as `io`, a number by name.
    """

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        self._counting = {number: leaf.source for number, leaf in enumerate(leaves) if hasattr(leaf.source, "io")}
        self._told = {number: dict(counts) for number, counts in self._counted()}

    def since(self) -> list[tuple[int, str, int]]:
        """What was read since the last call, or since the beginning: (number of the leaf, name, count) each."""
        found = []
        for number, counts in self._counted():
            before, self._told[number] = self._told[number], dict(counts)
            found += [(number, name, count - before[name]) for name, count in counts.items() if count != before[name]]
        return found

    def _counted(self) -> Iterator[tuple[int, Mapping[str, int]]]:
        for number, source in self._counting.items():
            yield number, source.io
