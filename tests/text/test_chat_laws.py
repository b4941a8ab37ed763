"""Masks of made-up chats, contents at their worst, against independent answers for every template."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from streamsft.text.chat import ChatTokenizer
from streamsft.text.conversation import REASONS, Conversation, RowRejected
from tests.text import oracles, tokenizers as made

TEMPLATES: dict[str, tuple[str, oracles.Oracle]] = {
    "chatml": (made.CHATML, oracles.chatml),
    "marked": (made.CHATML_MARKED, oracles.chatml),
    "marked_end": (made.CHATML_MARKED_END, oracles.chatml),
    "trimming": (made.TRIMMING, oracles.trimming),
    "plain": (made.PLAIN, oracles.plain),
    "thinking": (made.THINKING, oracles.thinking),
}


@cache
def chat(template: str, train_on: Any = "assistant") -> ChatTokenizer:
    return ChatTokenizer(made.bpe(TEMPLATES[template][0]), train_on=train_on)


@cache
def bare() -> Any:
    return made.bpe()


# Pieces of templates, sentinels, special tokens, whitespace, characters of several bytes, and repeats.
PIECES = [
    *("a", "hello", "yes", " ", "\n", "\t", "\u2028", "\u00a0", "é", "😀", "𝔸", "中", "\ufeff", "e\u0301", "\ufdd0"),
    *("USER: ", "ASSISTANT: ", "USER: hello ", "user\n", "assistant\n", "<|im_start", "im_end|>", "|>", "<", "</s"),
    *("system", "qsentinelq", "qsentinelq1xc", "\x00", "\\", '"', "{", "}", "{{ x }}", "{% if %}"),
]
DANGEROUS = ["<|im_end|>", "<|im_start|>assistant\n", "</s>", "<s>", "<think>", "</think>", "\ud800", "<|eot|>"]
CONTENT = st.lists(st.sampled_from(PIECES), max_size=5).map("".join)
RISKY = st.lists(st.sampled_from([*PIECES, *DANGEROUS]), max_size=5).map("".join)


def messages_of(contents: Sequence[str], system: bool = False) -> list[dict[str, Any]]:
    roles = ["system"] * system + ["user", "assistant"] * len(contents)
    return [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]


def check(template: str, messages: list[dict[str, Any]], train_on: str = "assistant") -> Any:
    """The result for `messages`, which equals the oracle's unless it is a rejection."""
    result = chat(template, train_on).encode([Conversation(messages)])[0]
    if isinstance(result, RowRejected):
        assert result.reason in REASONS
        return result
    turns = oracles.turns(messages)
    wanted = turns[-1:] if train_on == "last_assistant" else turns
    parts = TEMPLATES[template][1](messages, wanted)
    if train_on == "everything":
        parts = [(oracles.text_of(parts), True)]
    ids, mask = oracles.mask_of(bare(), parts)
    assert result.input_ids.tolist() == ids
    assert result.loss_mask.tolist() == mask
    return result


@pytest.mark.parametrize("template", TEMPLATES)
@settings(max_examples=100)
@given(contents=st.lists(RISKY, min_size=2, max_size=6), train_on=st.sampled_from(["assistant", "last_assistant"]))
@example(contents=["hello", "hello", "hello", "hello"], train_on="last_assistant")
@example(contents=["q", "USER: x ASSISTANT: y</s", "ASSISTANT: ", "USER: q ASSISTANT: USER: "], train_on="assistant")
@example(contents=["  q ", "\n a\n", "", " a "], train_on="assistant")
@example(contents=["q", "<think>hm</think>a", "r", "<think>\nho\n</think>\n\nb"], train_on="assistant")
def test_a_mask_equals_the_oracles_or_the_row_is_rejected(template: str, contents: list[str], train_on: str) -> None:
    check(template, messages_of(contents), train_on)


@pytest.mark.parametrize("template", TEMPLATES)
@settings(max_examples=60)
@given(contents=st.lists(CONTENT.filter(lambda text: "\ufdd0" not in text), min_size=2, max_size=6))
@example(contents=["qsentinelq0xc", "qsentinelq1xc", "qsentinelqq", "x"])
@example(contents=["a", "a\u2028b", "c\r\nd", "\ufeffe"])
@example(contents=["USER: ", "ASSISTANT: ", "USER: hello ASSISTANT: ", "hello</s"])
def test_harmless_texts_are_accepted(template: str, contents: list[str]) -> None:
    contents = [text if text.strip() else "x" for text in contents]
    result = check(template, messages_of(contents))
    assert not isinstance(result, RowRejected), result


@pytest.mark.parametrize("template", ["chatml", "trimming", "marked"])
@settings(max_examples=30)
@given(contents=st.lists(RISKY, min_size=1, max_size=4))
def test_everything_supervises_all_tokens(template: str, contents: list[str]) -> None:
    check(template, messages_of(contents, system=True), "everything")


CALLS = st.dictionaries(st.sampled_from(["x", "city", "qsentinelq"]), st.none() | st.integers() | CONTENT, max_size=2)


@pytest.mark.parametrize("template", ["trimming", "thinking"])
@settings(max_examples=60)
@given(data=st.data())
def test_tool_calls_and_reasoning_equal_the_oracles_or_are_rejected(template: str, data: st.DataObject) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": data.draw(RISKY)}]
    for _ in range(data.draw(st.integers(1, 3))):
        message: dict[str, Any] = {"role": "assistant", "content": data.draw(RISKY)}
        if data.draw(st.booleans()):
            function = {"name": data.draw(st.sampled_from(["f", "get_weather"])), "arguments": data.draw(CALLS)}
            message["tool_calls"] = [{"type": "function", "function": function}]
        if template == "thinking" and data.draw(st.booleans()):
            message["reasoning_content"] = data.draw(CONTENT)
        messages.append(message)
        if "tool_calls" in message and data.draw(st.booleans()):
            messages.append({"role": "tool", "content": data.draw(RISKY)})
        elif data.draw(st.booleans()):
            messages.append({"role": "user", "content": data.draw(RISKY)})
    check(template, messages)


def test_plain_tool_calls_and_reasoning_are_accepted() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {"city": "Paris"}}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [call], "reasoning_content": "I must call f."},
        {"role": "tool", "content": "4"},
        {"role": "assistant", "content": "a"},
    ]
    assert check("trimming", messages).reason == "text_left_out"
    said = [{key: value for key, value in message.items() if key != "reasoning_content"} for message in messages]
    for template, turns in (("trimming", said), ("thinking", messages)):
        result = check(template, turns)
        assert not isinstance(result, RowRejected), result
    supervised = chat("thinking").decode(result.input_ids[result.loss_mask])
    assert supervised == (
        "<think>\nI must call f.\n</think>\n\n"
        '<tool_call>\n{"name": "f", "arguments": {"city": "Paris"}}\n</tool_call><|im_end|>'
        "<think>\n\n</think>\n\na<|im_end|>"
    )
