"""The Python blocks of the documents run, and print what the block behind them says."""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("parts", "evaluation", "integrations", "parallel", "preference")),
]
LINKED = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int
    output: str | None
    """The text block right behind it."""


def blocks(document: Path) -> list[Block]:
    text = document.read_text()
    found = list(BLOCK.finditer(text))
    result = []
    for block, behind in zip_longest(found, found[1:]):
        output = None
        if behind and behind[1] == "text" and not text[block.end() : behind.start()].strip():
            output = behind[2]
        result.append(Block(block[1], block[2], text.count("\n", 0, block.start()) + 2, output))
    return result


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_python_blocks_run_and_print_what_the_document_says(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All blocks of a document run in one folder, each from scratch."""
    monkeypatch.chdir(tmp_path)
    found = [block for block in blocks(document) if block.language == "python"]
    assert found
    for block in found:
        code = compile("\n" * (block.line - 1) + block.text, str(document), "exec")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, {"__name__": "__document__"})
        if block.output is not None:
            assert printed.getvalue().rstrip() == block.output.rstrip(), f"{document.name}:{block.line}"


def test_ci_runs_the_commands_of_the_readme() -> None:
    ci = (ROOT / ".ci" / "run").read_text()
    shell = [block.text for block in blocks(ROOT / "README.md") if block.language == "bash"]
    commands = [line.strip() for text in shell for line in text.splitlines()]
    assert "pip install -c constraints.txt -e '.[dev]' && streamsft demo" in commands
    assert "scripts/test" in commands
    for part in ("install --quiet -c constraints.txt -e '.[dev]'", "streamsft demo", "scripts/check", "scripts/test"):
        assert part in ci


@pytest.mark.parametrize("document", LINKED, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", document.read_text()):
        assert (document.parent / target).exists(), target
