"""Telling how far long work has come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

__all__ = ["Progress", "reporting"]

Progress: TypeAlias = Callable[[int, int], None]


@contextmanager
def reporting(
    progress: bool | Progress, name: str, total: int, what: str = "tokenizing"
) -> Iterator[Callable[[int], None]]:
    """A function to be called with the amount of input that is done.

    Args:
        progress: True draws a bar on standard error, False nothing; a function is called with (done, total).
        name: what the bar is for.
        total: the whole amount.
        what: what is done.
    """
    if callable(progress):
        yield lambda done: progress(done, total)
        return
    if not progress:
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress as Bars, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn(f"{what} {{task.description}}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task(name, total=max(1, total))
        yield lambda done: bars.update(task, completed=done)
        bars.update(task, completed=max(1, total))
