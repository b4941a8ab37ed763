"""Read a config file: YAML with its traps closed, line numbers kept, overrides laid over it.

YAML 1.1 reads ``yes`` and ``off`` as booleans, ``1e-5`` as text, ``010`` as eight and ``12:30`` as 750,
and lets the last of two equal keys win. All of these are reported here as issues, none is guessed at.
Nothing but plain values is ever built from a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from streamsft.errors import ConfigError

__all__ = ["Document", "Issue", "KeyPath", "apply_overrides", "dotted", "read_text", "read_yaml"]

KeyPath = tuple[str | int, ...]

_NUMBER = re.compile(r"[-+]?(\d[\d_]*)?\.?\d+([eE][-+]?\d+)?|[-+]?\d+\.?([eE][-+]?\d+)?")
_PLAIN_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)")
_DATA = {".jsonl", ".ndjson", ".parquet", ".arrow", ".csv", ".tsv", ".gz", ".zst"}
_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True, slots=True)
class Issue:
    """One thing wrong with a config: where (the keys that lead there) and what."""

    path: KeyPath
    message: str


@dataclass(slots=True)
class Document:
    """A config as plain values, with the line of each key, the overrides, and what was wrong in the text itself."""

    data: dict[str, Any]
    source: str = "config"
    lines: dict[KeyPath, int] = field(default_factory=dict)
    overridden: dict[KeyPath, str] = field(default_factory=dict)
    issues: list[Issue] = field(default_factory=list)


def dotted(path: KeyPath) -> str:
    """``mix.sources.gsm8k.path[0]`` for ``("mix", "sources", "gsm8k", "path", 0)``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def read_yaml(path: str | Path) -> Document:
    """Read the config file `path`.

    Raises:
        ConfigError: the file is missing, not UTF-8, or not YAML.
    """
    file = Path(path)
    if not file.is_file():
        near = sorted(p.name for p in file.parent.glob("*.y*ml")) if file.parent.is_dir() else []
        hint = f"; {file.parent}/ has {', '.join(near[:8])}" if near else ""
        raise ConfigError(f"{file}: there is no such config file{hint}")
    if file.suffix in _DATA:
        raise ConfigError(
            f"{file}: looks like data; a config is a YAML file that says where data are, and how to mix them"
        )
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not a UTF-8 text file ({error.reason} at byte {error.start})") from error
    return read_text(text, str(file))


def read_text(text: str, source: str = "config") -> Document:
    """Read a config from YAML text; `source` is its name in messages."""
    document = Document({}, source)
    value = _value(text, document)
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise ConfigError(f"{source}: a config is a mapping of keys to values, got {type(value).__name__}")
    document.data = value
    return document


def _value(text: str, document: Document) -> Any:
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{document.source}:{mark.line + 1}:{mark.column + 1}" if mark else document.source
        in_braces = mark is not None and "${" in "".join(text.splitlines()[mark.line : mark.line + 1])
        hint = "; inside { } and [ ], put a value with ${…} in quotes" if in_braces else ""
        raise ConfigError(f"{where}: not valid YAML: {getattr(error, 'problem', None) or error}{hint}") from error
    return None if node is None else _Reader(document).read(node, ())


@dataclass(slots=True)
class _Reader:
    document: Document
    open_nodes: set[int] = field(default_factory=set)
    known: dict[int, Any] = field(default_factory=dict)

    def read(self, node: yaml.Node, path: KeyPath) -> Any:
        self.document.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if id(node) in self.open_nodes:
            raise ConfigError(f"{self.document.source}:{node.start_mark.line + 1}: an anchor contains itself")
        if id(node) not in self.known:  # an alias is read once, however often it is used
            self.open_nodes.add(id(node))
            self.known[id(node)] = self._container(node, path)
            self.open_nodes.discard(id(node))
        return self.known[id(node)]

    def _container(self, node: yaml.Node, path: KeyPath) -> Any:
        if isinstance(node, yaml.SequenceNode):
            return [self.read(child, (*path, i)) for i, child in enumerate(node.value)]
        assert isinstance(node, yaml.MappingNode)
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for key_node, child in node.value:
            if key_node.tag == _TAG + "merge":
                merged |= self._merge(child, path)
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                self._issue(path, "a key must be plain text")
                continue
            key = self._key(key_node, path)
            line = key_node.start_mark.line + 1
            if key in own:
                self._issue((*path, key), f"the same key twice (lines {self.document.lines[(*path, key)]} and {line})")
                continue
            self.document.lines[(*path, key)] = line
            own[key] = self.read(child, (*path, key))
        return merged | own

    def _merge(self, node: yaml.Node, path: KeyPath) -> dict[str, Any]:
        parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, Any] = {}
        for part in reversed(parts):
            value = self.read(part, path)
            if not isinstance(value, dict):
                self._issue(path, "'<<' merges mappings only")
                continue
            merged |= value
        return merged

    def _key(self, node: yaml.ScalarNode, path: KeyPath) -> str:
        if node.tag == _TAG + "bool" and not _is_true_or_false(node.value):
            self._issue((*path, node.value), f"the key {node.value} is a boolean to YAML: put it in quotes")
        return str(node.value)

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        text, tag = node.value, node.tag.removeprefix(_TAG)
        if tag == "null":
            return None
        if tag == "bool":
            if not _is_true_or_false(text):
                meant = "true" if text.lower() in ("yes", "on") else "false"
                self._issue(path, f"YAML reads {text} as a boolean: write {meant}, or '{text}' if text is meant")
            return text.lower() in ("true", "yes", "on")
        if tag == "int":
            if not _PLAIN_INT.fullmatch(text):
                self._issue(path, f"YAML reads {text} as a number in another base: write it in decimal, or in quotes")
                return 0
            return int(text.replace("_", ""), 0)
        if tag == "float":
            return _to_float(text)
        if tag == "str" and node.style is None and _NUMBER.fullmatch(text):
            fix = f"write {_spelled(text)}, or '{text}' if text is meant"
            self._issue(path, f"YAML reads {text} as text, not as a number: {fix}")
            return float(text.replace("_", ""))
        if tag in ("str", "timestamp"):
            return text
        self._issue(path, f"the YAML tag {node.tag} is not allowed: plain values only")
        return None

    def _issue(self, path: KeyPath, message: str) -> None:
        self.document.issues.append(Issue(path, message))


def _is_true_or_false(text: str) -> bool:
    return text.lower() in ("true", "false")


def _to_float(text: str) -> float:
    text = text.replace("_", "").lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


def _spelled(text: str) -> str:
    """`1e-5` as YAML reads it as a number: `1.0e-5`."""
    mantissa, _, exponent = text.lower().partition("e")
    if "." not in mantissa:
        mantissa += ".0"
    if not exponent:
        return mantissa
    return f"{mantissa}e{exponent if exponent[0] in '+-' else '+' + exponent}"


def apply_overrides(document: Document, overrides: Iterable[str]) -> None:
    """Lay ``key.path=value`` over `document`, in place; a value is read as YAML, and ``1e-5`` as a number.

    A key with dots in it (a source may be called ``a.b``) is found if the file has it.

    Raises:
        ConfigError: an override has no ``=``, or leads through something that is not a mapping.
    """
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            raise ConfigError(
                f"override {override!r}: write it as key.path=value without spaces, for instance train.steps=100"
            )
        path: KeyPath = ()
        place, rest = document.data, key.strip()
        while True:
            name, rest = _next_key(place, rest)
            path = (*path, name)
            if not rest:
                break
            child = place.setdefault(name, {})
            if not isinstance(child, dict):
                raise ConfigError(f"override {override!r}: {dotted(path)} is {child!r}, it has no keys below it")
            place[name] = place = dict(child)  # an anchor's mapping may be shared with other keys
        place[name] = _override_value(override, text)
        document.issues = [i for i in document.issues if i.path[: len(path)] != path]
        for known in [p for p in document.lines if p[: len(path)] == path]:
            del document.lines[known]
        document.overridden[path] = override


def _next_key(place: dict[str, Any], rest: str) -> tuple[str, str]:
    parts = rest.split(".")
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if name in place:
            return name, ".".join(parts[length:])
    return parts[0], ".".join(parts[1:])


def _override_value(override: str, text: str) -> Any:
    if _NUMBER.fullmatch(text) and not _PLAIN_INT.fullmatch(text):
        return float(text.replace("_", ""))
    document = Document({}, f"override {override!r}")
    value = _value(text, document)
    if document.issues:
        raise ConfigError(f"override {override!r}: {document.issues[0].message}")
    return value
