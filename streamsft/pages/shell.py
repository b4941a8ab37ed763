"""The frame of every page: head, styles, scripts, and text that is safe in HTML."""

from __future__ import annotations

import html
import json
from importlib import resources
from pathlib import Path
from typing import Any

from streamsft.errors import RunError

__all__ = ["asset", "embedded", "escaped", "page", "write_page"]


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
        f"<title>{escaped(title)}</title>\n{sheets}\n</head>\n<body>\n"
        '<a class="skip" href="#main">Skip to the content</a>\n'
        f'<header>{header}<button type="button" id="theme">Theme</button></header>\n'
        f'<main id="main" tabindex="-1">\n{body}\n</main>\n'
        f'<script type="application/json" id="data">{embedded(data)}</script>\n{code}\n</body>\n</html>\n'
    )


def write_page(path: Path, text: str) -> None:
    """Write a page; its folder must be there.

    Raises:
        RunError: it cannot be written.
    """
    beside = path.with_name(f".{path.name}.tmp")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}; choose another place for the page") from error
