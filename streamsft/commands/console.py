"""Where commands print."""

from __future__ import annotations

from rich.console import Console

__all__ = ["make_console"]


def make_console(*, stderr: bool = False) -> Console:
    """A console for standard output: coloured on a terminal, else plain text of 120 columns."""
    console = Console(stderr=stderr)
    if console.is_terminal:
        return console
    return Console(stderr=stderr, width=120, no_color=True, highlight=False)
