"""Templates with generation marks: what they enclose is supervised, with the end of the turn, if it is a turn."""

from __future__ import annotations

import pytest

from streamsft.errors import TokenizerError
from streamsft.text.chat import ChatTokenizer
from tests.text import tokenizers as made
from tests.text.test_chat import A, B, U, V, chat, reason, supervised


def test_marks_of_internal_use_are_rejected_only_where_they_are_used() -> None:
    messages = [U, {**A, "content": "x\ufdd0"}]
    assert reason(chat(made.CHATML_MARKED), messages) == "bad_unicode"
    assert supervised(chat(), messages) == ["x\ufdd0<|im_end|>"]


def test_generation_marks_may_come_in_pieces() -> None:
    template = made.CHATML_MARKED.replace(
        "{{ message.content }}{% endgeneration %}",
        "{{ message.content[:1] }}{% endgeneration %}{% generation %}{{ message.content[1:] }}{% endgeneration %}",
    )
    using = ChatTokenizer(made.bpe(template))
    assert supervised(using, [U, A, V, B]) == ["4.<|im_end|>", "Five.<|im_end|>"]
    assert supervised(using, [U, {**A, "weight": 0}, V, B]) == ["Five.<|im_end|>"]


def test_turns_without_a_generation_mark_or_with_more_than_their_own_text_reject_the_row() -> None:
    first = made.CHATML_MARKED.replace("'assistant' %}", "'assistant' and loop.index0 < 2 %}", 1)
    assert reason(ChatTokenizer(made.bpe(first)), [U, A, V, B]) == "span_not_found"
    wide = made.CHATML_MARKED.replace("{% endgeneration %}<|im_end|>", "<|im_end|>user{% endgeneration %}")
    with pytest.raises(TokenizerError, match="generation mark"):
        ChatTokenizer(made.bpe(wide))


def test_generation_marks_alone_decide_where_turns_cannot_be_located() -> None:
    marked = "{{ (messages | last).content | length }}" + made.CHATML_MARKED
    unmarked = "{{ (messages | last).content | length }}" + made.CHATML
    assert supervised(ChatTokenizer(made.bpe(marked)), [U, A]) == ["4.<|im_end|>"]
    assert reason(ChatTokenizer(made.bpe(marked)), [U, {**A, "weight": 0}, V, B]) == "span_not_found"
    with pytest.raises(TokenizerError, match="span_not_found"):
        ChatTokenizer(made.bpe(unmarked))
