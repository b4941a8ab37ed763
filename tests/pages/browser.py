"""A headless Chromium that opens a page and fails where the page complains or asks for anything from outside."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

__all__ = ["Browser", "chromium", "open_page"]

Browser: TypeAlias = Any

_PATIENCE_MS = 120_000  # a busy machine may take long
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser, started; skips the test where there is none."""
    playwright = pytest.importorskip("playwright.sync_api")
    found = os.environ.get("STREAMSFT_TEST_BROWSER") or next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.skip("no Chromium here; install one, or name it by STREAMSFT_TEST_BROWSER")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"], timeout=_PATIENCE_MS)
        yield browser
        browser.close()


def _elsewhere(url: str) -> list[str]:
    return [] if url.startswith(("file:", "data:", "blob:")) else [url]


@contextmanager
def open_page(browser: Browser, path: Path, *, width: int = 1280, dark: bool = False) -> Iterator[Page]:
    """The page in a window of `width` pixels, drawn; at the end it must not have complained."""
    complaints: list[str] = []
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light")
    page.set_default_timeout(_PATIENCE_MS)
    page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: complaints.extend(_elsewhere(request.url)))
    page.goto(path.resolve().as_uri())
    page.wait_for_function("document.documentElement.dataset.drawn !== undefined")
    yield page
    page.close()
    assert not complaints
