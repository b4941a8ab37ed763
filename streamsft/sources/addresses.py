"""Addresses: what names something by a scheme, and the patterns in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

__all__ = ["MAGIC", "is_address", "pattern_of", "shown"]

MAGIC: Final = re.compile(r"\*|\[[^]]+]")
"""What makes a pattern of a name."""


def is_address(location: object) -> bool:
    """Whether `location` names something by a scheme, ``scheme://…``, rather than by a path."""
    return isinstance(location, str) and "://" in location


def shown(path: str) -> str:
    """An address or a path for messages: without a query or credentials."""
    if not is_address(path):
        return path
    parts = urlsplit(path)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def pattern_of(parts: Sequence[str]) -> re.Pattern[str]:
    """What the names of a pattern, between its slashes, match."""
    names = ["(?:[^/]+/)*" if part == "**" else _translated(part) + "/" for part in parts]
    return re.compile("".join(names).removesuffix("/"))


def _translated(name: str) -> str:
    pieces = re.split(r"(\*|\[[^]]+])", name)
    return "".join(
        "[^/]*" if p == "*" else p.replace("[!", "[^") if p.startswith("[") else re.escape(p) for p in pieces
    )
