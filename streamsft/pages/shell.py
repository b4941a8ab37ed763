"""The frame of every page: head, styles, scripts, and text that is safe in HTML."""

from __future__ import annotations

import html
import importlib.util
import json
import os
from importlib import resources
from pathlib import Path
from typing import Any

from streamsft.errors import ConfigError, RunError

__all__ = ["asset", "check_page", "embedded", "escaped", "page", "plotly", "write_page"]

_MADE_BY = '<meta name="generator" content="streamsft">'


def asset(name: str) -> str:
    """The text of a file that pages are made with."""
    return resources.files("streamsft.pages").joinpath("assets", name).read_text(encoding="utf-8")


def escaped(value: object) -> str:
    """`value` as text that may stand in an element or an attribute."""
    return html.escape(str(value))


def embedded(value: Any) -> str:
    """`value` as JSON that may stand in a script element. NaN and infinities must not be in it."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def page(*, title: str, header: str, body: str, styles: list[str], scripts: list[str], data: Any) -> str:
    """A whole page.

    Args:
        title: of the window.
        header: HTML beside the buttons at the top.
        body: HTML of the page's main part.
        styles: style sheets, as text.
        scripts: scripts, as text; run in order at the end of the page.
        data: what scripts find as JSON in the element ``data``.
    """
    sheets = "".join(f"<style>{sheet}</style>" for sheet in [asset("page.css"), *styles])
    code = "".join(f"<script>{script}</script>" for script in [asset("page.js"), *scripts])
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"{_MADE_BY}\n"
        f"<title>{escaped(title)}</title>\n{sheets}\n</head>\n<body>\n"
        '<a class="skip" href="#main">Skip to the content</a>\n'
        f'<header>{header}<button type="button" id="theme">Theme</button></header>\n'
        f'<main id="main" tabindex="-1">\n{body}\n</main>\n'
        f'<script type="application/json" id="data">{embedded(data)}</script>\n{code}\n</body>\n</html>\n'
    )


def plotly() -> str:
    """The script that draws charts.

    Raises:
        ConfigError: the package ``plotly`` is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ConfigError("charts need the package plotly: pip install 'streamsft[report]'") from error
    script: str = get_plotlyjs()
    return script


def check_page(path: Path, *, charts: bool = False) -> None:
    """See that a page could be written, before the work that it is to show; nothing is left behind.

    Args:
        path: the page.
        charts: whether it is one with charts.

    Raises:
        RunError: its folder is not there or cannot be written to, or a file is there that is no page of streamsft.
        ConfigError: the package that draws charts is not installed.
    """
    why = ""
    if not path.parent.is_dir():
        why = f"there is no folder {path.parent}"
    elif path.is_dir():
        why = "it is a folder"
    elif not os.access(path.parent, os.W_OK | os.X_OK):
        why = f"{path.parent} cannot be written to"
    elif path.exists() and not _is_ours(path):
        why = "it is there already, and no page of streamsft, which alone are overwritten"
    if why:
        raise RunError(f"{path} cannot be written: {why}; choose another place for the page")
    if charts and importlib.util.find_spec("plotly") is None:
        plotly()


def _is_ours(path: Path) -> bool:
    """Whether a file is a page that was made here, or empty."""
    try:
        with path.open("rb") as file:
            head = file.read(1024)
    except OSError:
        return False
    return not head or _MADE_BY.encode() in head


def write_page(path: Path, text: str) -> None:
    """Write a page, also in the place of an earlier one.

    Raises:
        RunError: it cannot be written; see `check_page`.
    """
    check_page(path)
    beside = path.with_name(f".{path.name}.tmp")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise RunError(f"{path} cannot be written: {error.strerror}; choose another place for the page") from error
