"""Rows of every format to conversations, and what is rejected on the way."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from streamsft.errors import ConfigError, DataError
from streamsft.text.formats import FORMATS, REASONS, Conversation, RowRejected, detect_format, parser

REAL = {
    "gsm8k/train.jsonl": ("question_answer", 7473),
    "gpteacher/toolformer-dedupe-only-dataset.json": ("alpaca", 7673),
    "glaive_toolcall/glaive_toolcall_en_demo.json": ("sharegpt", 300),
    "fastchat/dummy_conversation.json": ("sharegpt", 500),
    "lf_identity/identity.json": ("alpaca", 91),
    "openai_cookbook/drone_training.jsonl": ("messages", 103),
    "openai_cookbook/toy_chat_fine_tuning.jsonl": ("messages", 5),
}


def read(path: Path) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    rows: list[dict[str, Any]] = json.loads(text)
    return rows


def shown(conversation: Conversation) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in conversation.messages]


def reason(row: Any, format: str = "messages") -> str:  # noqa: A002
    with pytest.raises(RowRejected) as caught:
        parser(format)(row)
    assert caught.value.reason in REASONS
    assert caught.value.detail
    return caught.value.reason


@pytest.mark.parametrize("name", REAL)
def test_real_files_are_detected_and_every_row_parses(name: str, test_data: Path) -> None:
    rows = read(test_data / name)
    format_, count = REAL[name]
    assert detect_format(rows[:10]) == detect_format(rows) == format_
    conversations = [parser(format_)(row) for row in rows]
    assert len(conversations) == count
    assert all(any(message["role"] == "assistant" for message in c.messages) for c in conversations)


@pytest.mark.parametrize("name", ["fastchat/mt_bench_question.jsonl", "openassistant/en_100_tree.jsonl"])
def test_a_file_of_no_known_format_says_its_columns_and_the_formats(name: str, test_data: Path) -> None:
    rows = read(test_data / name)
    with pytest.raises(DataError) as caught:
        detect_format(rows)
    assert all(known in str(caught.value) for known in [*FORMATS, *rows[0]])


def test_detection_goes_by_the_majority_and_survives_strange_rows() -> None:
    rows: list[Any] = [{"text": "x"}, None, {"question": "q", "answer": "a"}, {"question": "q", "answer": None}]
    assert detect_format(rows) == "question_answer"
    with pytest.raises(DataError, match="none"):
        detect_format([])


@pytest.mark.parametrize(
    ("row", "format_"),
    [
        ({"messages": [{"role": "user", "content": "x"}], "prompt": "p", "completion": "c"}, "messages"),
        ({"conversations": [{"role": "user", "content": "x"}]}, "messages"),
        ({"conversations": [{"from": "human", "value": "x"}]}, "sharegpt"),
        ({"instruction": "i", "response": "r"}, "alpaca"),
        ({"prompt": "p", "completion": "c"}, "prompt_completion"),
        ({"question": "q", "answer": "a", "id": 1}, "question_answer"),
    ],
)
def test_each_format_is_detected_by_its_columns(row: dict[str, Any], format_: str) -> None:
    assert detect_format([row]) == format_


def test_messages_under_another_known_column_parse() -> None:
    row = {"conversations": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    assert shown(parser("messages")(row)) == [("user", "q"), ("assistant", "a")]


def test_alpaca_joins_instruction_and_input_and_takes_output_or_response() -> None:
    parse = parser("alpaca")
    assert shown(parse({"instruction": "i", "input": "x", "output": "o"})) == [("user", "i\n\nx"), ("assistant", "o")]
    assert shown(parse({"instruction": "i", "input": " ", "response": "o"})) == [("user", "i"), ("assistant", "o")]
    assert shown(parse({"instruction": "i", "input": None, "output": "o", "history": [["a", "b"]]})) == [
        ("user", "a"),
        ("assistant", "b"),
        ("user", "i"),
        ("assistant", "o"),
    ]


def test_prompt_and_completion_may_be_messages_and_the_prompt_is_never_trained_on() -> None:
    row = {
        "prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 1}],
        "completion": [{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}],
    }
    conversation = parser("prompt_completion")(row)
    assert [content for _, content in shown(conversation)] == ["a", "b", "c", "d"]
    assert conversation.supervise == [False, False, None, None]


def test_columns_map_other_names() -> None:
    columns = {"prompt": "prompt", "completion": "canonical_solution"}
    row = {"prompt": "def f():", "canonical_solution": "    pass", "completion": "wrong"}
    assert detect_format([row], columns) == "prompt_completion"
    assert shown(parser("prompt_completion", columns)(row)) == [("user", "def f():"), ("assistant", "    pass")]
    with pytest.raises(RowRejected, match="missing_column"):
        parser("prompt_completion", columns)({"prompt": "p", "completion": "wrong"})


def test_swapped_columns_are_swapped() -> None:
    parse = parser("question_answer", {"question": "answer", "answer": "question"})
    assert shown(parse({"question": "a", "answer": "q"})) == [("user", "q"), ("assistant", "a")]


def test_unknown_formats_and_columns_are_refused() -> None:
    with pytest.raises(ConfigError, match="sharegpt"):
        parser("chatml")
    with pytest.raises(ConfigError, match="question, answer"):
        parser("question_answer", {"output": "answer"})


def test_parsers_can_be_pickled() -> None:
    parse = pickle.loads(pickle.dumps(parser("question_answer", {"answer": "a"})))
    assert shown(parse({"question": "q", "a": "x"})) == [("user", "q"), ("assistant", "x")]


def test_sharegpt_calls_and_observations_become_tool_messages() -> None:
    call = {"name": "f", "arguments": {"x": None}}
    row = {
        "conversations": [
            {"from": "human", "value": "q"},
            {"from": "function_call", "value": json.dumps(call)},
            {"from": "observation", "value": "{}"},
            {"from": "function_call", "value": json.dumps([call, {"name": "g"}])},
            {"from": "gpt", "value": "a"},
        ],
        "tools": json.dumps([{"name": "f", "parameters": {"default": None}}]),
    }
    conversation = parser("sharegpt")(row)
    assert [role for role, _ in shown(conversation)] == ["user", "assistant", "tool", "assistant", "assistant"]
    assert conversation.messages[1]["tool_calls"] == [{"type": "function", "function": call}]
    assert [c["function"] for c in conversation.messages[3]["tool_calls"]] == [call, {"name": "g", "arguments": {}}]
    assert conversation.tools == [{"type": "function", "function": {"name": "f", "parameters": {"default": None}}}]


def test_the_older_function_call_is_read() -> None:
    row = {
        "messages": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": "1"},
        ],
        "functions": [{"name": "f"}],
    }
    conversation = parser("messages")(row)
    assert conversation.messages[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
    assert conversation.messages[2]["role"] == "tool"
    assert conversation.tools == [{"type": "function", "function": {"name": "f"}}]


U, A = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    ("row", "format_", "verdict"),
    [
        ([1], "messages", "bad_row"),
        (None, "alpaca", "bad_row"),
        ({"instruction": "i"}, "alpaca", "missing_column"),
        ({"instruction": "i", "output": 4}, "alpaca", "bad_content"),
        ({"instruction": "i", "input": ["x"], "output": "o"}, "alpaca", "bad_content"),
        ({"instruction": "i", "output": "o", "history": ["x"]}, "alpaca", "bad_content"),
        ({"question": "q", "answer": None}, "question_answer", "missing_column"),
        ({"prompt": "p", "completion": 1.5}, "prompt_completion", "bad_content"),
        ({"conversations": [{"from": "narrator", "value": "x"}]}, "sharegpt", "bad_role"),
        ({"conversations": [{"value": "x"}]}, "sharegpt", "bad_role"),
        ({"conversations": [{"from": "human", "value": 1}]}, "sharegpt", "bad_content"),
        ({"conversations": [{"from": "function_call", "value": "f(1)"}]}, "sharegpt", "bad_tool_call"),
        ({"conversations": [{"from": "function_call", "value": "[]"}]}, "sharegpt", "bad_tool_call"),
        ({"question": "q", "answer": "a", "tools": "{"}, "question_answer", "bad_tools"),
        ({"question": "q", "answer": "a", "tools": "3"}, "question_answer", "bad_tools"),
        ({"question": "q", "answer": "a", "tools": [{"type": "function"}]}, "question_answer", "bad_tools"),
        ({"question": "q", "answer": "a", "system": 3}, "question_answer", "bad_content"),
        ({"messages": [{"role": "system", "content": "x"}, U], "system": "y"}, "messages", "two_systems"),
    ],
)
def test_verdict_on_a_row(row: Any, format_: str, verdict: str) -> None:
    assert reason(row, format_) == verdict


@pytest.mark.parametrize(
    ("row", "format_", "says"),
    [
        ({"question": None, "answer": "a"}, "question_answer", "column 'question' is null"),
        ({"answer": "a"}, "question_answer", "no column 'question'; the row has answer"),
        ({"messages": None}, "messages", "column 'messages' is null"),
        ({"conversations": None}, "messages", "column 'conversations' is null"),
        ({"id": 1}, "messages", "no column 'messages'; the row has id"),
        ({"instruction": "i", "response": None}, "alpaca", "column 'response' is null"),
    ],
)
def test_a_null_column_is_told_from_a_missing_one(row: Any, format_: str, says: str) -> None:
    with pytest.raises(RowRejected) as caught:
        parser(format_)(row)
    assert caught.value.detail == says


def test_the_system_column_comes_first_and_only_once() -> None:
    row = {"question": "q", "answer": "a", "system": "be brief"}
    conversation = parser("question_answer")(row)
    assert shown(conversation)[0] == ("system", "be brief")
    assert conversation.supervise == [None, None, None]
    same = {"messages": [{"role": "system", "content": "s"}, U, A], "system": "s"}
    assert len(parser("messages")(same).messages) == 3
    assert len(parser("question_answer")({**row, "system": ""}).messages) == 2


@pytest.mark.parametrize("empty", [None, "", "[]", "null", []])
def test_no_tools_in_any_spelling_is_none(empty: Any) -> None:
    assert parser("messages")({"messages": [U, A], "tools": empty}).tools is None


def test_reasoning_goes_by_the_names_that_templates_read() -> None:
    message = parser("messages")({"messages": [U, {**A, "reasoning": "hm"}]}).messages[1]
    assert message["reasoning_content"] == message["thinking"] == "hm"
