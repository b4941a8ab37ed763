"""What `ChatTokenizer` supervises, accepts and rejects, shown on small chats."""

from __future__ import annotations

import json
import pickle
from functools import cache
from typing import Any

import numpy as np
import pytest

from streamsft.errors import ConfigError
from streamsft.text.chat import ChatTokenizer
from streamsft.text.conversation import Conversation, RowRejected
from streamsft.text.formats import parser
from tests.processes import context
from tests.text import tokenizers as made

U, A = {"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": "4."}
V, B = {"role": "user", "content": "And now?"}, {"role": "assistant", "content": "Five."}


@cache
def chat(template: str = made.CHATML, train_on: Any = "assistant") -> ChatTokenizer:
    return ChatTokenizer(made.bpe(template), train_on=train_on)


def encode(using: ChatTokenizer, messages: list[dict[str, Any]], **row: Any) -> Any:
    return using.encode_rows([{"messages": messages, **row}], parser("messages"))[0]


def supervised(using: ChatTokenizer, messages: list[dict[str, Any]], **row: Any) -> list[str]:
    """The runs of supervised tokens, as text."""
    result = encode(using, messages, **row)
    assert not isinstance(result, RowRejected), result
    padded = np.concatenate([[False], result.loss_mask, [False]])
    borders = np.flatnonzero(padded[1:] != padded[:-1]).reshape(-1, 2)
    return [using.decode(result.input_ids[a:b]) for a, b in borders]


def reason(using: ChatTokenizer, messages: list[dict[str, Any]], **row: Any) -> str:
    result = encode(using, messages, **row)
    assert isinstance(result, RowRejected), result
    return result.reason


@pytest.mark.parametrize("template", [made.CHATML, made.CHATML_MARKED, made.CHATML_MARKED_END])
def test_each_answer_and_its_end_mark_are_supervised_and_nothing_else(template: str) -> None:
    assert supervised(chat(template), [U, A, V, B]) == ["4.<|im_end|>", "Five.<|im_end|>"]
    assert supervised(chat(template, "last_assistant"), [U, A, V, B]) == ["Five.<|im_end|>"]


def test_same_words_of_user_and_assistant_are_told_apart() -> None:
    same = [{"role": role, "content": "yes"} for role in ("user", "assistant", "user", "assistant")]
    result = encode(chat(made.PLAIN), same)
    assert supervised(chat(made.PLAIN), same) == [" yes</s>", " yes</s>"]  # the token of the space is on the seam
    assert result.seams == 2
    assert chat(made.PLAIN).decode(result.input_ids) == "USER: yes ASSISTANT: yes</s>USER: yes ASSISTANT: yes</s>"


def test_a_template_that_keeps_only_the_last_reasoning_is_masked_by_what_it_wrote_where_that_is_allowed() -> None:
    think = [
        U,
        {**A, "content": "<think>\nadd\n</think>\n\n4."},
        V,
        {**B, "content": "<think>\nmore\n</think>\n\nFive."},
    ]
    cutting = ChatTokenizer(made.bpe(made.THINKING), left_out="allow")
    assert supervised(cutting, think) == [
        "4.<|im_end|>",
        "<think>\nmore\n</think>\n\nFive.<|im_end|>",
    ]
    assert encode(chat(made.THINKING), think).reason == "text_left_out"
    last = chat(made.THINKING, "last_assistant")
    assert supervised(last, think) == ["<think>\nmore\n</think>\n\nFive.<|im_end|>"]
    assert cutting.fingerprint != chat(made.THINKING).fingerprint


@pytest.mark.parametrize("template", [made.CHATML, made.CHATML_MARKED])
@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_that_the_template_does_not_write_is_not_lost_unsaid(template: str, name: str) -> None:
    turn = {**A, name: "two and two"}
    rejected = encode(chat(template), [U, turn])
    assert rejected.reason == "text_left_out"
    assert "reasoning_content of message 1" in rejected.detail
    assert "text.left_out: allow" in rejected.detail
    assert supervised(ChatTokenizer(made.bpe(template), left_out="allow"), [U, turn]) == ["4.<|im_end|>"]
    assert supervised(chat(template), [U, {**A, name: " \n"}]) == ["4.<|im_end|>"]


def test_white_space_that_the_template_writes_anew_is_nothing_left_out() -> None:
    turn = {**A, "content": "<think>two\nand  two</think>4."}
    assert supervised(chat(made.THINKING), [U, turn]) == ["<think>\ntwo\nand  two\n</think>\n\n4.<|im_end|>"]


def test_only_known_ways_to_treat_what_is_left_out() -> None:
    with pytest.raises(ConfigError, match="left_out: 'drop' is not one of reject, allow"):
        ChatTokenizer(made.bpe(made.CHATML), left_out="drop")  # type: ignore[arg-type]


def test_an_empty_thinking_block_is_supervised_unless_the_prompt_already_holds_it() -> None:
    assert supervised(chat(made.THINKING), [U, A]) == ["<think>\n\n</think>\n\n4.<|im_end|>"]
    off = ChatTokenizer(made.bpe(made.THINKING), chat_template_kwargs={"enable_thinking": False})
    assert supervised(off, [U, A]) == ["4.<|im_end|>"]
    assert reason(off, [U, {**A, "content": "<think>\nadd\n</think>\n\n4."}]) == "span_not_found"


def test_a_prompt_that_opens_the_reasoning_leaves_its_opening_to_the_prompt() -> None:
    template = made.THINKING.replace(
        "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}",
        "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}",
    )
    row = {**A, "reasoning_content": "add"}
    assert supervised(ChatTokenizer(made.bpe(template)), [U, row]) == ["add\n</think>\n\n4.<|im_end|>"]


@pytest.mark.parametrize("batch", [1, 3])
def test_a_token_over_the_seam_is_supervised_and_counted(batch: int) -> None:
    seam = ChatTokenizer(made.seam_bpe())
    row = {"prompt": "Q: ", "completion": "yes"}
    for result in seam.encode_rows([row] * batch, parser("prompt_completion")):
        assert not isinstance(result, RowRejected)
        assert seam.decode(result.input_ids[result.loss_mask]) == ": yes</s>"
        assert result.seams == 1
    assert seam(row)["loss_mask"].tolist() == result.loss_mask.tolist()


def test_flags_of_messages_are_honoured() -> None:
    assert supervised(chat(), [U, {**A, "weight": 0}, V, {**B, "weight": 1}]) == ["Five.<|im_end|>"]
    assert supervised(chat(), [U, {**A, "train": True}, V, {**B, "train": False}]) == ["4.<|im_end|>"]
    assert reason(chat(), [U, {**A, "weight": 0}]) == "nothing_supervised"
    assert reason(chat(train_on="last_assistant"), [U, A, V, {**B, "weight": 0}]) == "nothing_supervised"
    assert supervised(chat(train_on="everything"), [U, {**A, "weight": 0}, V, B]) == [
        f"<|im_start|>user\n{U['content']}<|im_end|>\n<|im_start|>assistant\n",
        f"\n<|im_start|>user\n{V['content']}<|im_end|>\n<|im_start|>assistant\nFive.<|im_end|>\n",
    ]
    assert supervised(chat(train_on="everything"), [{**U, "weight": 0}, A])[0] == "<|im_start|>user\n"


def test_an_empty_turn_that_is_not_trained_on_does_no_harm() -> None:
    empty = {"role": "assistant", "content": ""}
    assert supervised(chat(), [U, {**empty, "weight": 0}, V, B]) == ["Five.<|im_end|>"]
    assert supervised(chat(train_on="last_assistant"), [U, empty, V, B]) == ["Five.<|im_end|>"]


@pytest.mark.parametrize(
    ("messages", "verdict"),
    [
        ([U], "no_assistant_turn"),
        ([{"role": "system", "content": "s"}], "no_assistant_turn"),
        ([U, {"role": "assistant", "content": ""}], "empty_turn"),
        ([U, {"role": "assistant", "content": " \n"}], "empty_turn"),
        ([U, A, V, {"role": "assistant", "content": ""}], "empty_turn"),
        ([U, {"role": "assistant", "content": "a\ud800"}], "bad_unicode"),
        ([{"role": "user", "content": "\udfff"}, A], "bad_unicode"),
        ([U, {"role": "assistant", "content": "a<|im_end|>b"}], "control_token_in_text"),
        ([{"role": "user", "content": "<|im_end|>\n<|im_start|>assistant\nhi"}, A], "control_token_in_text"),
        ([U, {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}], "message_not_rendered"),
    ],
)
def test_verdict_on_a_chat(messages: list[dict[str, Any]], verdict: str) -> None:
    assert reason(chat(), messages) == verdict


def test_chats_without_a_user_and_with_one_at_the_end_are_accepted() -> None:
    assert supervised(chat(), [A]) == ["4.<|im_end|>"]
    assert supervised(chat(), [U, A, V]) == ["4.<|im_end|>"]
    assert supervised(chat(), [A, B]) == ["4.<|im_end|>", "Five.<|im_end|>"]
    assert len(supervised(chat(train_on="everything"), [U])) == 1
    assert len(supervised(chat(made.TRIMMING, "everything"), [{**U, "content": " q "}])) == 1


def test_what_a_template_raises_is_the_reason_of_the_row() -> None:
    result = encode(chat(made.PLAIN), [{"role": "system", "content": "s"}, U, A])
    assert result.reason == "template_error"
    assert "only users and assistants" in result.detail


def test_a_template_that_leaves_a_message_out_rejects_the_row() -> None:
    using = ChatTokenizer(made.deepseek_backend())
    assert reason(using, [{"role": "developer", "content": "be brief"}, U, A]) == "message_not_rendered"


def test_line_separators_and_characters_of_many_bytes_come_through() -> None:
    text = "a\u2028b\u2029c\u0085d 😀\u200d👩 𝔸 e\u0301 \x00"
    assert supervised(chat(), [U, {**A, "content": text}]) == [f"{text}<|im_end|>"]


def _tool_chat(arguments: Any) -> list[dict[str, Any]]:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [U, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "4"}, A]


TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": {"a": {"type": "string", "default": None}}}},
    {"type": "function", "function": {"name": "g", "parameters": {"b": {"type": "integer"}}}},
]


@pytest.mark.parametrize("template", [made.THINKING, made.TRIMMING])
def test_arguments_as_object_or_as_text_give_the_same_tokens(template: str) -> None:
    using = chat(template)
    results = [encode(using, _tool_chat(value), tools=tools) for value in ({"t": "x", "n": None}, '{"t":"x","n":null}')
               for tools in (TOOLS, json.dumps(TOOLS))]  # fmt: skip
    assert all(result.input_ids.tolist() == results[0].input_ids.tolist() for result in results)
    text = using.decode(results[0].input_ids)
    assert '{"t": "x", "n": null}' in text
    assert ('"default": null' in text) == (template == made.THINKING)


def test_a_turn_that_calls_a_tool_ends_with_the_mark_that_the_template_gives_it() -> None:
    assert supervised(chat(made.TRIMMING), _tool_chat({"t": 1})) == [
        '{"name": "f", "parameters": {"t": 1}}<|eom|>',
        "4.<|eot|>",
    ]


def test_a_template_without_a_text_before_the_model_begins_shows_where_it_calls_tools() -> None:
    using = chat(made.BRACKETS)
    assert supervised(using, _tool_chat({"t": 1})) == [
        '[CALLS] [{"name": "f", "arguments": {"t": 1}}]</s>',
        "4.</s>",
    ]
    assert reason(using, [U, V, A]) == "template_error"
    twice = _tool_chat({"t": 1})[:3] + _tool_chat({"t": 2})[1:]
    assert reason(using, twice) == "span_not_found"  # after a result no plain turn shows where this one begins


def test_tools_are_rendered_or_their_absence_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    assert '"name": "g"' in chat(made.THINKING).render(Conversation([U, A], TOOLS)).text
    silent = ChatTokenizer(made.bpe())
    for _ in range(2):
        silent.encode([Conversation([U, A], TOOLS)])
    assert len([record for record in caplog.records if "tool schemas" in record.message]) == 1


@pytest.mark.parametrize("where", ["tools", "name"])
def test_control_tokens_in_tools_and_names_reject_the_row(where: str) -> None:
    tools = json.loads(json.dumps(TOOLS).replace("string", "<|im_end|>")) if where == "tools" else None
    messages = _tool_chat({"t": 1})
    if where == "name":
        messages[1]["tool_calls"][0]["function"]["name"] = "f<|im_end|>"
    assert reason(chat(made.THINKING), messages, tools=tools) == "control_token_in_text"


def test_control_tokens_in_arguments_reject_the_row() -> None:
    assert reason(chat(made.THINKING), _tool_chat({"t": "<|im_end|>"})) == "control_token_in_text"
    assert reason(chat(made.THINKING), _tool_chat({"<|im_start|>": 1})) == "control_token_in_text"


def test_results_keep_their_places_among_rejections() -> None:
    earlier = RowRejected("bad_row", "line 3")
    results = chat().encode([earlier, Conversation([U, A]), Conversation([U]), Conversation([V, B]), Conversation([])])
    assert results[0] is earlier
    assert [getattr(result, "reason", None) for result in results] == [
        "bad_row",
        None,
        "no_assistant_turn",
        None,
        "empty_conversation",
    ]
    assert chat().encode([]) == []


def test_one_bad_text_does_not_harm_its_batch() -> None:
    bad = Conversation([U, {"role": "assistant", "content": "\ud83d"}])
    alone = chat().encode([Conversation([U, A])])[0]
    among = chat().encode([bad, Conversation([U, A]), bad])[1]
    assert not isinstance(alone, RowRejected)
    assert not isinstance(among, RowRejected)
    assert among.input_ids.tolist() == alone.input_ids.tolist()


def test_a_call_takes_a_row_of_any_format() -> None:
    using = chat()
    rows = [{"messages": [U, A]}, {"question": U["content"], "answer": A["content"]}]
    first, second = (using(row) for row in rows)
    assert first["input_ids"].tolist() == second["input_ids"].tolist()
    assert set(first) == {"input_ids", "loss_mask"}
    with pytest.raises(RowRejected, match="no_assistant_turn"):
        using({"messages": [U]})
    mapped = ChatTokenizer(made.bpe(), format="question_answer", columns={"answer": "gold"})
    assert mapped({"question": "q", "gold": "a", "answer": 3})["loss_mask"].any()


def _digest_in_a_process(using: ChatTokenizer) -> tuple[str, list[int], list[bool]]:
    result = using({"messages": [U, A]})
    return using.fingerprint, result["input_ids"].tolist(), result["loss_mask"].tolist()


def test_a_tokenizer_goes_to_another_process_and_gives_the_same_there() -> None:
    using = chat(made.THINKING)
    using({"messages": [U, A]})
    assert _digest_in_a_process(pickle.loads(pickle.dumps(using))) == _digest_in_a_process(using)
    with context().Pool(1) as pool:
        assert pool.apply(_digest_in_a_process, (using,)) == _digest_in_a_process(using)
