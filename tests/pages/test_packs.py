"""The page of packs: every token with its text, position, id and mask, searched by text."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from rich.console import Console
from typer.testing import CliRunner

from streamsft.cli import app
from streamsft.commands.preview import preview
from streamsft.pages.packs import pieces
from streamsft.text.backend import Backend, load_tokenizer
from tests.pages.browser import Browser, open_page
from tests.pipelines import demo_files, small_config


def backend() -> Backend:
    return Backend.of(load_tokenizer(demo_files().tokenizer))


def test_the_pieces_of_any_text_are_the_text() -> None:
    core = backend()

    @settings(max_examples=60, deadline=None)
    @given(st.text(max_size=30))
    def check(text: str) -> None:
        ids = core.encode([text])[0].ids
        found = pieces(ids, core.decode)
        assert len(found) == len(ids)
        assert "".join(found) == core.decode(ids)

    check()


def test_a_space_that_a_tokenizer_leaves_out_at_the_beginning_is_kept_within_the_text() -> None:
    words = ["▁Hello", "▁there", ",", "▁you"]

    def decode(ids: Sequence[int]) -> str:
        return "".join(words[i] for i in ids).replace("▁", " ").removeprefix(" ")

    assert pieces([0, 1, 2, 3], decode) == ["Hello", " there", ",", " you"]


def test_bytes_that_never_become_a_character_are_shown_as_broken() -> None:
    assert pieces([1] * 10, lambda ids: "\N{REPLACEMENT CHARACTER}" * len(ids)) == ["\N{REPLACEMENT CHARACTER}"] * 10
    assert pieces([], lambda ids: "") == []


def test_documents_are_on_the_page_token_by_token_and_can_be_searched(tmp_path: Path, browser: Browser) -> None:
    page = tmp_path / "packs.html"
    console = Console(file=io.StringIO(), width=120)
    survey = preview(small_config(tmp_path), packs=3, draws=50, html=page, console=console)
    assert survey.packs >= 3
    assert str(page) in console.file.getvalue()  # type: ignore[attr-defined]
    with open_page(browser, page, width=390) as tab:
        assert tab.evaluate("document.documentElement.scrollWidth") == 390
        assert tab.locator(".pack").count() == 3
        documents: list[dict[str, Any]] = [one for pack in tab.evaluate("page.data") for one in pack]
        assert tab.locator("article").count() == len(documents)
        first = documents[0]
        spans = tab.locator("article").first.locator(".tokens span")
        assert spans.count() == len(first["ids"])
        marked = tab.evaluate("[...document.querySelector('.tokens').children].map(s => s.classList.contains('y'))")
        assert marked == [bool(one) for one in first["labelled"]]
        assert backend().decode(first["ids"]) == "".join(first["texts"])
        assert tab.locator(".c", has_text="<|im_end|>").count() >= len(documents)
        spans.nth(2).hover()
        assert f"position 2 · id {first['ids'][2]}" in tab.locator("#token").text_content()
        tab.locator(".tokens").first.focus()
        tab.keyboard.press("End")
        assert f"position {len(first['ids']) - 1} ·" in tab.locator("#token").text_content()
        tab.locator("#search input").fill("ASSISTANT")
        hits = sum("".join(one["texts"]).lower().count("assistant") for one in documents)
        assert tab.locator("#count").text_content() == f"1 of {hits}"
        tab.keyboard.press("Enter")
        assert tab.locator("#count").text_content() == f"2 of {hits}"
        assert "assistant" in "".join(tab.locator(".current").all_text_contents())
        tab.locator("#search input").fill("no such words")
        assert tab.locator("#count").text_content() == "not found"


def test_a_page_shows_packs_not_one_row(tmp_path: Path) -> None:
    arguments = ["preview", "none.yaml", "--row", "a:1", "--html", str(tmp_path / "p.html")]
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, result.stderr) == (2, "error: --html shows packs, --row one row; give one of them\n")


def test_without_a_tokenizer_the_ids_are_shown(tmp_path: Path) -> None:
    from streamsft.commands.tokenize import tokenize

    config = small_config(tmp_path)
    store = tokenize(config, console=Console(file=io.StringIO()))["units"]
    config["mix"]["sources"] = {"ready": {"store": str(store.path)}}
    del config["tokenizer"]
    preview(config, packs=1, draws=5, html=tmp_path / "p.html", console=Console(file=io.StringIO()))
    ids, _ = store.read(np.array([0]))
    assert f'"{ids[0][0]} "' in (tmp_path / "p.html").read_text()


def test_the_page_says_where_it_cannot_be_written(tmp_path: Path) -> None:
    from streamsft.errors import RunError

    with pytest.raises(RunError, match=r"cannot be written: there is no folder .*; choose another place"):
        preview(small_config(tmp_path), packs=1, draws=5, html=tmp_path / "no" / "p.html",
                console=Console(file=io.StringIO()))  # fmt: skip
