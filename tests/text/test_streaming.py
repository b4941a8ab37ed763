"""Streaming sources: what becomes tokens, what is left out, what is held out."""

from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict
from hypothesis import given, settings, strategies as st

from streamsft.errors import ConfigError, DataError, EmptySourceError
from streamsft.sources.shardfiles import ShardFiles
from streamsft.sources.streaming import Encoded, Refused, StreamingSource
from streamsft.stream.blocks import FeedState
from streamsft.stream.feed import Feed
from streamsft.text.chat import ChatTokenizer
from streamsft.text.conversation import Conversation
from streamsft.text.holdout import HoldOut, all_rows, content_hash, held_rows
from streamsft.text.streaming import check_portable
from streamsft.text.tokenizing import tokenize
from tests.text.tokenizers import bpe
from tests.text.transforms import characters, failing

QA = [{"question": f"What is {i}?", "answer": f"{i}, a number."} for i in range(40)]


@pytest.fixture(scope="module")
def chat() -> ChatTokenizer:
    return ChatTokenizer(bpe())


def lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def encoded(source: StreamingSource) -> list[Encoded | Refused]:
    return list(source.encode([row.value for row in all_rows(source.reader)]))


def reasons(source: StreamingSource) -> list[str]:
    return [result.reason if isinstance(result, Refused) else "" for result in encoded(source)]


def short(row: dict[str, Any]) -> bool:
    return len(row["text"]) < 5


def few(sample: dict[str, Any]) -> bool:
    return len(sample["input_ids"]) < 4 and sample["loss_mask"].dtype == np.bool_


def as_messages(row: dict[str, Any]) -> Any:
    match row["kind"]:
        case "list":
            return [{"role": "user", "content": "Qui?"}, {"role": "assistant", "content": row["text"]}]
        case "mapping":
            return {"messages": as_messages({**row, "kind": "list"}), "system": "Be brief."}
        case "conversation":
            return Conversation(as_messages({**row, "kind": "list"}))
        case "bad":
            return [{"role": "user", "content": "Qui?"}]
        case "fails":
            raise KeyError("no such thing")
        case _:
            return None


class TestChats:
    def test_the_tokens_are_those_of_tokenizing_ahead(self, tmp_path: Path, chat: ChatTokenizer) -> None:
        path = lines(tmp_path / "a.jsonl", [*QA, "{bad", {"question": "only"}])
        source = StreamingSource(path, name="qa", transform=chat)
        store = tokenize(path, chat, name="qa", cache_dir=False)
        results = encoded(source)
        kept = [result for result in results if isinstance(result, Encoded)]
        assert len(kept) == len(store) == len(QA)
        for result, sample in zip(kept, map(store.__getitem__, range(len(store))), strict=True):
            assert result.input_ids.tolist() == sample.input_ids.tolist()
            assert result.loss_mask.tolist() == sample.loss_mask.tolist()
        assert [r.reason for r in results if isinstance(r, Refused)] == ["bad_row", "missing_column"]
        assert dict(store.manifest.rejected) == {"bad_row": 1, "missing_column": 1}

    def test_a_dataset_of_the_hub(self, chat: ChatTokenizer) -> None:
        source = StreamingSource(Dataset.from_list(QA).to_iterable_dataset(num_shards=4), name="qa", transform=chat)
        assert source.reader.units(4) == 4
        assert reasons(source) == [""] * len(QA)

    def test_columns_and_formats(self, tmp_path: Path, chat: ChatTokenizer) -> None:
        path = lines(tmp_path / "a.jsonl", [{"q": "Qui?", "a": "I."}])
        columns = {"question": "q", "answer": "a"}
        named = StreamingSource(path, name="s", transform=chat, format="question_answer", columns=columns)
        found = StreamingSource(path, name="s", transform=chat, columns=columns)
        assert reasons(named) == reasons(found) == [""]
        assert named.fingerprint == found.fingerprint
        with pytest.raises(DataError, match=r"source s: no known format has the columns a, q"):
            StreamingSource(path, name="s", transform=chat)

    def test_messages_replace_the_format(self, tmp_path: Path, chat: ChatTokenizer) -> None:
        kinds = ["list", "mapping", "conversation", "bad", "none"]
        path = lines(tmp_path / "a.jsonl", [{"kind": kind, "text": "I."} for kind in kinds] + ["{"])
        source = StreamingSource(path, name="s", transform=chat, messages=as_messages)
        assert reasons(source) == ["", "", "", "no_assistant_turn", "messages", "bad_row"]
        one, two, three = encoded(source)[:3]
        assert isinstance(one, Encoded)
        assert isinstance(two, Encoded)
        assert isinstance(three, Encoded)
        assert one.input_ids.tolist() == three.input_ids.tolist()
        assert "Be brief." in chat.decode(two.input_ids)
        lines(path, [{"kind": "fails", "text": ""}])
        with pytest.raises(DataError, match=r"source s: a\.jsonl:1: messages raised KeyError: 'no such thing'"):
            encoded(StreamingSource(path, name="s", transform=chat, messages=as_messages))


class TestTransformsAndFilters:
    ROWS = ({"text": "abc"}, {"text": ""}, {"text": "abcdefgh"}, {"none": 1}, {"text": "ab"}, {"text": "abcd"})

    def test_rejections_are_counted_by_reason(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        path = lines(tmp_path / "a.jsonl", [*self.ROWS[:3], "{bad"])
        source = StreamingSource(path, name="s", transform=characters, filters=[short], token_filters={"few": few})
        with caplog.at_level(logging.WARNING):
            assert reasons(source) == ["", "nothing_supervised", "short", "bad_row"]
            encoded(source)
        assert [record.getMessage().split(": ")[1:3] for record in caplog.records] == [
            ["first row rejected as nothing_supervised", "a.jsonl:2"],
            ["first row rejected as short", "a.jsonl:3"],
            ["first row rejected as bad_row", "a.jsonl:4"],
        ]

    def test_filters_after_tokenizing(self, tmp_path: Path) -> None:
        path = lines(tmp_path / "a.jsonl", list(self.ROWS))
        source = StreamingSource(path, name="s", transform=characters, token_filters=[few])
        assert reasons(source) == ["", "nothing_supervised", "few", "transform", "", "few"]

    def test_a_function_that_fails_names_the_row(self, tmp_path: Path) -> None:
        path = lines(tmp_path / "a.jsonl", [{"n": 1}, {"n": 3}])
        with pytest.raises(DataError, match=r"source s: a\.jsonl:2: the transform raised KeyError"):
            encoded(StreamingSource(path, name="s", transform=failing))
        with pytest.raises(DataError, match=r"source s: a\.jsonl:1: the filter short raised KeyError: 'text'"):
            encoded(StreamingSource(path, name="s", transform=failing, filters=[short]))
        table = tmp_path / "a.parquet"
        pq.write_table(pa.table({"n": [1, 1, 3]}), table)
        with pytest.raises(DataError, match=r"source s: a\.parquet:2: the transform raised"):
            encoded(StreamingSource(table, name="s", transform=failing))

    def test_on_bad_row_error(self, tmp_path: Path, chat: ChatTokenizer) -> None:
        path = lines(tmp_path / "a.jsonl", [QA[0], "", {"question": "only"}])
        with pytest.raises(DataError, match=r"source s: a\.jsonl:3: missing_column: .*on_bad_row: skip"):
            encoded(StreamingSource(path, name="s", transform=chat, on_bad_row="error"))
        lines(path, [*self.ROWS[:1], {"none": 1}])
        strict = StreamingSource(path, name="s", transform=characters, filters={"no": lambda row: "text" not in row},
                                 on_bad_row="error")  # fmt: skip
        assert reasons(strict) == ["no", "transform"]

    def test_names_of_filters(self, tmp_path: Path) -> None:
        path = lines(tmp_path / "a.jsonl", [{"text": "abc"}])
        source = StreamingSource(path, name="s", transform=characters, filters=[lambda row: False])
        assert reasons(source) == ["filters_0"]
        for filters, says in (
            ([short, short], "filters: two are named 'short'"),
            (short, "filters: a function is no list of functions"),
            ({"bad_row": short}, "'bad_row' is another reason"),
            ({"other": short}, "'other' is another reason"),
            ({"a b": short}, "filters name 'a b'"),
            ({"x": 3}, "'x' is a int, not a function"),
        ):
            with pytest.raises(ConfigError, match=says):
                StreamingSource(path, name="s", transform=characters, filters=filters)  # type: ignore[arg-type]

    def test_functions_that_cannot_be_sent_are_named(self, tmp_path: Path, chat: ChatTokenizer) -> None:
        path = lines(tmp_path / "a.jsonl", [{"text": "abc"}])
        good = StreamingSource(path, name="s", transform=characters, filters=[short])
        check_portable(good)
        assert pickle.loads(pickle.dumps(good)).fingerprint == good.fingerprint
        stages: list[tuple[dict[str, Any], str]] = [
            ({"transform": lambda row: None}, r"transform \(.*<lambda>\)"),
            ({"transform": chat, "messages": lambda row: None}, r"messages \(.*<lambda>\)"),
            ({"transform": characters, "filters": {"f": lambda row: True}}, r"filter 'f' \(.*<lambda>\)"),
            ({"transform": characters, "token_filters": {"f": lambda row: True}}, r"token filter 'f' \(.*<lambda>\)"),
        ]
        for arguments, says in stages:
            with pytest.raises(ConfigError, match=f"source s: {says} cannot be sent to worker processes.*`def`"):
                check_portable(StreamingSource(path, name="s", **arguments))
        mapped = Dataset.from_list([{"text": "abc"}]).to_iterable_dataset().map(lambda row: row)
        with pytest.raises(ConfigError, match=r"source s: the dataset \(a function mapped over it\)"):
            check_portable(StreamingSource(mapped, name="s", transform=characters))


class TestTokens:
    ROWS = ([5, 6, 7], [0, 1, 1]), ([8, 9], [0, 1]), ([1], [0]), ([], [])

    @pytest.mark.parametrize("mask", [pa.int8(), pa.bool_(), pa.int64(), pa.uint8()])
    @pytest.mark.parametrize("ids", [pa.int32(), pa.int64(), pa.uint16()])
    @pytest.mark.parametrize("make", [pa.list_, pa.large_list])
    def test_rows_that_are_tokens_already(self, tmp_path: Path, ids: Any, mask: Any, make: Any) -> None:
        columns = {
            "input_ids": pa.array([row for row, _ in self.ROWS], make(ids)),
            "loss_mask": pa.array([row for _, row in self.ROWS], make(pa.int8())).cast(make(mask)),
        }
        pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=3)
        lines(tmp_path / "b.jsonl", [{"input_ids": one, "loss_mask": two} for one, two in self.ROWS])
        source = StreamingSource(tmp_path, name="s")
        results = encoded(source)
        assert [(r.input_ids.tolist(), r.loss_mask.tolist()) for r in results if isinstance(r, Encoded)] == [
            (one, [bool(value) for value in two]) for one, two in (*self.ROWS, *self.ROWS)
        ]
        assert {r.input_ids.dtype for r in results if isinstance(r, Encoded) and len(r.input_ids)} == {
            np.dtype("int32")
        }

    def test_bad_rows_among_them(self, tmp_path: Path) -> None:
        columns = {
            "input_ids": [[1, 2], [1, -2], None, [1, 2], [3]],
            "loss_mask": [[0, 1], [0, 1], [1], [0, 2], [0, 1]],
        }
        pq.write_table(pa.table(columns), tmp_path / "a.parquet")
        assert reasons(StreamingSource(tmp_path, name="s")) == ["", *["bad_row"] * 4]

    def test_views_on_an_arrow_file(self, tmp_path: Path) -> None:
        table = pa.table({"input_ids": pa.array([[1, 2]], pa.list_(pa.int32())), "loss_mask": [[0, 1]]})
        with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
        (result,) = encoded(StreamingSource(tmp_path, name="s"))
        assert isinstance(result, Encoded)
        assert not result.input_ids.flags.owndata

    def test_rows_that_are_no_tokens(self, tmp_path: Path) -> None:
        path = lines(tmp_path / "a.jsonl", QA)
        with pytest.raises(ConfigError, match=r"its rows hold no input_ids and loss_mask or labels but question, ans"):
            StreamingSource(path, name="s")


class TestHoldOut:
    ROWS = tuple({"text": f"row {number % 150}", "more": {"a": 1, "b": [number % 150]}} for number in range(300))

    def test_duplicates_fall_on_one_side_and_training_never_sees_them(self, tmp_path: Path) -> None:
        lines(tmp_path / "a.jsonl", list(self.ROWS[:100]))
        pq.write_table(pa.Table.from_pylist(list(self.ROWS[100:])), tmp_path / "b.parquet")
        source = StreamingSource(tmp_path, name="s", transform=characters, holdout=0.2)
        found = reasons(source)
        assert found[:150] == found[150:]
        assert 10 < found[:150].count("held_out") < 50
        store = source.held_out()
        assert store.name == "s.holdout"
        held = [number for number, reason in enumerate(found) if reason == "held_out"]
        assert len(store) == len(held)
        expected = [number if number < 100 else 2**32 + number - 100 for number in held]
        assert store.row_numbers.tolist() == expected
        assert store.origin(len(store) - 1) == f"b.parquet:{held[-1] - 100}"
        assert [bytes(store[i].input_ids.tolist()).decode() for i in range(len(store))] == [
            self.ROWS[number]["text"] for number in held
        ]
        feed = Feed(source, seed=1, lane=0, lanes=1, packing=None)
        texts = {bytes(row.input_ids.tolist()).decode() for row in feed.rows(range(500))}
        assert texts == {row["text"] for row in self.ROWS} - {self.ROWS[number]["text"] for number in held}

    def test_a_number_of_rows(self, tmp_path: Path) -> None:
        path = lines(tmp_path / "a.jsonl", list(self.ROWS[:150]))
        assert len(StreamingSource(path, name="s", transform=characters, holdout=7).held_out()) == 7
        lines(path, [*self.ROWS[:150], "{bad"] * 2)
        assert len(StreamingSource(path, name="s", transform=characters, holdout=7).held_out()) == 8
        with pytest.raises(ConfigError, match=r"source s: holdout: 300 rows are to be held, and it has 300"):
            StreamingSource(path, name="s", transform=characters, holdout=300)

    def test_filters_apply_to_held_rows_too(self, tmp_path: Path) -> None:
        path = lines(tmp_path / "a.jsonl", list(self.ROWS[:150]))
        source = StreamingSource(path, name="s", transform=characters, holdout=0.5, filters={"no": lambda row: False})
        assert set(reasons(source)) == {"held_out", "no"}
        with pytest.raises(EmptySourceError, match=r"source s: no held row can be used: \d+ no; hold more rows out"):
            source.held_out()

    @given(rows=st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 3)), min_size=3, max_size=30))
    @settings(max_examples=30)
    def test_files_and_order_do_not_matter(
        self, tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, int]]
    ) -> None:
        folder = tmp_path_factory.mktemp("rows")
        lines(folder / "a.jsonl", rows[: len(rows) // 2])
        lines(folder / "b.jsonl", [dict(reversed(row.items())) for row in rows[len(rows) // 2 :]])
        other = lines(folder.with_suffix(".jsonl"), rows[::-1])
        threshold = HoldOut(fraction=0.4).threshold(ShardFiles(folder), "s")
        kept = [sorted(content_hash(row) for row in rows if content_hash(row) < threshold)]
        for paths in (folder, other):
            values = [json.loads(row.value.text) for row in held_rows(ShardFiles(paths), threshold)]
            kept.append(sorted(map(content_hash, values)))
        assert kept[0] == kept[1] == kept[2]

    @pytest.mark.parametrize("value", [0, 1.0, -0.1, True, "0.1", float("nan"), -3])
    def test_wrong_values(self, tmp_path: Path, value: Any) -> None:
        path = lines(tmp_path / "a.jsonl", list(self.ROWS))
        with pytest.raises(ConfigError, match="holdout: "):
            StreamingSource(path, name="s", transform=characters, holdout=value)

    def test_without_a_hold_out(self, tmp_path: Path) -> None:
        source = StreamingSource(lines(tmp_path / "a.jsonl", list(self.ROWS)), name="s", transform=characters)
        with pytest.raises(ConfigError, match="source s: it holds no rows out; give holdout"):
            source.held_out()


class Counting:
    """Counts calls, that is tokenized rows."""

    version = 1

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, row: dict[str, Any]) -> dict[str, list[int]]:
        self.calls += 1
        return {"input_ids": [row["n"], 1], "loss_mask": [0, 1]}


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_resuming_tokenizes_nothing_that_was_consumed(tmp_path: Path, kind: str) -> None:
    rows = [{"n": number} for number in range(10_000)]
    if kind == "jsonl":
        lines(tmp_path / "a.jsonl", rows)
    else:
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=500)
    settings = {"seed": 3, "lane": 0, "lanes": 1, "packing": None}
    feed = Feed(StreamingSource(tmp_path, name="s", transform=Counting()), **settings)  # type: ignore[arg-type]
    first = feed.rows(range(9_000, 9_010))
    state = json.loads(json.dumps(feed.state(9_005).to_json()))
    count = Counting()
    source = StreamingSource(tmp_path, name="s", transform=count)
    again = Feed(source, number=9_005, state=FeedState.from_json(state), **settings)  # type: ignore[arg-type]
    assert [row.row for row in again.rows(range(9_005, 9_010))] == [row.row for row in first[5:]]
    assert count.calls == 5


def test_wrong_arguments(tmp_path: Path, chat: ChatTokenizer) -> None:
    path = lines(tmp_path / "a.jsonl", QA)
    dataset = Dataset.from_list(QA)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"data": path, "transform": 3}, "transform: a int is no function"),
        ({"data": path, "messages": as_messages}, r"messages needs transform=ChatTokenizer"),
        ({"data": path, "transform": characters, "format": "alpaca"}, "format and columns have no effect"),
        ({"data": path, "transform": chat, "format": "none"}, "format 'none' is not known"),
        ({"data": path, "transform": characters, "on_bad_row": "stop"}, "on_bad_row: 'stop'; use skip or error"),
        ({"data": path, "transform": characters, "shuffle_window": 0}, "shuffle_window 0 is not a number of rows"),
        ({"data": None}, "give data, or a reader in its place"),
        ({"data": path, "reader": ShardFiles(path)}, "give data, or a reader in its place"),
        ({"data": path, "encode": encoded, "holdout": 0.1}, "encode stands in place of holdout; give one"),
        ({"data": dataset}, r"a Dataset is in memory or mapped.*to_iterable_dataset"),
        ({"data": DatasetDict({"train": dataset})}, "several datasets; give one of its splits: train"),
        ({"data": 3}, "a int cannot be streamed"),
    ]
    for arguments, says in cases:
        with pytest.raises(ConfigError, match=says):
            StreamingSource(name="s", **arguments)
    with pytest.raises(TypeError, match="source s: unknown argument 'tranform'"):
        StreamingSource(path, name="s", tranform=characters)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="source name 'a b'"):
        StreamingSource(path, name="a b", transform=characters)


def test_the_fingerprint_covers_data_and_functions(tmp_path: Path, chat: ChatTokenizer) -> None:
    path = lines(tmp_path / "a.jsonl", QA)
    made: list[dict[str, Any]] = [
        {"transform": chat},
        {"transform": chat, "holdout": 0.1},
        {"transform": chat, "messages": as_messages},
        {"transform": ChatTokenizer(bpe(), train_on="everything")},
        {"transform": characters},
        {"transform": characters, "filters": [short]},
        {"transform": characters, "token_filters": [short]},
    ]
    prints = [StreamingSource(path, name="s", **arguments).fingerprint for arguments in made]
    assert len(set(prints)) == len(prints)
    assert StreamingSource(path, name="t", transform=chat).fingerprint == prints[0]
