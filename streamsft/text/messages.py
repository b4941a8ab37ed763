"""Messages, tool calls and tool schemas, checked and brought into one form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeGuard

from streamsft.text.conversation import RowRejected

__all__ = ["clean_message", "clean_tools", "decode_object", "drop_padding", "tool_call"]

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
FLAGS = ("weight", "train", "trainable", "loss")
REASONING = ("reasoning_content", "thinking", "reasoning")


def clean_message(raw: object, index: int) -> tuple[dict[str, Any], bool | None]:
    """Message number `index` in the OpenAI form, and its flag.

    Null keys are dropped, ``content: null`` becomes '', text parts are joined, the older ``function_call`` and
    role ``function`` become tool calls and role ``tool``.

    Raises:
        RowRejected: bad_role, bad_content, bad_tool_call or bad_flag.
    """
    if _is_clean(raw):
        return dict(raw), None
    if not isinstance(raw, Mapping):
        raise RowRejected("bad_role", f"message {index} is {_kind(raw)}, not an object with role and content")
    message = {key: value for key, value in raw.items() if value is not None}
    flags = {key: message.pop(key) for key in FLAGS if key in message}
    flag = _flag(flags, index)
    role = message.get("role")
    if role == "function":
        role = message["role"] = "tool"
    if not isinstance(role, str) or role not in ROLES:
        raise RowRejected("bad_role", f"message {index} has role {role!r}; known are {', '.join(sorted(ROLES))}")
    if flag and role != "assistant":
        given = ", ".join(f"{key} {value!r}" for key, value in flags.items())
        raise RowRejected(
            "bad_flag", f"message {index} of role {role!r} has {given}; only the assistant's turns can be trained on"
        )
    if "function_call" in message:
        message.setdefault("tool_calls", [message["function_call"]])
        del message["function_call"]
    if "tool_calls" in message:
        message["tool_calls"] = _tool_calls(message["tool_calls"], role, index)
        if not message["tool_calls"]:
            del message["tool_calls"]
    _alias_reasoning(message, index)
    message["content"] = _content(message, index)
    return message, flag


def _is_clean(raw: object) -> TypeGuard[dict[str, Any]]:
    """Whether a message is of the usual kind: a role, a text as content, and nothing else."""
    if type(raw) is not dict or len(raw) != 2 or type(raw.get("content")) is not str:
        return False
    role = raw.get("role")
    return type(role) is str and role in ROLES


def _flag(flags: Mapping[str, Any], index: int) -> bool | None:
    for key, value in flags.items():
        if not isinstance(value, (bool, int, float)) or value not in (0, 1):
            raise RowRejected("bad_flag", f"message {index} has {key} {value!r}; it can be 0 or 1")
    found = {bool(value) for value in flags.values()}
    if len(found) > 1:
        raise RowRejected("bad_flag", f"message {index} has flags {' and '.join(flags)} that differ")
    return found.pop() if found else None


def _content(message: Mapping[str, Any], index: int) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None:
        if "tool_calls" in message:
            return ""
        raise RowRejected("bad_content", f"message {index} ({message['role']}) has no content and calls no tool")
    if isinstance(content, (list, tuple)):
        return "".join(_part(part, index) for part in content)
    raise RowRejected("bad_content", f"message {index} ({message['role']}) has {_kind(content)} as content")


def _part(part: object, index: int) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and part.get("type", "text") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    what = repr(part.get("type")) if isinstance(part, Mapping) else _kind(part)
    raise RowRejected("bad_content", f"message {index} has a content part of type {what}; only text can be trained on")


def _alias_reasoning(message: dict[str, Any], index: int) -> None:
    """Give the template the reasoning under the names that templates read, whichever the row used."""
    name = next((key for key in REASONING if key in message), None)
    if name is None:
        return
    if not isinstance(message[name], str):
        raise RowRejected("bad_content", f"message {index} has {_kind(message[name])} as {name}")
    message["reasoning_content"] = message[name]
    message.setdefault("thinking", message[name])


def _tool_calls(raw: object, role: str, index: int) -> list[dict[str, Any]]:
    if not isinstance(raw, (list, tuple)):
        raise RowRejected("bad_tool_call", f"message {index}: tool_calls is {_kind(raw)}, not a list")
    if raw and role != "assistant":
        raise RowRejected("bad_tool_call", f"message {index} of role {role!r} calls tools; only the assistant can")
    return [tool_call(item, index) for item in raw]


def tool_call(raw: object, index: int) -> dict[str, Any]:
    """One tool call of message `index` as ``{"type": "function", "function": {"name", "arguments"}, ...}``.

    Arguments stay as given: a dict, or a str that holds a JSON object ('' is read as no arguments).

    Raises:
        RowRejected: bad_tool_call.
    """
    call = {key: value for key, value in raw.items() if value is not None} if isinstance(raw, Mapping) else {}
    inner = call.get("function")
    if isinstance(inner, Mapping):
        function = dict(inner)
    else:
        function = {key: call.pop(key) for key in ("name", "arguments") if key in call}
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise RowRejected("bad_tool_call", f"message {index}: a tool call without a name")
    arguments = function.get("arguments")
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        function["arguments"] = {}
    elif isinstance(arguments, str):
        decode_object(arguments, f"message {index}: the arguments of {name!r}")
    elif not isinstance(arguments, Mapping):
        raise RowRejected("bad_tool_call", f"message {index}: the arguments of {name!r} are {_kind(arguments)}")
    return {**call, "type": call.get("type", "function"), "function": function}


def decode_object(text: str, what: str) -> dict[str, Any]:
    """The JSON object in `text`.

    Raises:
        RowRejected: bad_tool_call, when `text` is not JSON (NaN and Infinity are not) or not an object.
    """
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RowRejected("bad_tool_call", f"{what} are not JSON: {error}") from error
    if not isinstance(value, dict):
        raise RowRejected("bad_tool_call", f"{what} are {_kind(value)}, not an object")
    return value


def clean_tools(raw: object) -> list[dict[str, Any]] | None:
    """Tool schemas from a list or from JSON text, each as ``{"type": "function", "function": {...}}``.

    A schema that is only the inner object (with a ``name``) is wrapped. None, '' and an empty list mean no tools.

    Raises:
        RowRejected: bad_tools.
    """
    value = _decoded(raw)
    if value is None or value == [] or value == ():
        return None
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, (list, tuple)):
        raise RowRejected("bad_tools", f"tools are {_kind(value)}, not a list")
    tools = []
    for number, item in enumerate(value):
        tool = _decoded(item)
        if not isinstance(tool, Mapping):
            raise RowRejected("bad_tools", f"tool {number} is {_kind(tool)}, not an object")
        if isinstance(tool.get("function"), Mapping):
            tools.append(dict(tool))
        elif isinstance(tool.get("name"), str):
            tools.append({"type": "function", "function": dict(tool)})
        else:
            raise RowRejected("bad_tools", f"tool {number} has neither a function nor a name")
    return tools


def _decoded(raw: object) -> object:
    """`raw`, or what its JSON text says when it is a str; blank text means None."""
    if not isinstance(raw, str):
        return raw
    if not raw.strip():
        return None
    try:
        value: object = json.loads(raw, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RowRejected("bad_tools", f"the tools column is not JSON: {error}") from error
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def drop_padding(value: Any) -> Any:
    """`value` without the null entries of its objects, at every depth; nulls inside lists stay.

    A columnar file gives every struct all fields that any row had, filled with nulls. It cannot say which nulls
    were in the row, so all go; a row whose nulls matter keeps them by storing such objects as JSON text.
    """
    if isinstance(value, Mapping):
        return {key: drop_padding(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [drop_padding(item) for item in value]
    return value


def _kind(value: object) -> str:
    return "null" if value is None else f"a value of type {type(value).__name__}"
