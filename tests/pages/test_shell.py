"""Where a page may be written is seen before the work, and nothing but a page is replaced."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from streamsft.commands.forecast import forecast
from streamsft.commands.preview import preview
from streamsft.commands.report import report
from streamsft.errors import ConfigError, RunError
from streamsft.pages.shell import check_page, page, write_page
from tests.pipelines import small_config

EMPTY = page(title="t", header="", body="", styles=[], scripts=[], data={})
WRITERS: dict[str, Callable[..., Any]] = {"preview": preview, "forecast": forecast}


def test_a_page_replaces_a_page_and_an_empty_file_alone(tmp_path: Path) -> None:
    target = tmp_path / "x.html"
    for _ in range(2):
        write_page(target, EMPTY)
    target.write_text("")
    write_page(target, EMPTY)
    target.write_text("<!doctype html><title>mine</title>")
    with pytest.raises(RunError, match=r"x\.html cannot be written: it is there already, and no page of streamsft"):
        write_page(target, EMPTY)
    assert target.read_text() == "<!doctype html><title>mine</title>"
    assert [path.name for path in tmp_path.iterdir()] == ["x.html"]


@pytest.mark.parametrize(("place", "why"), [("no/x.html", "there is no folder .*/no;"), ("dir", "it is a folder;")])
def test_a_place_where_no_page_can_be_is_refused(place: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    with pytest.raises(RunError, match=why):
        check_page(tmp_path / place)


@pytest.mark.parametrize("command", WRITERS)
def test_the_place_of_a_page_is_checked_before_anything_is_read(command: str, tmp_path: Path) -> None:
    console = Console(file=io.StringIO())
    with pytest.raises(RunError, match=r"x\.html cannot be written: there is no folder"):
        WRITERS[command](small_config(tmp_path), html=tmp_path / "no" / "x.html", console=console)
    assert not (tmp_path / "cache").exists()


def test_charts_that_cannot_be_drawn_are_told_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ConfigError, match=r"pip install 'streamsft\[report\]'"):
        forecast(small_config(tmp_path), html=tmp_path / "x.html")
    assert not (tmp_path / "cache").exists()


def test_the_report_of_no_run_is_no_run_whatever_is_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("mine")
    with pytest.raises(RunError, match="there is no such file"):
        report(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "time": 0, "metrics": {}}\n')
    with pytest.raises(RunError, match="no page of streamsft"):
        report(tmp_path)
    assert (tmp_path / "report.html").read_text() == "mine"
