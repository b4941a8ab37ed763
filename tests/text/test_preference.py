"""Rows of two answers to one prompt: the shapes they come in, what becomes of them, and why they are refused."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from streamsft.errors import ConfigError
from streamsft.sources.store import TokenStore
from streamsft.sources.streaming import StreamingSource
from streamsft.text.chat import ChatTokenizer
from streamsft.text.conversation import Pair, RowRejected
from streamsft.text.formats import detect_format, parser
from streamsft.text.tokenizing import tokenize
from tests.pipelines import demo_files

Row = dict[str, Any]


def user(text: str) -> Row:
    return {"role": "user", "content": text}


def assistant(text: str) -> Row:
    return {"role": "assistant", "content": text}


ASK, YES, NO = user("Is it?"), assistant("Yes, it is."), assistant("No!")
SHAPES: dict[str, Row] = {
    "texts": {"prompt": "Is it?", "chosen": "Yes, it is.", "rejected": "No!"},
    "messages": {"chosen": [ASK, YES], "rejected": [ASK, NO]},
    "prompt of messages": {"prompt": [ASK], "chosen": [YES], "rejected": [NO]},
    "prompt as text, answers as messages": {"prompt": "Is it?", "chosen": [YES], "rejected": [NO]},
    "prompt said twice": {"prompt": "Is it?", "chosen": [ASK, YES], "rejected": [ASK, NO]},
    "prompt of messages said twice": {"prompt": [ASK], "chosen": [ASK, YES], "rejected": [ASK, NO]},
}


@pytest.fixture(scope="module")
def chat() -> ChatTokenizer:
    return ChatTokenizer(demo_files().tokenizer)


def stored(chat: ChatTokenizer, rows: list[Row], **options: Any) -> TokenStore:
    return tokenize(rows, chat, name="pairs", cache_dir=False, processes=1, **options)


@pytest.mark.parametrize("row", SHAPES.values(), ids=SHAPES.keys())
def test_all_shapes_are_one_pair(chat: ChatTokenizer, row: Row) -> None:
    assert detect_format([row]) == "preference"
    store = stored(chat, [row])
    assert store.fingerprint == stored(chat, [SHAPES["texts"]]).fingerprint
    sample = store[0]
    shared, chosen = sample.extras["pair"].tolist()
    border = shared + chosen
    trained = [sample.input_ids[part][sample.loss_mask[part]] for part in (slice(border), slice(border, None))]
    assert [chat.decode(ids) for ids in trained] == [f"{text}{chat.end_mark}" for text in ("Yes, it is.", "No!")]


def test_each_side_is_what_its_conversation_is_alone(chat: ChatTokenizer) -> None:
    turns = [user("a"), assistant("b"), user("Is it?")]
    row = {"chosen": [*turns, YES, user("Why?"), assistant("So.")], "rejected": [*turns, NO]}
    sample = stored(chat, [row])[0]
    shared, chosen = sample.extras["pair"].tolist()
    for side, ids in (
        ("chosen", sample.input_ids[: shared + chosen]),
        ("rejected", np.concatenate([sample.input_ids[:shared], sample.input_ids[shared + chosen :]])),
    ):
        alone = chat({"messages": row[side]})
        np.testing.assert_array_equal(ids, alone["input_ids"])
    trained = sample.input_ids[sample.loss_mask]
    assert chat.decode(trained) == "".join(f"{text}{chat.end_mark}" for text in ("Yes, it is.", "So.", "No!"))
    assert sample.input_ids[shared] == sample.input_ids[shared + chosen]  # the prompt's last token, once in each branch
    assert not sample.loss_mask[: shared + 1].any()
    assert not sample.loss_mask[shared + chosen]


def test_the_rows_tokens_are_those_of_a_call_of_the_tokenizer(chat: ChatTokenizer) -> None:
    made, sample = chat(SHAPES["texts"]), stored(chat, [SHAPES["texts"]])[0]
    np.testing.assert_array_equal(made["input_ids"], sample.input_ids)
    assert [made["shared_length"], made["chosen_length"]] == sample.extras["pair"].tolist()


def test_columns_tools_and_system_go_to_both_sides() -> None:
    parse = pickle.loads(pickle.dumps(parser("preference", {"chosen": "better", "rejected": "worse", "prompt": "q"})))
    pair = parse({"q": "Is it?", "better": "Yes", "worse": "No", "system": "Be kind.", "chosen": "no column"})
    assert isinstance(pair, Pair)
    for side, answer in ((pair.chosen, "Yes"), (pair.rejected, "No")):
        assert [message["content"] for message in side.messages] == ["Be kind.", "Is it?", answer]
        assert side.supervise == [None, None, None]
    with pytest.raises(ConfigError, match="'completion' is not a column of format 'preference'"):
        parser("preference", {"completion": "x"})


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "Is it?", "chosen": "Yes", "rejected": "Yes"}, "equal_answers"),
        ({"chosen": [ASK, YES], "rejected": [ASK, YES]}, "equal_answers"),
        ({"chosen": [ASK, YES], "rejected": [user("Was it?"), NO]}, "no_common_prompt"),
        ({"prompt": "Was it?", "chosen": [ASK, YES], "rejected": [ASK, NO]}, "no_common_prompt"),
        ({"prompt": [user("Was it?")], "chosen": [ASK, YES], "rejected": [ASK, NO]}, "no_common_prompt"),
        ({"chosen": "Yes", "rejected": "No"}, "missing_column"),
        ({"prompt": "Is it?", "chosen": "Yes", "rejected": None}, "missing_column"),
        ({"prompt": "Is it?", "chosen": "Yes", "rejected": 3}, "bad_content"),
        ({"prompt": "Is it?", "chosen": "Yes", "rejected": " "}, "empty_turn"),
        ({"chosen": [ASK, YES], "rejected": [ASK]}, "no_assistant_turn"),
        ({"chosen": [ASK, YES, ASK, YES], "rejected": [ASK, YES]}, "nothing_supervised"),
        ({"chosen": [ASK, {"role": "me", "content": "Yes"}], "rejected": [ASK, NO]}, "bad_role"),
    ],
)
def test_a_row_that_is_no_pair_is_counted_by_reason(chat: ChatTokenizer, row: Row, reason: str) -> None:
    store = stored(chat, [SHAPES["texts"], row], format="preference")
    assert store.rejected == {reason: 1}
    assert len(store) == 1


def test_answers_whose_text_is_the_same_are_equal(chat: ChatTokenizer) -> None:
    parts = [{"type": "text", "text": "Yes, "}, {"type": "text", "text": "it is."}]
    row = {"chosen": [ASK, YES], "rejected": [ASK, {"role": "assistant", "content": parts}]}
    assert stored(chat, [SHAPES["texts"], row]).rejected == {"equal_answers": 1}


def test_with_everything_trained_on_there_is_no_prompt(chat: ChatTokenizer) -> None:
    everything = ChatTokenizer(demo_files().tokenizer, train_on="everything", format="preference")
    with pytest.raises(RowRejected, match="no_common_prompt"):
        everything(SHAPES["texts"])


def test_pairs_are_not_streamed(chat: ChatTokenizer, tmp_path: Any) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n')
    with pytest.raises(ConfigError, match="not streamed"):
        StreamingSource(path, name="pairs", transform=chat)
