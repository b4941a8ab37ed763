"""Cutting data into at least as many units as there are lanes to read it."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from streamsft.sources.shardrows import Unit

__all__ = ["Part", "cut", "explain"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What can be read on its own without passing over other rows: a file, a shard or a row group.

    Attributes:
        file: number of the file or shard.
        group: number of the row group; None is the whole file.
        size: how large it is beside the other parts.
    """

    file: int
    group: int | None = None
    size: int = 1


def cut(parts: Sequence[Part], lanes: int, count: Callable[[Part, int], int]) -> tuple[Unit, ...]:
    """The units of `parts` for `lanes` readers, in the order of the data; none of them is empty.

    Where there are fewer parts than lanes, the largest are read by row stride, as often as is needed or as they
    have rows.

    Args:
        parts: none of them empty.
        lanes: readers.
        count: how many rows a part has, counted up to a limit.
    """
    pieces = [1] * len(parts)
    missing = lanes - len(parts)
    if missing > 0:
        rows = [count(part, lanes) for part in parts]
        largest: list[tuple[float, int]] = [(-part.size, place) for place, part in enumerate(parts)]
        heapq.heapify(largest)
        while missing and largest:
            _, place = heapq.heappop(largest)
            if pieces[place] < rows[place]:
                pieces[place] += 1
                missing -= 1
                heapq.heappush(largest, (-parts[place].size / pieces[place], place))
    return tuple(
        Unit(file=part.file, group=part.group, start=start, step=step)
        for part, step in zip(parts, pieces, strict=True)
        for start in range(step)
    )


def explain(name: str, what: str, units: Sequence[Unit], lanes: int) -> str:
    """One line that says how a source with fewer files than lanes is read, and what would be better.

    Args:
        name: the source's name.
        what: its files or shards, counted.
        units: what it was cut into.
        lanes: readers.
    """
    most = max((unit.step for unit in units), default=1)
    grouped = any(unit.group is not None for unit in units)
    if most > 1:
        part = "row group" if grouped else "file"
        how = f"every n-th row of a {part}, so that a {part} is read up to {most} times a pass"
    else:
        how = "by row group"
    short = "" if len(units) >= lanes else "; it has no more rows, so in each pass some lanes get none"
    return (
        f"source {name}: {what} for {lanes} lanes: read {how}, in {len(units)} units{short}. To read whole files, "
        f"write it as {lanes} files or more, or lower lanes_per_step or lane_groups"
    )
