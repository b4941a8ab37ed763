"""Where in a config file the key stands that an error is about, though the error comes long after the file was read."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from streamsft.config_models import SECTIONS
from streamsft.config_yaml import Document, KeyPath, apply_overrides, dotted, read_yaml
from streamsft.errors import ConfigError, StreamsftError

__all__ = ["pointing"]

P = ParamSpec("P")
R = TypeVar("R")

_SOURCE = re.compile(r"\bsource '?([A-Za-z0-9_.-]+?)'?[:,\s]")
_KEY = re.compile(
    r"(?<![\w./-])(?:(?:mix|text|cache|packing|loader|metrics|eval|train)\.[\w.-]*\w)"
    r"|^ *(?:rank \d+: )?(seed|sequence_length|tokenizer)(?=[:,])",
    re.MULTILINE,
)
_INPUTS = ("path", "store", "hub")


def pointing(command: Callable[P, R]) -> Callable[P, R]:
    """Have a function whose first argument is a config say where in its file the key is that an error is about.

    What is found is added as a note. Without a file, or where the error is about none of its keys, nothing is.
    """

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except StreamsftError as error:
            config = args[0] if args else kwargs.get("config")
            given = kwargs.get("overrides")
            overrides = given if isinstance(given, list | tuple) else ()
            if isinstance(config, str | Path):
                for place in _places(str(error), config, overrides):
                    error.add_note(place)
            raise

    return run


def _places(message: str, config: str | Path, overrides: Iterable[Any]) -> list[str]:
    if message.startswith(f"{config}:"):
        return []  # it has lines of its own
    try:
        document = read_yaml(config)
        apply_overrides(document, overrides)
    except ConfigError:
        return []
    found = (_shown(document, paths) for paths in _mentioned(message, document.data))
    return list(dict.fromkeys(place for place in found if place))


def _shown(document: Document, paths: Sequence[KeyPath]) -> str | None:
    """The place of the first of `paths` that there is."""
    for path in paths:
        if path in document.overridden:
            return f"  given as {document.overridden[path]}"
        if line := document.lines.get(path):
            return f"  {document.source}:{line}: {dotted(path)}"
    return None


def _mentioned(message: str, data: Mapping[str, Any]) -> Iterator[list[KeyPath]]:
    """The keys that a message names, each with those to take where it is not in the file, and then the sources."""
    for match in _KEY.finditer(message):
        path = _path(data, match[1] or match[0])
        section = SECTIONS.get(path[:1])
        if section is None or len(path) == 1 or path[1] in section.model_fields:
            yield [path[:length] for length in range(len(path), 0, -1)]
    sources = dict(_sources(data.get("mix"), ("mix",)))
    for match in _SOURCE.finditer(message):
        if place := sources.get(match[1]):
            yield [*((*place, key) for key in _INPUTS), place]


def _path(data: Mapping[str, Any], key: str) -> KeyPath:
    """The keys that a dotted text stands for; names of sources may have dots in them."""
    path: list[str | int] = []
    rest = key.split(".")
    node: Any = data
    while rest:
        count = next((n for n in range(len(rest), 0, -1) if isinstance(node, dict) and ".".join(rest[:n]) in node), 1)
        name, rest = ".".join(rest[:count]), rest[count:]
        node = node.get(name) if isinstance(node, dict) else None
        path.append(name)
    return tuple(path)


def _sources(node: Any, path: KeyPath) -> Iterator[tuple[str, KeyPath]]:
    below = node.get("sources") if isinstance(node, dict) else None
    for name, child in below.items() if isinstance(below, dict) else ():
        yield name, (*path, "sources", name)
        yield from _sources(child, (*path, "sources", name))
