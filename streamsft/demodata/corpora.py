"""Generate the demo's corpora: arithmetic, unit conversion, and string tasks solved by calling tools.

Each is written in another format and another file type, as found in the wild. A few rows cannot be used,
to show how such rows are told. The same seed writes the same bytes.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

__all__ = ["ROWS", "write_corpora"]

ROWS = 1500
"""Rows per corpus."""

Row = dict[str, Any]

_UNITS: tuple[tuple[str, str, int], ...] = (
    ("km", "m", 1000),
    ("m", "cm", 100),
    ("kg", "g", 1000),
    ("h", "min", 60),
    ("min", "s", 60),
    ("l", "ml", 1000),
    ("days", "h", 24),
    ("dozen", "pieces", 12),
)
# fmt: off
_WORDS = [
    "apple", "river", "stone", "cloud", "green", "table", "horse", "music", "paper", "light", "winter",
    "garden", "orange", "silver", "bridge", "window", "pencil", "rocket", "planet", "forest", "castle",
    "butter", "candle", "dragon", "island", "jacket", "kitten", "lemon", "mirror", "needle", "ocean", "pepper",
]
# fmt: on
_OPERATIONS: dict[str, tuple[str, Callable[[str], str]]] = {
    "reverse_text": ("Reverse the letters of", lambda text: text[::-1]),
    "upper_case": ("Write in capital letters", str.upper),
    "count_letters": ("Count the letters of", lambda text: str(len(text))),
}


def _arithmetic(rng: random.Random) -> Row:
    kind = rng.randrange(3)
    a, b = rng.randrange(2, 100), rng.randrange(2, 100)
    if kind == 0:
        return {"question": f"What is {a} + {b}?", "answer": f"{a} + {b} = {a + b}.\n#### {a + b}"}
    if kind == 1:
        a, b = max(a, b), min(a, b)
        return {"question": f"What is {a} - {b}?", "answer": f"{a} - {b} = {a - b}.\n#### {a - b}"}
    a, b = a % 12 + 1, b % 12 + 1
    return {"question": f"What is {a} times {b}?", "answer": f"{a} * {b} = {a * b}.\n#### {a * b}"}


def _conversion(rng: random.Random) -> Row:
    unit, small, factor = _UNITS[rng.randrange(len(_UNITS))]
    count = rng.randrange(2, 40)
    return {
        "instruction": f"Convert to {small}.",
        "input": f"{count} {unit}",
        "output": f"1 {unit} is {factor} {small}, so {count} {unit} is {count * factor} {small}.",
    }


def _tool(name: str) -> Row:
    parameters = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


def _string_task(rng: random.Random) -> Row:
    name = list(_OPERATIONS)[rng.randrange(len(_OPERATIONS))]
    ask, operation = _OPERATIONS[name]
    words = " ".join(_WORDS[rng.randrange(len(_WORDS))] for _ in range(rng.randrange(1, 4)))
    call = {"type": "function", "function": {"name": name, "arguments": json.dumps({"text": words})}}
    messages: list[Row] = [
        {"role": "user", "content": f"{ask} '{words}'."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "name": name, "content": operation(words)},
        {"role": "assistant", "content": f"The result is {operation(words)}."},
    ]
    return {"messages": messages, "tools": [_tool(name)]}


def write_corpora(folder: Path, *, rows: int = ROWS, seed: int = 7) -> dict[str, Path]:
    """Write the three corpora into `folder` and return their files by source name."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    arithmetic: list[Row] = [_arithmetic(rng) for _ in range(rows)]
    arithmetic[rows // 2] = {"question": "What is the answer?", "answer": ""}
    conversion = [_conversion(rng) for _ in range(rows)]
    strings = [_string_task(rng) for _ in range(rows)]
    strings[rows // 3] = {"messages": [{"role": "user", "content": "Is anyone there?"}], "tools": []}
    files = {
        "arithmetic": folder / "arithmetic.jsonl",
        "units": folder / "units.json",
        "strings": folder / "strings.jsonl.gz",
    }
    files["arithmetic"].write_text(_lines(arithmetic), encoding="utf-8")
    files["units"].write_text(json.dumps(conversion, indent=1) + "\n", encoding="utf-8")
    files["strings"].write_bytes(gzip.compress(_lines(strings).encode(), mtime=0))
    return files


def _lines(rows: Iterable[Row]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
