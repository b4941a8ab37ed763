"""The identity of a user's function changes when its output can."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import pytest

from streamsft.errors import ConfigError
from streamsft.text.identity import identity
from tests.text import transforms

Function = Callable[[dict[str, Any]], Any]

OFFSET = 1
PATTERN = re.compile("a")


def helper(n: int) -> int:
    return n + 1


def mentions(row: dict[str, Any]) -> Any:
    return [helper(n) + OFFSET for n in row["n"] if PATTERN.match(str(n))]


def closure(number: Any) -> Function:
    return lambda row: row["n"] * number


def test_the_same_function_has_the_same_identity() -> None:
    assert identity(transforms.characters, "t") == identity(transforms.characters, "t")
    assert identity(closure(2), "t") == identity(closure(2), "t")
    assert identity(transforms.Scaled(2), "t") == identity(transforms.Scaled(2), "t")
    assert re.fullmatch("[0-9a-f]{32}", identity(transforms.characters, "t"))


def test_source_closure_arguments_and_attributes_count() -> None:
    functions: list[Any] = [
        transforms.characters,
        transforms.failing,
        closure(2),
        closure(3),
        closure([2]),
        closure({"a": 2}),
        closure(re.compile("a")),
        closure(re.compile("b")),
        closure(helper),
        transforms.Scaled(2),
        transforms.Scaled(3),
        transforms.Scaled(2).__call__,
        functools.partial(transforms.characters),
        functools.partial(transforms.characters, n=1),
        len,
        str,
    ]
    assert len({identity(function, "t") for function in functions}) == len(functions)


def test_what_a_function_mentions_of_its_module_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity(mentions, "t")
    monkeypatch.setitem(mentions.__globals__, "OFFSET", 2)
    with_offset = identity(mentions, "t")
    monkeypatch.setitem(mentions.__globals__, "PATTERN", re.compile("b"))
    with_pattern = identity(mentions, "t")
    monkeypatch.setitem(mentions.__globals__, "helper", closure(5))
    other_helper = identity(mentions, "t")
    assert len({before, with_offset, with_pattern, other_helper}) == 4


def test_a_declared_version_decides_alone() -> None:
    def make(number: int, version: str) -> Any:
        function = closure(number)
        function.version = version  # type: ignore[attr-defined]
        return function

    assert identity(make(1, "1"), "t") == identity(make(2, "1"), "t") != identity(make(1, "2"), "t")


def test_what_has_no_source_needs_a_version() -> None:
    namespace: dict[str, Any] = {}
    exec("def made(row): return None", namespace)
    with pytest.raises(ConfigError, match=r"source x: transform: the source text of .*made cannot be found.*version"):
        identity(namespace["made"], "source x: transform")
    namespace["made"].version = "1"
    assert identity(namespace["made"], "t")


def test_a_value_whose_content_cannot_be_told_needs_a_version() -> None:
    with pytest.raises(ConfigError, match=r"t: the content of a generator that it uses cannot be told.*version"):
        identity(closure(n for n in (1, 2)), "t")


def test_recursion_ends() -> None:
    values: list[Any] = [1]
    values.append(values)
    assert identity(closure(values), "t")

    def recursive(n: int) -> int:
        return recursive(n - 1) if n else 0

    assert identity(recursive, "t")
