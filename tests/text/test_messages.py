"""Messages, tool calls and tool schemas: what is accepted, in which form, and what is rejected."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from streamsft.text.formats import FORMATS, RowRejected, parser

CALL = {"function": {"name": "f", "arguments": "{}"}}
U, A = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}

VERDICTS: list[tuple[Any, str | None]] = [
    ([], "empty_conversation"),
    (None, "missing_column"),
    ("hello", "bad_content"),
    ([{}], "bad_role"),
    ([None], "bad_role"),
    (["q", "a"], "bad_role"),
    ([{"content": "q"}, A], "bad_role"),
    ([U, {"role": "Assistant", "content": "a"}], "bad_role"),
    ([U, {"role": None, "content": "a"}], "bad_role"),
    ([{"role": ["user"], "content": "q"}, A], "bad_role"),
    ([U, {"role": "assistant"}], "bad_content"),
    ([U, {"role": "assistant", "content": None}], "bad_content"),
    ([{"role": "user", "content": None}, A], "bad_content"),
    ([U, {"role": "assistant", "content": 4}], "bad_content"),
    ([U, {"role": "assistant", "content": {"text": "a"}}], "bad_content"),
    ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}, A], "bad_content"),
    ([U, {"role": "assistant", "content": None, "tool_calls": []}], "bad_content"),
    ([U, {"role": "assistant", "tool_calls": [CALL]}], None),
    ([U, {"role": "assistant", "content": None, "tool_calls": [CALL]}], None),
    ([{**U, "tool_calls": [CALL]}, A], "bad_tool_call"),
    ([U, {**A, "tool_calls": "f()"}], "bad_tool_call"),
    ([U, {**A, "tool_calls": [{"function": {"arguments": "{}"}}]}], "bad_tool_call"),
    ([U, {**A, "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}], "bad_tool_call"),
    ([U, {**A, "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}], "bad_tool_call"),
    ([U, {**A, "tool_calls": [{"function": {"name": "f", "arguments": '{"x": NaN}'}}]}], "bad_tool_call"),
    ([U, {**A, "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}], "bad_tool_call"),
    ([U, {**A, "tool_calls": [{"function": {"name": "f", "arguments": ""}}]}], None),
    ([{"role": "user", "content": [{"type": "text", "text": "q"}, "r"]}, A], None),
    ([{"role": "user", "content": ""}, A], None),
    ([U, {**A, "weight": 0.5}], "bad_flag"),
    ([U, {**A, "train": "yes"}], "bad_flag"),
    ([U, {**A, "train": True, "weight": 0}], "bad_flag"),
    ([{**U, "weight": 1}, A], "bad_flag"),
    ([U, {**A, "trainable": False, "loss": True}], "bad_flag"),
    ([U, {**A, "trainable": False}, {**A, "loss": True}], None),
    ([{**U, "weight": 0}, {**A, "weight": 1.0}], None),
    ([A], None),
    ([U], None),
]


@pytest.mark.parametrize(("messages", "verdict"), VERDICTS)
def test_verdict_on_a_list_of_messages(messages: Any, verdict: str | None) -> None:
    row = {"messages": messages}
    if verdict is None:
        assert all(isinstance(message["content"], str) for message in parser("messages")(row).messages)
    else:
        with pytest.raises(RowRejected) as caught:
            parser("messages")(row)
        assert caught.value.reason == verdict


TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": {"properties": {"t": {"type": "string"}}}}},
    {"type": "function", "function": {"name": "g", "parameters": {"properties": {"n": {"type": "integer"}}}}},
]


def _calls(*arguments: Any) -> dict[str, Any]:
    calls = [{"type": "function", "function": {"name": "f", "arguments": value}} for value in arguments]
    return {"messages": [U, {"role": "assistant", "content": None, "tool_calls": calls}], "tools": TOOLS}


def test_nulls_that_columnar_files_pad_structs_with_are_dropped() -> None:
    datasets = pytest.importorskip("datasets")
    row = _calls({"t": "x"}, {"n": 1})
    padded = datasets.Dataset.from_list([row])[0]
    assert padded["tools"][0]["function"]["parameters"]["properties"].get("n", 0) in (None, 0)
    parsed, original = parser("messages", columnar=True)(padded), parser("messages")(row)
    assert parsed.messages == original.messages
    assert parsed.tools == original.tools


def test_tools_and_arguments_as_json_text_come_through_a_columnar_file_unchanged() -> None:
    datasets = pytest.importorskip("datasets")
    row = _calls('{"t": null}', '{"n": 1}')
    tools = [{**TOOLS[0], "default": None}, TOOLS[1]]
    row["tools"] = json.dumps(tools)
    stored = datasets.Dataset.from_list([row])[0]
    parsed = parser("messages", columnar=True)(stored)
    assert parsed.tools == tools
    assert [c["function"]["arguments"] for c in parsed.messages[1]["tool_calls"]] == ['{"t": null}', '{"n": 1}']


def test_nulls_of_json_rows_are_meant() -> None:
    row = _calls({"t": None})
    row["tools"] = [{**TOOLS[0], "default": None}]
    parsed = parser("messages")(row)
    assert parsed.messages[1]["tool_calls"][0]["function"]["arguments"] == {"t": None}
    assert parsed.tools == row["tools"]


_WORDS = (  # keys that some format reads
    "messages conversations role content from value tool_calls function name arguments instruction output input "
    "history prompt completion question answer system tools functions weight train type text reasoning function_call"
)
_KEYS = st.sampled_from(_WORDS.split())
_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
_TEXTS = st.sampled_from(["user", "assistant", "gpt", "human", "function_call", '{"name": "f"}', "[]", "text"])
_JSON = st.recursive(
    _SCALARS | _TEXTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner), max_leaves=12
)


@settings(max_examples=150)
@given(row=st.dictionaries(_KEYS, _JSON) | _JSON, columnar=st.booleans())
def test_any_row_gives_a_conversation_or_a_reason(row: Any, columnar: bool) -> None:
    for name in FORMATS:
        try:
            conversation = parser(name, columnar=columnar)(row)
        except RowRejected:
            continue
        assert conversation.messages
        assert len(conversation.messages) == len(conversation.supervise)
        assert all(isinstance(message["content"], str) for message in conversation.messages)
