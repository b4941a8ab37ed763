"""Numbers, places and causes as people read them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from streamsft.errors import DataError

__all__ = ["cause", "counted", "naming", "placed"]


def counted(value: float) -> str:
    """A count in at most six characters: up to 99,999 in full, above that three digits and a unit (1.23M)."""
    if abs(value) < 99_999.5:
        return f"{value:,.0f}"
    for unit in "kMGTP":
        value /= 1000
        if abs(value) < 999.5:
            digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
            return f"{value:.{digits}f}{unit}"
    return f"{value * 1e15:.0e}"


def cause(error: Exception) -> str:
    """What is wrong, without the number and the path that Python puts around what the system says."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


@contextmanager
def naming(source: str) -> Iterator[None]:
    """Have errors about data raised in the block begin with the name of the source that they are about."""
    try:
        yield
    except DataError as error:
        if str(error).startswith("source "):
            raise
        raise type(error)(f"source {source}: {error}") from error


def placed(origin: str) -> str:
    """A source's ``file:row`` as ``file, row N``: not to be taken for a line, rows being numbered from 0."""
    file, colon, row = origin.rpartition(":")
    return f"{file}, row {row}" if colon else origin
