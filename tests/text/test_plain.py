"""Plain text: tokens as they are, all supervised, an end token behind each document; stored and streamed alike."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamsft as ss
from streamsft.errors import ConfigError, DataError, TokenizerError
from streamsft.sources.streaming import Encoded, Refused, StreamingSource
from streamsft.text.chat import ChatTokenizer
from streamsft.text.conversation import RowRejected
from streamsft.text.formats import parser
from streamsft.text.plain import TextTokenizer
from streamsft.text.tokenizing import tokenize
from tests.pipelines import small_config
from tests.text.tokenizers import bpe


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("bos", [False, True])
def test_a_document_is_its_text_and_an_end_token_all_of_it_supervised(bos: bool) -> None:
    tokenizer = bpe(None, bos=bos)
    made = TextTokenizer(tokenizer)({"text": "Hello world.\n"})
    plain = tokenizer.encode("Hello world.\n", add_special_tokens=False)
    front = [tokenizer.bos_token_id] if bos else []
    assert made["input_ids"].tolist() == [*front, *plain, tokenizer.eos_token_id]
    assert made["loss_mask"].all()
    assert made["input_ids"].dtype == np.int32


def test_no_chat_template_is_needed_and_it_travels_to_other_processes() -> None:
    text = TextTokenizer(bpe(None))
    again = pickle.loads(pickle.dumps(text))
    assert again({"text": "a b"})["input_ids"].tolist() == text({"text": "a b"})["input_ids"].tolist()
    assert again.fingerprint == text.fingerprint != TextTokenizer(bpe(None), columns={"text": "body"}).fingerprint


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"text": " \n "}, "nothing_supervised"),
        ({"text": ""}, "nothing_supervised"),
        ({"text": None}, "missing_column"),
        ({"body": "x"}, "missing_column"),
        ({"text": 3}, "bad_content"),
        ({"text": "a \ud800"}, "bad_unicode"),
        ({"text": "so <|im_end|> what"}, "control_token_in_text"),
        ("text", "bad_row"),
    ],
)
def test_rows_without_a_text_that_can_be_used_are_rejected(row: Any, reason: str) -> None:
    with pytest.raises(RowRejected) as rejection:
        TextTokenizer(bpe(None))(row)
    assert rejection.value.reason == reason


def test_a_tokenizer_without_an_end_token_is_refused() -> None:
    tokenizer = copy.deepcopy(bpe(None))
    tokenizer.eos_token = None
    with pytest.raises(TokenizerError, match="no end token"):
        TextTokenizer(tokenizer)


def test_stored_and_streamed_rows_are_the_same(tmp_path: Path) -> None:
    rows = [{"body": f"page {number} " * (number + 1)} for number in range(20)] + [{"body": " "}, {"other": "x"}]
    path, text = write(tmp_path / "rows.jsonl", rows), TextTokenizer(bpe(None), columns={"text": "body"})
    store = tokenize(path, text, name="pages", cache_dir=tmp_path / "cache")
    assert len(store) == 20
    assert store.rejected == {"missing_column": 1, "nothing_supervised": 1}
    assert tokenize(path, text, name="pages", cache_dir=tmp_path / "cache").path == store.path
    stream = StreamingSource(path, name="pages", transform=text)
    results = stream.encode([raw.value for raw in stream.reader.read(0, 1, None)])
    kept = [result for result in results if isinstance(result, Encoded)]
    for ids, (found, mask) in zip(store.read(np.arange(20))[0], kept, strict=True):
        assert ids.tolist() == found.tolist()
        assert mask.all()
    assert [r.reason for r in results if isinstance(r, Refused)] == ["nothing_supervised", "missing_column"]


def test_texts_and_conversations_are_not_taken_for_each_other(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"text": "a"}])
    chat, text = ChatTokenizer(bpe()), TextTokenizer(bpe())
    with pytest.raises(ConfigError, match="format 'text' is not for a ChatTokenizer; give a TextTokenizer"):
        ChatTokenizer(bpe(), format="text")
    for make in (
        lambda: tokenize(path, chat, name="a", format="text", cache_dir=False),
        lambda: StreamingSource(path, name="a", transform=chat, format="text"),
    ):
        with pytest.raises(ConfigError, match="give a TextTokenizer"):
            make()
    for make in (
        lambda: tokenize(path, text, name="a", format="messages", cache_dir=False),
        lambda: StreamingSource(path, name="a", transform=text, format="messages"),
    ):
        with pytest.raises(ConfigError, match="give a ChatTokenizer"):
            make()
    with pytest.raises(ConfigError, match="'content' is not a column of format 'text'; it has text"):
        TextTokenizer(bpe(), columns={"content": "x"})
    with pytest.raises(DataError, match="plain text is `format: text`"):
        tokenize(path, chat, name="a", cache_dir=False)
    result = chat.encode([parser("text")({"text": "a"})])[0]
    assert isinstance(result, RowRejected), "a template is not asked to render a text"


def config(folder: Path, **source: Any) -> dict[str, Any]:
    """Chats and long pages, of which half the tokens are to come."""
    pages = [{"text": f"Page {number}. " + " ".join(map(str, range(number * 40)))} for number in range(1, 20)]
    made = small_config(folder, sequence_length=128)
    made["mix"]["unit"] = "tokens"
    made["packing"]["lookahead"] = 64
    made["mix"]["sources"]["pages"] = {"path": str(write(folder / "p.jsonl", pages)), "format": "text", **source}
    made["mix"]["sources"]["pages"].setdefault("weight", 4)
    made["train"] |= {"steps": 20, "run_dir": str(folder / "run")}
    made["metrics"]["log_every"] = 20
    return made


@pytest.mark.parametrize("streaming", [False, True], ids=["stored", "streamed"])
def test_one_mix_splits_pages_and_cuts_chats(tmp_path: Path, streaming: bool) -> None:
    made = config(tmp_path, **({"streaming": True} if streaming else {}))
    ss.train(made, quiet=True)
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["metrics"]
    assert last["data_pages/truncated"] == 0
    assert last["data_strings/truncated"] > 0
    assert last["data_pages/length_max"] == 128
    assert last["data_pages/share_tokens"] == pytest.approx(0.5, abs=0.1)


def test_a_page_comes_whole_in_fragments_as_forecast_and_explained(tmp_path: Path) -> None:
    made = config(tmp_path)
    ss.train(made, quiet=True)
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["metrics"]
    expected = ss.forecast(made, steps=20).to_json()["sources"]
    for name in ("pages", "strings", "units", "arithmetic"):
        for what in ("samples", "tokens"):
            assert expected[name][what] == last[f"data_{name}/{what}"]
    audit = [json.loads(line) for line in (tmp_path / "run" / "audit" / "rank-0.jsonl").read_text().splitlines()]
    step = ss.explain(made, 20)
    assert [pack.rows for pack in step.packs] == [pack["rows"] for pack in audit[19]["packs"]]


def test_what_happens_to_long_rows_can_be_said_per_source_and_defines_the_stream(tmp_path: Path) -> None:
    made = config(tmp_path, overflow="drop")
    ss.train(made, quiet=True, overrides=["train.steps=2"])
    with pytest.raises(ss.RunError, match="pages"):
        ss.train(made, quiet=True, overrides=["train.steps=3", "mix.sources.pages.overflow=split"])
    with pytest.raises(ConfigError, match=r"pages\.train_on: 'train_on' is about conversations"):
        ss.load_config(config(tmp_path, train_on="everything"))
    with pytest.raises(ConfigError, match="overflow: 'cut' is not one of truncate, drop, split, error"):
        ss.load_config(config(tmp_path, overflow="cut"))
