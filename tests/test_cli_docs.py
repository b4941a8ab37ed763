"""`docs/cli.md` is what the command line says of itself."""

from __future__ import annotations

from pathlib import Path

from streamsft.cli_docs import JSON_KEYS, document
from tests.test_cli import COMMANDS

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == document().rstrip() + "\n", "run: python -m streamsft.cli_docs > docs/cli.md"


def test_every_command_is_on_the_page_with_its_json() -> None:
    text = PAGE.read_text()
    assert JSON_KEYS.keys() == set(COMMANDS)
    assert all(f"\n## {name}\n" in text for name in COMMANDS)
    assert text.count("| `--json` |") == len(COMMANDS)
    assert text.count("| `--debug` |") == len(COMMANDS)
