"""One browser for all pages of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.pages.browser import Browser, chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started
