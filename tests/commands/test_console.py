"""Where commands print: coloured on a terminal that wants it, plain text of a fixed width elsewhere."""

from __future__ import annotations

import pytest

from streamsft.commands.console import make_console
from streamsft.commands.marked import mark


def test_elsewhere_it_is_plain_text_of_120_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    console = make_console()
    assert (console.is_terminal, console.width, console.no_color) == (False, 120, True)
    assert mark(console, [("say", False), ("hi", True)]).plain == "say⟦hi⟧"


@pytest.mark.parametrize("no_color", [False, True])
def test_a_terminal_gets_colours_unless_it_wants_none(monkeypatch: pytest.MonkeyPatch, no_color: bool) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as if there were a terminal
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    console = make_console()
    assert (console.width, console.no_color) == (80, no_color)
    marked = mark(console, [("say", False), ("hi", True)])
    assert marked.plain == ("say⟦hi⟧" if no_color else "sayhi")
    assert bool(marked.spans) != no_color
