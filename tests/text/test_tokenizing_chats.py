"""Chats to stores, with a real tokenizer: formats, mixed schemas, datasets objects, real data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamsft.errors import ConfigError, DataError, EmptySourceError
from streamsft.sources.hub import DatasetRows, HubDataset
from streamsft.sources.rawrows import iterate_rows
from streamsft.sources.store import TokenStore
from streamsft.text.chat import ChatTokenizer
from streamsft.text.tokenizing import tokenize
from tests.text.tokenizers import deepseek_backend

QA = [{"question": f"What is {n} + {n}?", "answer": f"It is {2 * n}.\u2028Done é"} for n in range(30)]


@pytest.fixture(scope="module")
def chat() -> ChatTokenizer:
    return ChatTokenizer(deepseek_backend())


def written(path: Path, rows: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


def supervised(store: TokenStore, chat: ChatTokenizer, index: int) -> str:
    sample = store[index]
    return chat.decode(sample.input_ids[sample.loss_mask])


def whole(store: TokenStore, chat: ChatTokenizer) -> list[str]:
    return [chat.decode(store[i].input_ids) for i in range(len(store))]


def test_the_answers_are_supervised(tmp_path: Path, chat: ChatTokenizer) -> None:
    store = tokenize(written(tmp_path / "a.jsonl", QA), chat, name="qa", cache_dir=tmp_path / "c")
    assert [supervised(store, chat, i) for i in range(3)] == [f"{row['answer']}<｜end▁of▁sentence｜>" for row in QA[:3]]
    assert store.manifest.tokenizer == chat.tokenizer_hash
    assert store.manifest.extra["format"] == "question_answer"


def test_settings_of_the_chat_tokenizer_make_another_entry(tmp_path: Path, chat: ChatTokenizer) -> None:
    path = written(tmp_path / "a.jsonl", QA)
    everything = ChatTokenizer(deepseek_backend(), train_on="everything")
    stores = [tokenize(path, each, name="qa", cache_dir=tmp_path / "c") for each in (chat, everything)]
    assert stores[0].path != stores[1].path
    assert stores[0].manifest.supervised < stores[1].manifest.supervised


def test_a_column_null_in_one_file_and_text_in_another(tmp_path: Path, chat: ChatTokenizer) -> None:
    rows = [
        {"instruction": "a", "output": "x", "input": None},
        {"instruction": "b", "output": "y", "input": "s"},
        {"instruction": "c", "output": "z"},
    ]
    paths = [written(tmp_path / f"{n}.jsonl", [row]) for n, row in enumerate(rows)]
    alone = [whole(tokenize(path, chat, name="s", cache_dir=False), chat)[0] for path in paths]
    assert "s" in alone[1]
    for order in ([0, 1, 2], [1, 2, 0], [2, 0, 1]):
        store = tokenize([str(paths[n]) for n in order], chat, name="s", cache_dir=False)
        assert whole(store, chat) == [alone[n] for n in order]


def test_a_column_that_a_row_lacks_is_told(tmp_path: Path, chat: ChatTokenizer) -> None:
    path = written(tmp_path / "a.jsonl", [QA[0], {"question": "?"}, {"question": "?", "answer": None}, QA[1]])
    store = tokenize(path, chat, name="s", cache_dir=tmp_path / "c")
    assert store.row_numbers.tolist() == [0, 3]
    assert store.manifest.rejected == {"missing_column": 2}
    assert "a.jsonl:2: " in store.manifest.extra["first_rejected"]["missing_column"]
    with pytest.raises(EmptySourceError, match=r"all 1 rows were rejected: 1 missing_column"):
        tokenize(written(tmp_path / "b.jsonl", [QA[0]]), chat, name="s", format="alpaca", cache_dir=False)


def test_an_unknown_format_is_told_with_its_file(tmp_path: Path, chat: ChatTokenizer) -> None:
    path = written(tmp_path / "a.jsonl", [{"foo": 1, "bar": 2}])
    with pytest.raises(DataError, match=r"source s: a\.jsonl: no known format has the columns bar, foo"):
        tokenize(path, chat, name="s", cache_dir=False)


def test_columns_are_mapped(tmp_path: Path, chat: ChatTokenizer) -> None:
    path = written(tmp_path / "a.jsonl", [{"ask": "a?", "reply": "b."}])
    store = tokenize(
        path, chat, name="s", format="question_answer", columns={"question": "ask", "answer": "reply"}, cache_dir=False
    )
    assert supervised(store, chat, 0) == "b.<｜end▁of▁sentence｜>"


class TestToolCalls:
    MESSAGES = (
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": '{"t": null}'}}],
        },
    )
    OTHER = (
        {"role": "user", "content": "stop", "name": "me"},
        {
            "role": "assistant",
            "content": "no",
            "tool_calls": [{"type": "function", "function": {"name": "g", "arguments": {"k": 1}}}],
        },
    )
    PLAIN = ({"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"})

    def rows(self) -> list[dict[str, Any]]:
        return [{"messages": list(messages)} for messages in (self.MESSAGES, self.OTHER, self.PLAIN)]

    def test_rows_of_different_shape_render_as_each_alone(self, tmp_path: Path, chat: ChatTokenizer) -> None:
        rows = self.rows()
        together = tokenize(written(tmp_path / "a.jsonl", rows), chat, name="s", cache_dir=False, processes=2)
        for number, row in enumerate(rows):
            alone = tokenize(written(tmp_path / f"{number}.jsonl", [row]), chat, name="s", cache_dir=False)
            assert together[number].input_ids.tolist() == alone[0].input_ids.tolist()
        assert '{"t": null}' in whole(together, chat)[0]

    def test_messages_kept_as_json_text_in_a_columnar_file(self, tmp_path: Path, chat: ChatTokenizer) -> None:
        expected = tokenize(written(tmp_path / "a.jsonl", self.rows()), chat, name="s", cache_dir=False)
        table = pa.table({"messages": [json.dumps(row["messages"]) for row in self.rows()]})
        pq.write_table(table, tmp_path / "a.parquet")
        store = tokenize(tmp_path / "a.parquet", chat, name="s", cache_dir=False)
        assert store.fingerprint == expected.fingerprint

    def test_nulls_that_a_columnar_file_adds_change_nothing(self, tmp_path: Path, chat: ChatTokenizer) -> None:
        rows = [self.rows()[0], self.rows()[2]]
        expected = tokenize(written(tmp_path / "a.jsonl", rows), chat, name="s", cache_dir=False)
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
        columnar = tokenize(tmp_path / "a.parquet", chat, name="s", cache_dir=False)
        listed = tokenize(datasets.Dataset.from_list(rows), chat, name="s", cache_dir=False)
        assert columnar.fingerprint == listed.fingerprint == expected.fingerprint


class TestDatasets:
    def test_an_object_gives_the_same_store_as_its_rows_in_a_file(self, tmp_path: Path, chat: ChatTokenizer) -> None:
        data = datasets.Dataset.from_list(QA)
        first = tokenize(data, chat, name="s", cache_dir=tmp_path / "c")
        assert first.fingerprint == tokenize(QA, chat, name="s", cache_dir=False).fingerprint
        assert tokenize(datasets.Dataset.from_list(QA), chat, name="s", cache_dir=tmp_path / "c").path == first.path
        picked = data.select([3, 1]).with_format("numpy")
        store = tokenize(picked, chat, name="s", cache_dir=tmp_path / "c")
        assert store.path != first.path
        assert [supervised(store, chat, i)[:7] for i in range(2)] == ["It is 6", "It is 2"]
        assert store.origin(1) == "dataset:1"

    def test_a_null_in_a_json_column_stays_and_one_in_a_struct_goes(self) -> None:
        features = datasets.Features({"j": datasets.Json(), "s": {"a": datasets.Value("int64")}})
        data = datasets.Dataset.from_list([{"j": {"default": None}, "s": {"a": None}}], features=features)
        assert [row.value for _, _, row in iterate_rows(DatasetRows(data))] == [{"j": {"default": None}, "s": {}}]

    def test_of_the_hub_are_loaded_by_id_split_and_files(self, tmp_path: Path, chat: ChatTokenizer) -> None:
        path = written(tmp_path / "d" / "a.jsonl", QA)
        hub = HubDataset(id="json", data_files=str(path), split="train[:3]")
        store = tokenize(hub, chat, name="s", cache_dir=tmp_path / "c")
        assert len(store) == 3
        assert store.origin(2) == "json[train[:3]]:2"
        with pytest.raises(DataError, match=r"hub: .*nowhere: cannot be loaded: the hub cannot be reached"):
            tokenize(HubDataset(id=str(tmp_path / "nowhere")), chat, name="s", cache_dir=False)
        with pytest.raises(DataError, match=r"hub: json: cannot be loaded: .*'test'"):
            HubDataset(id="json", data_files=str(path), split="test").load()

    def test_several_at_once_or_without_a_length_are_refused(self, chat: ChatTokenizer) -> None:
        data = datasets.Dataset.from_list(QA)
        with pytest.raises(ConfigError, match="give one of its splits: train"):
            tokenize(datasets.DatasetDict(train=data), chat, name="s", cache_dir=False)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="load it without streaming"):
            tokenize(data.to_iterable_dataset(), chat, name="s", cache_dir=False)  # type: ignore[arg-type]

    def test_rows_that_are_not_json_are_refused(self, chat: ChatTokenizer) -> None:
        with pytest.raises(DataError, match="rows:1: the row is not made of JSON values"):
            tokenize([QA[0], {"question": object()}], chat, name="s", cache_dir=False)
        store = tokenize([QA[0], {"question": "\ud800", "answer": ""}], chat, name="s", cache_dir=False)
        assert store.manifest.rejected == {"bad_row": 1}


def test_gsm8k_with_the_deepseek_tokenizer(test_data: Path, tmp_path: Path, chat: ChatTokenizer) -> None:
    lines = (test_data / "gsm8k" / "test.jsonl").read_text("utf-8").splitlines(keepends=True)
    path = tmp_path / "gsm8k.jsonl"
    path.write_text("".join(lines), "utf-8")
    rows = [json.loads(line) for line in lines]
    store = tokenize(path, chat, name="gsm8k", cache_dir=tmp_path / "c", processes=2)
    assert store.row_numbers.tolist() == list(range(len(rows)))
    assert store.manifest.rejected == {}
    for index in range(0, len(rows), 25):
        assert supervised(store, chat, index) == rows[index]["answer"] + "<｜end▁of▁sentence｜>"
        assert rows[index]["question"] in chat.decode(store[index].input_ids)
    assert np.array_equal(store.lengths, [len(store[i]) for i in range(len(store))])
    half = tmp_path / "half.jsonl"
    half.write_text("".join(lines[:200]), "utf-8")
    alone = tokenize(half, chat, name="gsm8k", cache_dir=False, processes=1)
    assert all(np.array_equal(alone[i].input_ids, store[i].input_ids) for i in range(200))


def test_a_row_of_ten_thousand_tokens(test_data: Path, chat: ChatTokenizer) -> None:
    path = test_data / "openai_cookbook" / "toy_chat_fine_tuning.jsonl"
    store = tokenize(path, chat, name="toy", cache_dir=False)
    assert int(store.lengths.max()) > 10_000
