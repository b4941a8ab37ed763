"""Rows held out: never trained on, the same ones however the source is read, and copies of a row on one side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamsft as ss
from streamsft.commands.train import train
from streamsft.errors import ConfigError, EmptySourceError
from streamsft.sources.store import TokenStore
from streamsft.text.rejections import read_rejections
from tests.pipelines import small_config

COUNT = 120


def texts() -> list[str]:
    """Every third row is a copy of the row two before it."""
    return [f"what is {number - 2 * (number % 3 == 2)}" for number in range(COUNT)]


def rows() -> list[dict[str, str]]:
    return [{"question": text, "answer": f"it is {text[8:]}"} for text in texts()]


def config(folder: Path, **source: Any) -> dict[str, Any]:
    """One source of `rows`; streamed, its windows are short."""
    path = folder / "rows.jsonl"
    if not path.exists():
        path.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    made = small_config(folder, packing={"lookahead": 40}, loader={"global_batch_size": 2})
    made["mix"]["sources"] = {"facts": {"path": str(path), **source}}
    made["train"] |= {"steps": 25, "run_dir": str(folder / f"run-{source.get('streaming', False)}")}
    return made


def consumed(run: Path) -> list[tuple[int, int]]:
    """(row, pass) of all rows, in order."""
    lines = [json.loads(line) for line in (run / "audit" / "rank-0.jsonl").read_text().splitlines()]
    return [(row, index) for line in lines for pack in line["packs"] for _, row, index in pack["rows"]]


def numbers(store: TokenStore) -> set[int]:
    return set(store.row_numbers.tolist())


@pytest.mark.parametrize("streaming", [False, True], ids=["stored", "streamed"])
@pytest.mark.parametrize("holdout", [0.2, 10], ids=["fraction", "rows"])
def test_training_rows_and_held_rows_are_everything_and_have_nothing_in_common(
    tmp_path: Path, streaming: bool, holdout: float
) -> None:
    made = config(tmp_path, holdout=holdout, **({"streaming": True, "shuffle_window": 8} if streaming else {}))
    train(made, quiet=True)
    held = ss.held_out(made, "facts")
    trained = consumed(tmp_path / f"run-{streaming}")
    assert held.name == "facts.holdout"
    assert max(index for _, index in trained) >= 2
    for index in (0, 1):
        assert sorted([row for row, number in trained if number == index] + list(numbers(held))) == list(range(COUNT))
    said = texts()
    assert not {said[row] for row, _ in trained} & {said[row] for row in numbers(held)}
    share = len({said[row] for row in numbers(held)}) / len(set(said))
    assert share == pytest.approx(0.2, abs=0.12) if holdout < 1 else len(held) in (10, 11)


def test_the_same_rows_are_held_streamed_and_stored_in_any_format_and_with_any_processes(tmp_path: Path) -> None:
    stored = ss.held_out(config(tmp_path, holdout=0.2), "facts")
    streamed = ss.held_out(config(tmp_path, holdout=0.2, streaming=True), "facts")
    table = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows()), table, row_group_size=13)
    other = ss.held_out(config(tmp_path, holdout=0.2, path=str(table)), "facts", processes=2)
    for store in (streamed, other):
        assert numbers(store) == numbers(stored)
        assert np.array_equal(store[0].input_ids, stored[0].input_ids)
    again = ss.held_out(config(tmp_path, holdout=0.2), "facts")
    assert again.path == stored.path


def test_held_rows_are_counted_but_are_no_bad_rows(tmp_path: Path) -> None:
    made = config(tmp_path, holdout=10, on_bad_row="error")
    path = Path(made["mix"]["sources"]["facts"]["path"])
    kept = ss.tokenize(made)["facts"]
    assert kept.manifest.rejected == {"held_out": COUNT - len(kept)}
    assert ss.tokenize(made)["facts"].path == kept.path
    path.write_text(path.read_text() + "not json\n")
    made["mix"]["sources"]["facts"]["on_bad_row"] = "skip"
    kept = ss.tokenize(made)["facts"]
    assert kept.path is not None
    assert kept.manifest.rejected == {"held_out": COUNT - len(kept), "bad_row": 1}
    assert [record["reason"] for record in read_rejections(kept.path)] == ["bad_row"]
    assert ss.held_out(made, "facts").manifest.rejected == {}


def test_a_function_makes_the_tokens_of_held_rows_too(tmp_path: Path) -> None:
    made = config(tmp_path, holdout=0.2)
    held = ss.held_out(made, "facts", transforms={"facts": as_numbers})
    assert numbers(held) == numbers(ss.held_out(made, "facts"))
    assert held[0].input_ids.tolist() == [1, 2, int(held.row_numbers[0]) - 2 * (int(held.row_numbers[0]) % 3 == 2)]


def as_numbers(row: dict[str, str]) -> dict[str, list[int]]:
    return {"input_ids": [1, 2, int(row["answer"][6:])], "loss_mask": [0, 1, 1]}


@pytest.mark.parametrize("streaming", [False, True], ids=["stored", "streamed"])
def test_a_hold_out_that_leaves_nothing_is_refused(tmp_path: Path, streaming: bool) -> None:
    with pytest.raises(ConfigError, match="120 rows are to be held, and it has 120"):
        train(config(tmp_path, holdout=COUNT, **({"streaming": True} if streaming else {})), quiet=True)
    with pytest.raises(EmptySourceError, match=r"source facts.*held"):
        ss.held_out(config(tmp_path, holdout=1e-12, **({"streaming": True} if streaming else {})), "facts")
    with pytest.raises(ConfigError, match="source 'facts' holds no rows out; give it a holdout"):
        ss.held_out(config(tmp_path), "facts")
    with pytest.raises(ConfigError, match="source 'fact' is not in the config; those that do: facts"):
        ss.held_out(config(tmp_path, holdout=3), "fact")
