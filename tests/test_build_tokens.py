"""Sources of a config whose rows are tokens already."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from streamsft.build_sources import build_sources
from streamsft.commands.preview_row import preview_row
from streamsft.commands.train import train
from streamsft.commands.validate import validate
from streamsft.config import load_config
from streamsft.encoders import Encoders
from streamsft.errors import ConfigError, StoreError, StreamsftError
from streamsft.sources.store import TokenStore
from streamsft.sources.streaming import StreamingSource
from tests.pipelines import small_config
from tests.sources.stores import WRITERS, contents, labelled, rows_of, write_lines, write_parquet

ROWS = [row for row in rows_of(40, longest=30) if any(row["loss_mask"][1:])]
ROWS = [{**row, "input_ids": [i % 300 for i in row["input_ids"]]} for row in ROWS]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMSFT_CACHE", str(tmp_path / "usual-cache"))


def config_of(tmp_path: Path, source: dict[str, Any], *, tokenizer: bool = False, **sections: Any) -> dict[str, Any]:
    config = small_config(tmp_path, mix={"sources": {"s": source}}, **sections)
    if not tokenizer:
        del config["tokenizer"]
    return config


def sources_of(config: dict[str, Any]) -> Any:
    read = load_config(config)
    return build_sources(read, Encoders(read))["s"]


@pytest.mark.parametrize("said", ["store", "format", "detected"])
@pytest.mark.parametrize("kind", WRITERS)
def test_tokens_are_read_where_they_lie(kind: str, said: str, tmp_path: Path) -> None:
    path = str(WRITERS[kind](labelled(ROWS), tmp_path / kind))
    source = {"store": path} if said == "store" else {"path": path}
    if said == "format":
        source["format"] = "tokens"
    store = sources_of(config_of(tmp_path, source, tokenizer=said == "detected"))
    assert isinstance(store, TokenStore)
    assert contents(store) == ROWS
    assert not list((tmp_path / "cache").glob("stores/*")), "nothing is tokenized"


def test_a_store_of_streamsft_may_be_given_as_a_path(tmp_path: Path) -> None:
    from streamsft.commands.convert import convert

    convert(write_lines(ROWS, tmp_path / "s.jsonl"), tmp_path / "made", console=Console(file=io.StringIO()))
    store = sources_of(config_of(tmp_path, {"path": str(tmp_path / "made")}, tokenizer=True))
    assert contents(store) == ROWS


def test_tokens_may_be_streamed(tmp_path: Path) -> None:
    path = str(write_parquet(labelled(ROWS), tmp_path / "s.parquet"))
    for more, tokenizer in (({"format": "tokens"}, False), ({}, True)):
        source = sources_of(config_of(tmp_path, {"path": path, "streaming": True, **more}, tokenizer=tokenizer))
        assert isinstance(source, StreamingSource)
        seen = {}
        for sample, _ in zip(source.stream(), range(len(ROWS)), strict=False):
            seen[sample.row] = {
                "input_ids": sample.input_ids.tolist(),
                "loss_mask": sample.loss_mask.astype(int).tolist(),
            }
        assert [seen[row] for row in range(len(ROWS))] == ROWS


def test_text_is_still_text(tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "input_ids": [1]}]
    write_lines(rows, tmp_path / "s.jsonl")
    store = sources_of(config_of(tmp_path, {"path": str(tmp_path / "s.jsonl")}, tokenizer=True))
    assert len(store[0]) > 1


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"path": "x", "format": "tokens", "train_on": "everything"}, "'train_on' is about text"),
        ({"path": "x", "format": "tokens", "holdout": 2}, "'holdout' is about text"),
        ({"path": "x", "format": "tokens", "columns": {"a": "b"}}, "'columns' is about text"),
        ({"hub": "a/b", "format": "tokens"}, "tokens of the hub are read with streaming: true"),
        ({"path": "x", "streaming": True, "extras": ["a"], "format": "tokens"}, "neither streamed nor on the hub"),
        ({"path": "x"}, "if it holds tokens, say format: tokens there"),
    ],
)
def test_keys_that_do_not_go_with_tokens_are_refused(source: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(config_of(tmp_path, source))


def test_keys_that_do_not_go_with_what_the_files_hold_are_refused(tmp_path: Path) -> None:
    path = str(write_lines(ROWS, tmp_path / "s.jsonl"))
    with pytest.raises(ConfigError, match="source s: holdout is about text, and its rows are tokens already"):
        sources_of(config_of(tmp_path, {"path": path, "holdout": 2}, tokenizer=True))
    (tmp_path / "t.jsonl").write_text('{"question": "a", "answer": "b"}')
    source = {"path": str(tmp_path / "t.jsonl"), "extras": ["a"]}
    with pytest.raises(ConfigError, match="source s: extras: its rows are text"):
        sources_of(config_of(tmp_path, source, tokenizer=True))


def test_ids_beyond_the_tokenizer_are_refused(tmp_path: Path) -> None:
    path = str(write_lines([{"input_ids": [1, 10**6], "loss_mask": [0, 1]}], tmp_path / "s.jsonl"))
    with pytest.raises(
        StoreError, match=r"source s: s\.jsonl, row 0: input_ids holds 1000000, and the tokenizer in use has"
    ):
        sources_of(config_of(tmp_path, {"path": path}, tokenizer=True))


def test_missing_and_mixed_files_are_told_with_the_source(tmp_path: Path) -> None:
    with pytest.raises(StreamsftError, match=r"source s: .*no such file"):
        sources_of(config_of(tmp_path, {"store": str(tmp_path / "none")}))
    write_lines(ROWS, tmp_path / "d.jsonl")
    write_parquet(ROWS, tmp_path / "d.parquet")
    with pytest.raises(StreamsftError, match=r"source s: .*several kinds"):
        sources_of(config_of(tmp_path, {"path": str(tmp_path / "d.*"), "format": "tokens"}))


def test_extras_are_read(tmp_path: Path) -> None:
    rows = [{**row, "tag": f"t{at}"} for at, row in enumerate(ROWS)]
    path = str(write_parquet(rows, tmp_path / "s.parquet"))
    store = sources_of(config_of(tmp_path, {"path": path, "format": "tokens", "extras": ["tag"]}))
    assert store[3].extras == {"tag": "t3"}


def test_the_commands_know_them(tmp_path: Path) -> None:
    config = config_of(tmp_path, {"path": str(write_lines(ROWS, tmp_path / "s.jsonl"))}, tokenizer=True)
    console = Console(file=io.StringIO(), width=200)
    validate(config, console=console)
    assert preview_row(config, "s:3", console=console) is None
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"s: a store of {len(ROWS)} rows" in printed
    assert "s:3, s.jsonl, row 3" in printed


@pytest.mark.parametrize(
    ("rows", "sequence_length", "message"),
    [
        ([], 16, "s: has no row that could be drawn at sequence_length 16: it holds no row"),
        ([[0, 0, 0]], 16, "s: has no row that could be drawn .*: 1 nothing_supervised"),
        ([[0, 0, 0, 1]], 2, "s: has no row that could be drawn at sequence_length 2: 1 nothing_supervised"),
    ],
)
def test_a_store_without_a_row_to_draw_is_not_valid(
    rows: list[list[int]], sequence_length: int, message: str, tmp_path: Path
) -> None:
    masks = pa.array(rows, pa.list_(pa.uint8()))
    pq.write_table(pa.table({"input_ids": masks, "loss_mask": masks}), tmp_path / "s.parquet")
    config = config_of(tmp_path, {"store": str(tmp_path / "s.parquet")}, sequence_length=sequence_length)
    with pytest.raises(ConfigError, match=message):
        validate(config, console=Console(file=io.StringIO()))


def test_validate_counts_the_rows_that_are_never_drawn(tmp_path: Path) -> None:
    masks = [[0, 1], [0, 0], [0, 1]]
    pq.write_table(pa.table({"input_ids": [[1, 2]] * 3, "loss_mask": masks}), tmp_path / "s.parquet")
    console = Console(file=io.StringIO(), width=200)
    validate(config_of(tmp_path, {"store": str(tmp_path / "s.parquet")}), console=console)
    assert "s: a store of 3 rows, 1 nothing_supervised\n" in console.file.getvalue()  # type: ignore[attr-defined]


def test_the_tiny_model_is_not_made_as_large_as_a_stray_id(tmp_path: Path) -> None:
    pq.write_table(pa.table({"input_ids": [[1, 2**31 - 1]], "loss_mask": [[0, 1]]}), tmp_path / "s.parquet")
    settings = {"steps": 1, "run_dir": str(tmp_path / "run"), "model": "tiny"}
    config = config_of(tmp_path, {"store": str(tmp_path / "s.parquet")}, train=settings)
    with pytest.raises(StreamsftError, match=r"source s: its largest token id is 2,147,483,647.*set `tokenizer`"):
        train(config, quiet=True)


def test_a_row_that_is_never_drawn_is_shown_as_such(tmp_path: Path) -> None:
    masks = [[0, 1], [1, 0], [0, 0]]
    pq.write_table(pa.table({"input_ids": [[1, 2]] * 3, "loss_mask": masks}), tmp_path / "s.parquet")
    config = config_of(tmp_path, {"store": str(tmp_path / "s.parquet")}, tokenizer=True)
    for row, told in enumerate([0, 1, 1]):
        console = Console(file=io.StringIO(), width=200)
        assert preview_row(config, f"s:{row}", console=console) is None
        assert console.file.getvalue().count("never drawn: no token is supervised that has") == told  # type: ignore[attr-defined]


def losses(tmp_path: Path, source: dict[str, Any], run: str) -> list[float]:
    settings = {"steps": 3, "run_dir": str(tmp_path / run), "model": "tiny"}
    config = config_of(tmp_path, source, tokenizer=True, train=settings, metrics={"log_every": 1}, sequence_length=64)
    train(config, quiet=True)
    lines = (tmp_path / run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["metrics"]["train/loss"] for line in lines]


def test_training_has_the_same_loss_at_every_step_from_files_as_from_lists(tmp_path: Path) -> None:
    """Of two kinds; that the batches are the same for every kind is tested with the stores."""
    with TokenStore.writer(tmp_path / "lists") as writer:
        for number, row in enumerate(ROWS):
            ids, mask = np.array(row["input_ids"], np.int32), np.array(row["loss_mask"], np.bool_)
            writer.append(ids, mask, np.array([len(ids)], np.int32), np.array([number]))
    expected = losses(tmp_path, {"store": str(tmp_path / "lists")}, "run-lists")
    assert len(set(expected)) == 3
    for kind in ("rows.parquet", "rows.jsonl"):
        path = str(WRITERS[kind](labelled(ROWS), tmp_path / kind))
        assert losses(tmp_path, {"path": path}, f"run-{kind}") == expected
