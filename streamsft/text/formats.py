"""The shapes that instruction and chat rows come in, and how each becomes a `Conversation`.

================== =========================================================================================
format             columns (the first are needed)
================== =========================================================================================
messages           messages: [{role, content, tool_calls, ...}]; tools, system
sharegpt           conversations: [{from, value}]; tools, system
alpaca             instruction, output (or response); input, history, system
prompt_completion  prompt, completion, each a text or a list of messages; tools, system
question_answer    question, answer; tools, system
preference         chosen, rejected, each a text or a list of messages; prompt (a text or a list of messages; not
                   needed where both lists begin with it), tools, system
text               text: a document of plain text, no conversation; it is never detected
================== =========================================================================================

``columns`` maps these names to the file's own: ``{completion: canonical_solution}``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from streamsft.errors import ConfigError, DataError
from streamsft.text.cells import listed, optional_list, renamed, text_of
from streamsft.text.conversation import REASONS, Conversation, Pair, RowRejected
from streamsft.text.messages import clean_message, clean_tools, drop_padding, tool_call
from streamsft.text.plainrows import TEXT, PlainRows
from streamsft.text.preference import PREFERENCE, PreferenceRows

__all__ = ["FORMATS", "REASONS", "Conversation", "RowRejected", "detect_format", "parser"]

Row = Mapping[str, Any]
Parser = Callable[[Row], Conversation | Pair]

SHAREGPT_ROLES: Final = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
    "observation": "tool",
    "function_response": "tool",
    "tool_response": "tool",
    "tool": "tool",
}
_CALLS = frozenset({"function_call", "tool_call"})


def _messages(row: Row) -> list[Any]:
    return listed(row, _first(row, ("messages", "conversations", "conversation")))


def _sharegpt(row: Row) -> list[Any]:
    column = _first(row, ("conversations", "conversation", "messages"))
    return [_turn(item, index) for index, item in enumerate(listed(row, column))]


def _turn(item: object, index: int) -> dict[str, Any]:
    if not isinstance(item, Mapping):
        raise RowRejected("bad_role", f"message {index} is a {type(item).__name__}, not an object with from and value")
    source = item.get("from")
    if not isinstance(source, str) or source not in SHAREGPT_ROLES:
        raise RowRejected("bad_role", f"message {index} is from {source!r}; known are {', '.join(SHAREGPT_ROLES)}")
    message = {key: value for key, value in item.items() if key not in ("from", "value")}
    message["role"] = SHAREGPT_ROLES[source]
    value = item.get("value")
    if source not in _CALLS:
        message["content"] = value
        return message
    message["content"] = ""
    message["tool_calls"] = _calls(value, index)
    return message


def _calls(value: object, index: int) -> list[dict[str, Any]]:
    """The tool calls in the value of a ShareGPT ``function_call`` turn: an object or a list, usually as JSON text."""
    decoded = value
    if isinstance(value, str):
        try:
            decoded = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise RowRejected("bad_tool_call", f"message {index}: the function call is not JSON: {error}") from error
    calls = decoded if isinstance(decoded, (list, tuple)) else [decoded]
    if not calls:
        raise RowRejected("bad_tool_call", f"message {index}: an empty list of function calls")
    return [tool_call(call, index) for call in calls]


def _alpaca(row: Row) -> list[Any]:
    messages: list[Any] = []
    for pair in optional_list(row, "history"):
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise RowRejected("bad_content", "history must be a list of [question, answer] pairs")
        messages += [_user(pair[0]), _assistant(pair[1])]
    question = text_of(row, "instruction")
    given = row.get("input")
    if given is not None and not isinstance(given, str):
        raise RowRejected("bad_content", f"input is a {type(given).__name__}, not a text")
    if given and given.strip():
        question = f"{question}\n\n{given}" if question else given
    answer = text_of(row, "output" if row.get("output") is not None else _first(row, ("output", "response")))
    return [*messages, _user(question), _assistant(answer)]


def _prompt_completion(row: Row) -> list[Any]:
    messages: list[Any] = []
    for column, role in (("prompt", "user"), ("completion", "assistant")):
        value = row.get(column)
        if isinstance(value, (list, tuple)):
            messages += map(_context, value) if column == "prompt" else value
        else:
            messages.append({"role": role, "content": text_of(row, column)})
    return messages


def _context(item: Any) -> Any:
    """A message of a prompt, which is never trained on."""
    if not isinstance(item, Mapping):
        return item
    return {**{key: value for key, value in item.items() if key != "weight"}, "train": False}


def _question_answer(row: Row) -> list[Any]:
    return [_user(text_of(row, "question")), _assistant(text_of(row, "answer"))]


_PARSERS: Final[dict[str, Callable[[Row], list[Any]]]] = {
    "messages": _messages,
    "sharegpt": _sharegpt,
    "alpaca": _alpaca,
    "prompt_completion": _prompt_completion,
    "question_answer": _question_answer,
}
_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "messages": ("messages", "tools", "system"),
    "sharegpt": ("conversations", "tools", "system"),
    "alpaca": ("instruction", "input", "output", "history", "tools", "system"),
    "prompt_completion": ("prompt", "completion", "tools", "system"),
    "question_answer": ("question", "answer", "tools", "system"),
    PREFERENCE: ("chosen", "rejected", "prompt", "tools", "system"),
    TEXT: (TEXT,),
}
FORMATS: Final = (*_PARSERS, PREFERENCE)
"""Names of the formats of conversations and pairs of them, in the order in which detection prefers them."""


def parser(format: str, columns: Mapping[str, str] | None = None, *, columnar: bool = False) -> Parser:  # noqa: A002
    """A function from one row to its `Conversation`, or `Pair` of them, which raises `RowRejected`. It can be pickled.

    Args:
        format: one of `FORMATS`, or ``text``, whose one message has that role.
        columns: from a name in the format to the file's own name of that column.
        columnar: the rows come from Parquet, Arrow or `datasets`, whose structs are padded with nulls: null
            entries of objects are dropped at every depth. JSON rows keep the nulls in tools and arguments.

    Raises:
        ConfigError: the format is not known, or `columns` names something it does not have.
    """
    if format not in _FIELDS:
        raise ConfigError(f"format {format!r} is not known; use one of {', '.join(_FIELDS)}")
    for name in columns or {}:
        if name not in _FIELDS[format]:
            raise ConfigError(
                f"columns: {name!r} is not a column of format {format!r}; it has {', '.join(_FIELDS[format])}"
            )
    if format == TEXT:
        return PlainRows((columns or {}).get(TEXT, TEXT))
    if format == PREFERENCE:
        return PreferenceRows(_Parse("prompt_completion", {}, columnar), columns or {})
    return _Parse(format, dict(columns or {}), columnar)


class _Parse:
    """A parser with its settings, as an object so that it can be sent to other processes."""

    def __init__(self, format: str, columns: dict[str, str], columnar: bool) -> None:  # noqa: A002
        self._format = format
        self._columns = columns
        self._columnar = columnar

    def __call__(self, row: Row) -> Conversation:
        if not isinstance(row, Mapping):
            raise RowRejected("bad_row", f"the row is a {type(row).__name__}, not an object")
        if self._columns:
            row = renamed(row, self._columns)
        if self._columnar:
            row = drop_padding(row)
        raw = _PARSERS[self._format](row)
        if not raw:
            raise RowRejected("empty_conversation", "the list of messages is empty")
        cleaned = [clean_message(item, index) for index, item in enumerate(raw)]
        messages = [message for message, _ in cleaned]
        flags = [flag for _, flag in cleaned]
        if _add_system(row, messages):
            flags.insert(0, None)
        tools = row.get("tools")
        return Conversation(messages, clean_tools(row.get("functions") if tools is None else tools), flags)


def _add_system(row: Row, messages: list[dict[str, Any]]) -> bool:
    """Put the system column in front unless it is blank or already there; whether it was put."""
    system = row.get("system")
    if system is None:
        return False
    if not isinstance(system, str):
        raise RowRejected("bad_content", f"system is a {type(system).__name__}, not a text")
    if not system.strip():
        return False
    first = messages[0]
    if first["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
        return True
    if first["content"] != system:
        raise RowRejected("two_systems", "the system column and the first message differ")
    return False


def detect_format(rows: Sequence[Row], columns: Mapping[str, str] | None = None) -> str:
    """The format that most of `rows` have.

    Raises:
        DataError: none of the rows has the columns of a known format; the message lists what was seen.
    """
    objects = [renamed(row, columns or {}) for row in rows if isinstance(row, Mapping)]
    votes = {name: sum(_has(name, row) for row in objects) for name in FORMATS}
    best = max(votes, key=lambda name: votes[name])
    if votes[best]:
        return best
    seen = sorted({str(key) for row in objects for key in row})
    raise DataError(
        f"no known format has the columns {', '.join(seen) or '(none)'}; formats are {', '.join(FORMATS)}: "
        "name one with `format`, and with `columns` which column is which; plain text is `format: text`"
    )


def _has(format: str, row: Row) -> bool:  # noqa: A002
    if format in ("messages", "sharegpt"):
        key = "role" if format == "messages" else "from"
        for column in ("messages", "conversations", "conversation"):
            items = row.get(column)
            if isinstance(items, (list, tuple)) and items and isinstance(items[0], Mapping) and key in items[0]:
                return True
        return False
    if format == "alpaca":
        return "instruction" in row and ("output" in row or "response" in row)
    return all(name in row for name in _FIELDS[format][:2])


def _first(row: Row, names: Sequence[str]) -> str:
    """The first of `names` that has a value, else the first that is there at all."""
    return next((name for name in names if row.get(name) is not None), next(filter(row.__contains__, names), names[0]))


def _user(content: object) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _assistant(content: object) -> dict[str, Any]:
    return {"role": "assistant", "content": content}
