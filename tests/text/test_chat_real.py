"""Masks of real rows with a real tokenizer against a check of every token by character ranges."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from streamsft.text.chat import ChatTokenizer
from streamsft.text.formats import RowRejected, detect_format, parser
from tests.text import oracles
from tests.text.test_formats import REAL, read
from tests.text.tokenizers import deepseek, deepseek_backend

ROWS = 50


@cache
def chat(train_on: str) -> ChatTokenizer:
    return ChatTokenizer(deepseek_backend(), train_on=train_on)  # type: ignore[arg-type]


@pytest.mark.parametrize("train_on", ["assistant", "last_assistant", "everything"])
@pytest.mark.parametrize("name", REAL)
def test_masks_of_real_rows_equal_a_check_by_character_ranges(name: str, train_on: str, test_data: Path) -> None:
    tokenizer = deepseek()
    rows = read(test_data / name)
    step = max(1, len(rows) // ROWS)
    rows = rows[::step][:ROWS]
    parse = parser(detect_format(rows))
    checked = 0
    for row, encoded in zip(rows, chat(train_on).encode_rows(rows, parse), strict=True):
        conversation = parse(row)
        turns = oracles.turns(conversation.messages)
        wanted = turns[-1:] if train_on == "last_assistant" else turns
        parts = oracles.deepseek(conversation.messages, wanted)
        if parts is None:
            assert isinstance(encoded, RowRejected)
            assert encoded.reason == "span_not_found"
            continue
        assert not isinstance(encoded, RowRejected), encoded
        if train_on == "everything":
            parts = [(oracles.text_of(parts), True)]
        ids, mask = oracles.mask_of(tokenizer, parts)
        assert encoded.input_ids.tolist() == ids
        assert encoded.loss_mask.tolist() == mask
        assert encoded.input_ids.dtype == np.int32
        assert encoded.loss_mask.dtype == np.bool_
        assert encoded.seams == 0
        if train_on != "everything":
            supervised = tokenizer.decode(encoded.input_ids[encoded.loss_mask])
            assert supervised == "".join(text for text, written in parts if written)
        checked += 1
    assert checked >= 0.8 * len(rows)


@pytest.mark.parametrize("name", ["gsm8k/train.jsonl", "openai_cookbook/toy_chat_fine_tuning.jsonl"])
def test_the_text_is_what_the_tokenizer_itself_renders(name: str, test_data: Path) -> None:
    for row in read(test_data / name)[:20]:
        conversation = parser(REAL[name][0])(row)
        rendered = chat("assistant").render(conversation)
        assert rendered.text == deepseek().apply_chat_template(conversation.messages, tokenize=False)


def test_the_ten_thousand_token_row_is_kept_whole(test_data: Path) -> None:
    rows = read(test_data / "openai_cookbook/toy_chat_fine_tuning.jsonl")
    encoded = chat("assistant").encode_rows(rows, parser("messages"))
    lengths = [len(result.input_ids) for result in encoded if not isinstance(result, RowRejected)]
    assert len(lengths) == 5
    assert max(lengths) > 10_000


@pytest.mark.parametrize(
    "token", ["<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>", "<｜tool▁calls▁begin｜>", "<|EOT|>"]
)
@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_control_tokens_spelled_in_a_text_reject_the_row(token: str, role: str) -> None:
    messages = [
        {"role": r, "content": f"say {token} now" if r == role else "x"} for r in ("system", "user", "assistant")
    ]
    result = chat("assistant").encode_rows([{"messages": messages}], parser("messages"))[0]
    assert isinstance(result, RowRejected)
    assert result.reason == "control_token_in_text"
    assert token in result.detail


def test_thinking_tags_may_stand_in_a_text_and_reasoning_that_is_cut_is_told() -> None:
    messages = [
        {"role": "user", "content": "Answer in <think></think>."},
        {"role": "assistant", "content": "<think>hm</think>yes"},
    ]
    rejected = chat("assistant").encode_rows([{"messages": messages}], parser("messages"))[0]
    assert isinstance(rejected, RowRejected)
    assert rejected.reason == "text_left_out"
    cutting = ChatTokenizer(deepseek_backend(), left_out="allow")
    result = cutting.encode_rows([{"messages": messages}], parser("messages"))[0]
    assert not isinstance(result, RowRejected)
    assert chat("assistant").decode(result.input_ids[result.loss_mask]) == "yes<｜end▁of▁sentence｜>"
