"""Bad stores, each with the message that says where, what, and what to do."""

from __future__ import annotations

import gzip
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamsft.errors import DataError, StoreError, StreamsftError
from streamsft.sources.store import TokenStore
from tests.sources.stores import rows_of, write_indexed, write_lines, write_parquet, write_saved, write_stream

GOOD: dict[str, list[Any]] = {"input_ids": [[5, 6], [7, 8, 9], [3]], "loss_mask": [[0, 1], [0, 1, 1], [1]]}
PATCH, GRID = [[0.5, 1.5]], [[1, 1, 1]]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMSFT_CACHE", str(tmp_path / "cache"))


@dataclass(frozen=True)
class Bad:
    """Columns that are wrong in row 1 or as a whole, and the message; `without` of the good ones are left out."""

    columns: dict[str, Any]
    message: str
    without: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def table(self) -> pa.Table:
        columns = {name: column for name, column in GOOD.items() if name not in self.without}
        return pa.table(columns | self.columns)


VALUES = {
    "mask too short": Bad(
        {"loss_mask": [[0, 1], [0, 1], [1]]}, "row 1: input_ids has 3 entries, loss_mask 2; .* equally"
    ),
    "mask of a null row": Bad({"loss_mask": [[0, 1], None, [1]]}, "column loss_mask, row 1: has no list, but null"),
    "ids of a null row": Bad({"input_ids": [[5, 6], None, [3]]}, "column input_ids, row 1: has no list, but null"),
    "null row": Bad(
        {"input_ids": [[5, 6], None, [3]], "loss_mask": [[0, 1], None, [1]]},
        "input_ids, row 1: has no list, but null or nothing; remove the row, or write one",
    ),
    "labels of a null row": Bad({"labels": [[-100, 6], None, [3]]}, "labels, row 1: has no list", ("loss_mask",)),
    "attention of a null row": Bad({"attention_mask": [[1, 1], None, [1]]}, "attention_mask, row 1: has no list"),
    "nothing but nulls": Bad({"input_ids": [None, None, None]}, "input_ids, row 0: has no list"),
    "negative id": Bad({"input_ids": [[5, 6], [7, -8, 9], [3]]}, "row 1: input_ids holds -8; allowed are 0 to"),
    "id beyond int32": Bad({"input_ids": [[5, 6], [7, 2**31, 9], [3]]}, "row 1: input_ids holds 2147483648; allowed"),
    "id that wraps to a good one": Bad(
        {"input_ids": pa.array([[5, 6], [7, 2**64 - 1, 9], [3]], pa.list_(pa.uint64()))},
        "row 1: input_ids holds 18446744073709551615; allowed",
    ),
    "null id": Bad(
        {"input_ids": [[5, 6], [7, None, 9], [3]]}, "input_ids, row 1: has a null .* remove the row or write"
    ),
    "null in the mask": Bad({"loss_mask": [[0, 1], [0, 1, None], [1]]}, "loss_mask, row 1: has a null .* write"),
    "mask of 2": Bad({"loss_mask": [[0, 1], [0, 2, 1], [1]]}, "row 1: loss_mask holds 2; write 1 for each"),
    "mask of -1": Bad({"loss_mask": [[0, 1], [-1, 1, 1], [1]]}, "row 1: loss_mask holds -1; write 1"),
    "mask of a byte": Bad(
        {"loss_mask": pa.array([[0, 1], [0, 255, 1], [1]], pa.list_(pa.uint8()))}, "row 1: loss_mask holds 255; write 1"
    ),
    "mask of 0.5": Bad({"loss_mask": [[0.0, 1.0], [0.0, 0.5, 1.0], [1.0]]}, "row 1: loss_mask holds 0.5; write 1"),
    "mask of NaN": Bad({"loss_mask": [[0.0, 1.0], [0.0, math.nan, 1.0], [1.0]]}, "row 1: loss_mask holds nan; write 1"),
    "null in a float mask": Bad({"loss_mask": [[0.0, 1.0], [None, 0.0, 1.0], [1.0]]}, "row 1: has a null"),
    "label of another token": Bad(
        {"labels": [[-100, 6], [-100, 9, 9], [3]]},
        "row 1: labels holds 9 where input_ids has 8; a label is the id at its own place .* or -100",
        ("loss_mask",),
    ),
    "label of -1": Bad({"labels": [[-100, 6], [-1, 8, 9], [3]]}, "row 1: labels holds -1 where", ("loss_mask",)),
    "shifted labels": Bad({"labels": [[-100, 6], [8, 9, -100], [3]]}, "row 1: labels holds 8 where", ("loss_mask",)),
    "labels too long": Bad(
        {"labels": [[-100, 6], [-100, 8, 9, 9], [3]]}, "row 1: input_ids has 3 entries, labels 4", ("loss_mask",)
    ),
    "null label": Bad({"labels": [[-100, 6], [-100, None, 9], [3]]}, "labels, row 1: has a null", ("loss_mask",)),
    "labels of floats": Bad(
        {"labels": [[-100.0, 6.0], [7.0, 8.0, 9.0], [3.0]]}, "labels: needs lists of integers .* double", ("loss_mask",)
    ),
    "labels of booleans": Bad(
        {"labels": [[False, True], [False, True, True], [True]]}, "labels: needs lists of integers", ("loss_mask",)
    ),
    "labels that contradict the mask": Bad(
        {"labels": [[-100, 6], [-100, -100, 9], [3]]},
        "row 1: labels holds -100 where loss_mask says 1; they must agree",
    ),
    "padded row": Bad(
        {"attention_mask": [[1, 1], [1, 1, 0], [1]]},
        "row 1: attention_mask holds 0, so the row is padded; store rows without padding",
    ),
    "attention of another length": Bad(
        {"attention_mask": [[1, 1], [1, 1], [1]]}, "row 1: input_ids has 3 entries, attention_mask 2"
    ),
    "attention of 0.5": Bad(
        {"attention_mask": [[1.0, 1.0], [1.0, 0.5, 1.0], [1.0]]}, "row 1: attention_mask holds 0.5"
    ),
    "null attention": Bad({"attention_mask": [[1, 1], [1, None, 1], [1]]}, "attention_mask, row 1: has a null"),
    "pixels without a grid": Bad(
        {"pixel_values": [PATCH, PATCH, None], "image_grid_thw": [GRID, None, None]},
        "row 1: has pixel_values but no image_grid_thw; give the row both, or null in both",
    ),
    "a grid without pixels": Bad(
        {"pixel_values": [PATCH, [], None], "image_grid_thw": [GRID, GRID, None]},
        "row 1: has image_grid_thw but no pixel_values",
    ),
}
COLUMNS = {
    "no ids": Bad({}, "has no column input_ids, only loss_mask; a token store needs", ("input_ids",)),
    "no mask": Bad({}, "has no column loss_mask, only input_ids; .* loss_mask or labels", ("loss_mask",)),
    "text": Bad({"text": ["a", "b", "c"]}, "has no column input_ids and loss_mask, only text; .* `path`", tuple(GOOD)),
    "ids of text": Bad({"input_ids": ["a", "b", "c"]}, "input_ids: needs lists of .* found string; write one list"),
    "ids that are no lists": Bad({"input_ids": [5, 7, 3]}, "input_ids: needs lists of .* found int64"),
    "ids of floats": Bad({"input_ids": [[5.0, 6.0], [7.0, 8.0, 9.0], [3.0]]}, "input_ids: needs lists of .* double"),
    "ids of lists": Bad(
        {"input_ids": [[[5, 6]], [[7, 8, 9]], [[3]]]}, "input_ids: needs lists of .* found lists of list"
    ),
    "mask of text": Bad({"loss_mask": [["0", "1"], ["0", "1", "1"], ["1"]]}, "loss_mask: needs lists of .* string"),
    "only pixels": Bad(
        {"pixel_values": [PATCH] * 3}, "has pixel_values but no column image_grid_thw; images need both"
    ),
    "only grids": Bad({"image_grid_thw": [GRID] * 3}, "has image_grid_thw but no column pixel_values"),
    "an extra that is not there": Bad({}, "extras: has no column language, only", options={"extras": ["language"]}),
    "an extra that is used": Bad({}, "extras: loss_mask is read already", options={"extras": ["loss_mask"]}),
    "an extra of maps": Bad(
        {"more": pa.array([[("a", 1)], [], []], pa.map_(pa.string(), pa.int64()))},
        "column more: map<.*> cannot be carried; store it as text",
        options={"extras": ["more"]},
    ),
}


@pytest.mark.parametrize("bad", (VALUES | COLUMNS).values(), ids=VALUES | COLUMNS)
def test_bad_rows_are_refused_in_memory_and_in_files(bad: Bad, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=f"^source s.*{bad.message}"):
        TokenStore.from_arrow(bad.table, name="s", **bad.options)
    pq.write_table(bad.table, tmp_path / "s.parquet")
    with pa.ipc.new_stream(str(tmp_path / "s.arrow"), bad.table.schema) as writer:
        writer.write_table(bad.table)
    for name in ("s.parquet", "s.arrow"):
        with pytest.raises(StoreError, match=f"^{tmp_path}/{name}.*{bad.message}"):
            TokenStore.open(tmp_path / name, **bad.options)
    assert not list(tmp_path.glob(".*")), "nothing is kept of a store that was refused"


def _rows(row: Any) -> list[Any]:
    return [{"input_ids": [5, 6], "loss_mask": [0, 1]}, row]


JSON = {
    "no object": (_rows([1, 2]), "row 1: is a JSON list, not an object with input_ids; repair or remove it"),
    "no mask": (_rows({"input_ids": [1]}), "loss_mask, row 1: has no list, but null or nothing"),
    "no ids": (_rows({"loss_mask": [1]}), "input_ids, row 1: has no list, but null or nothing"),
    "nothing": (_rows({}), "input_ids, row 1: has no list, but null or nothing"),
    "negative id": (_rows({"input_ids": [-1], "loss_mask": [1]}), "row 1: input_ids holds -1; allowed are"),
    "huge id": (
        _rows({"input_ids": [2**70], "loss_mask": [1]}),
        f"row 1, .* and holds {2**70}",
    ),
    "id of 64 bits": (_rows({"input_ids": [1, 2**64 - 1], "loss_mask": [1, 1]}), f"row 1, .* and holds {2**64 - 1}"),
    "float id": (
        _rows({"input_ids": [1.5], "loss_mask": [1]}),
        "row 1, input_ids: .* integers, and holds 1.5;",
    ),
    "truth among ids": (_rows({"input_ids": [2, True], "loss_mask": [1, 1]}), "row 1, input_ids: .* and holds True;"),
    "truths as ids": (_rows({"input_ids": [True], "loss_mask": [1]}), "row 1, input_ids: .* and holds True;"),
    "text as ids": (_rows({"input_ids": "ab", "loss_mask": [1, 1]}), "row 1, input_ids: .* integers, found str"),
    "lists as ids": (_rows({"input_ids": [[1]], "loss_mask": [1]}), "row 1, input_ids: .*, found lists in it"),
    "an object as ids": (_rows({"input_ids": {"a": 1}, "loss_mask": [1]}), "row 1, input_ids: .*, found dict"),
    "null ids beside rows that differ": (
        [{"input_ids": [1], "loss_mask": [1], "x": 1}, {"input_ids": None, "loss_mask": None, "x": "a"}],
        "row 1, input_ids: is null; remove the row, or write a list, which may be empty",
    ),
    "null id": (_rows({"input_ids": [None, 2], "loss_mask": [1, 1]}), "row 1: has a null among"),
    "mask of 0.5": (_rows({"input_ids": [1], "loss_mask": [0.5]}), "row 1: loss_mask holds 0.5; write 1"),
    "mask of 7": (_rows({"input_ids": [1], "loss_mask": [7]}), "row 1: loss_mask holds 7; write 1"),
    "text of the first row": ([{"text": "a"}], "has no column input_ids and loss_mask, only text"),
}


@pytest.mark.parametrize(("rows", "message"), JSON.values(), ids=JSON)
def test_bad_json_rows_are_refused(rows: list[Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps(rows))
    (tmp_path / "s.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name in ("s.json", "s.jsonl"):
        with pytest.raises(StoreError, match=f"^{tmp_path}/{name}.*{message}"):
            TokenStore.open(tmp_path / name)


def test_a_field_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    row = '{"input_ids": [1, 2], "loss_mask": [1, 1], "input_ids": [3, 4]}'
    _text(tmp_path / "s.jsonl", '{"input_ids": [5], "loss_mask": [1]}\n' + row)
    with pytest.raises(StoreError, match=r"s\.jsonl, row 1: is no JSON \(it has 'input_ids' twice\)"):
        TokenStore.open(tmp_path / "s.jsonl")


@pytest.mark.parametrize("column", ["input_ids", "labels"])
def test_lists_of_truths_are_no_tokens(column: str, tmp_path: Path) -> None:
    values = {"input_ids": [[1, 0]], "labels": [[1, -100]], column: [[True, False]]}
    pq.write_table(pa.table(values), tmp_path / "s.parquet")
    with pytest.raises(StoreError, match=rf"column {column}: needs lists of integers, found list<.*bool>; write token"):
        TokenStore.open(tmp_path / "s.parquet")


@pytest.mark.parametrize("name", ["s.parquet", "s.jsonl", "s.arrow"])
@pytest.mark.parametrize("change", ["replaced", "removed", "longer"])
def test_a_file_that_changes_after_it_was_opened_is_not_read(name: str, change: str, tmp_path: Path) -> None:
    compressed = partial(write_stream, compression="zstd")
    write: Callable[..., Path] = {"s.parquet": write_parquet, "s.jsonl": write_lines, "s.arrow": compressed}[name]
    rows, path = rows_of(20), tmp_path / name
    store = TokenStore.open(write(rows, path))
    if change == "removed":
        path.unlink()
    else:
        write(rows[::-1] if change == "replaced" else [*rows, *rows], path)
        os.utime(path, ns=(1, 1))
    with pytest.raises(DataError, match=rf"{path.name}: (changed while it was in use|cannot be read)"):
        store[3]


def _cut(path: Path, size: int) -> Path:
    os.truncate(path, size if size >= 0 else path.stat().st_size + size)
    return path


def _text(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def _link(path: Path, target: str) -> Path:
    path.symlink_to(target)
    return path


def _splits(path: Path) -> Path:
    part = datasets.Dataset.from_dict(GOOD)
    datasets.DatasetDict({"train": part, "test": part}).save_to_disk(path)
    return path


def _two_kinds(path: Path) -> Path:
    path.mkdir()
    write_parquet(ROWS, path / "a.parquet")
    write_stream(ROWS, path / "b.arrow")
    return path


def _images_in_one(path: Path) -> Path:
    path.mkdir()
    write_parquet(ROWS, path / "a.parquet")
    pq.write_table(pa.table({**GOOD, "pixel_values": [PATCH] * 3, "image_grid_thw": [GRID] * 3}), path / "b.parquet")
    return path


def _shard_missing(path: Path) -> Path:
    write_saved(ROWS, path)
    (path / "data-00001-of-00002.arrow").unlink()
    return path


def _twice(path: Path) -> Path:
    schema = pa.schema([("input_ids", pa.list_(pa.int32())), ("loss_mask", pa.list_(pa.int8()))])
    batch = pa.RecordBatch.from_arrays(
        [pa.array([[1]], schema[0].type), pa.array([[1]], schema[1].type), pa.array([[1]], schema[0].type)],
        ["input_ids", "loss_mask", "input_ids"],
    )
    with pa.ipc.new_stream(str(path), batch.schema) as writer:
        writer.write_batch(batch)
    return path


ROWS = rows_of(20)
FILES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "nothing there": (lambda p: p / "a" / "b.parquet", "a/b.parquet: no such file; the nearest path that exists is"),
    "nearly there": (
        lambda p: write_parquet(ROWS, p / "rows.parquet").with_name("row.parquet"),
        "no such file; .* which holds rows.parquet",
    ),
    "an empty directory": (lambda p: p, "holds no file of rows .* and no other; if it was a store"),
    "a directory of other things": (lambda p: _text(p / "README.md", "x").parent, "only README.md"),
    "an empty pattern": (lambda p: p / "*.parquet", "no such file"),
    "files of two kinds": (
        lambda p: _two_kinds(p / "d"),
        r"several kinds \(1 arrow, 1 parquet\); name those of one kind",
    ),
    "several splits": (lambda p: _splits(p / "d"), "holds several splits; name .* one of them: test, train"),
    "text": (lambda p: _text(p / "s.csv", "a,b"), "s.csv: holds no tokenized rows; a store is .arrow, .parquet"),
    "an unknown ending": (lambda p: _text(p / "s.bin", "x"), "s.bin: holds no tokenized rows; a store is"),
    "a link to nothing": (
        lambda p: _link(p / "s.parquet", "gone.parquet"),
        "s.parquet: is a link to gone.parquet, which is not there; mend or remove it",
    ),
    "a link to itself": (lambda p: _link(p / "s.parquet", "s.parquet"), "is a link to s.parquet, which is not there"),
    "a link to nothing in a directory": (
        lambda p: _link(p / "s.parquet", "gone.parquet").parent,
        "s.parquet: is a link to gone.parquet, which is not there; mend or remove it",
    ),
    "Parquet named Arrow": (
        lambda p: write_parquet(ROWS, p / "s.parquet").rename(p / "s.arrow"),
        "s.arrow: is a Parquet file; name it so, with .parquet at its end",
    ),
    "an Arrow file named Parquet": (
        lambda p: write_indexed(ROWS, p / "s.arrow").rename(p / "s.parquet"),
        "s.parquet: is an Arrow file; name it so, with .arrow at its end",
    ),
    "an Arrow stream named Parquet": (
        lambda p: write_stream(ROWS, p / "s.arrow").rename(p / "s.parquet"),
        "s.parquet: is an Arrow file; name it so, with .arrow at its end",
    ),
    "nothing named": (lambda p: "", "path: is empty; name a file or a directory"),
    "nothing named in a list": (lambda p: [""], "path: is empty; name a file or a directory"),
    "None": (lambda p: None, "path: None is no path and no list of paths"),
    "a number": (lambda p: 5, "path: 5 is no path and no list of paths"),
    "bytes": (lambda p: b"s.parquet", "path: b's.parquet' is no path and no list"),
    "a list of other things": (lambda p: [p, None], "path: None is no path; give a text or a pathlib.Path"),
    "an empty list": (lambda p: [], "the list is empty"),
    "a file twice": (lambda p: [write_parquet(ROWS, p / "s.parquet")] * 2, "s.parquet: listed twice"),
    "a stream cut off": (
        lambda p: _cut(write_stream(ROWS, p / "s.arrow"), -8),
        "no end-of-stream mark.* write or copy",
    ),
    "an Arrow file cut off": (lambda p: _cut(write_indexed(ROWS, p / "s.arrow"), -9), "s.arrow: is damaged .* again"),
    "an empty Arrow file": (lambda p: _text(p / "s.arrow", ""), "s.arrow: "),
    "no Arrow file": (lambda p: _text(p / "s.arrow", "x" * 99), "s.arrow: has no end-of-stream mark"),
    "a Parquet file cut off": (
        lambda p: _cut(write_parquet(ROWS, p / "s.parquet"), -5),
        "s.parquet: is no Parquet file",
    ),
    "no Parquet file": (lambda p: _text(p / "s.parquet", "PAR1"), "s.parquet: is no Parquet file, or damaged"),
    "a shard missing": (lambda p: _shard_missing(p / "d"), "data-00001-of-00002.arrow: no such file"),
    "a broken state": (lambda p: _text(p / "d" / "state.json", "[]").parent, r"state\.json: cannot be read"),
    "half of a store": (
        lambda p: _text(p / "d" / "state.json", '{"_data_files": [], "streamsft": 2}').parent,
        r"only half written or copied \(streamsft.json is missing\); build the store again",
    ),
    "a column twice": (lambda p: _twice(p / "s.arrow"), "has 2 columns called input_ids; rename or remove all but one"),
    "images in one of two files": (lambda p: _images_in_one(p / "d"), "b.parquet: has images, and the files before it"),
    "compressed text": (
        lambda p: _text(p / "s.jsonl.gz", gzip.compress(b'{"input_ids": [1], "loss_mask": [1]}')),
        "is compressed, so .* decompress it, or make a store of it with `streamsft convert`",
    ),
    "broken JSON": (lambda p: _text(p / "s.jsonl", '{"input_ids": [1], "loss_mask": [1]}\n{"in'), "row 1: is no JSON"),
    "other text than UTF-8": (
        lambda p: _text(p / "s.jsonl", b'{"input_ids": [1], "loss_mask": [1], "note": "caf\xe9"}\n'),
        "row 0: is not UTF-8",
    ),
    "a broken array": (lambda p: _text(p / "s.json", '[{"input_ids": [1], "loss_mask": [1]},'), "malformed JSON array"),
    "UTF-16": (lambda p: _text(p / "s.jsonl", '{"input_ids": []}'.encode("utf-16")), "the text is UTF-16; convert it"),
}


@pytest.mark.parametrize(("make", "message"), FILES.values(), ids=FILES)
def test_bad_files_are_refused(make: Callable[[Path], Any], message: str, tmp_path: Path) -> None:
    path = make(tmp_path)
    with pytest.raises(StreamsftError, match=message):
        TokenStore.open(path)


def test_the_first_bad_row_of_later_pieces_and_files_is_named(tmp_path: Path) -> None:
    rows = rows_of(40, longest=5)
    write_parquet(rows, tmp_path / "a.parquet")
    rows[33]["loss_mask"] = [*rows[33]["loss_mask"], 1]
    write_parquet(rows, tmp_path / "b.parquet", group=8)
    with pytest.raises(StoreError, match=r"b\.parquet, row 33: input_ids has"):
        TokenStore.open(tmp_path)
    write_lines(rows, tmp_path / "b.jsonl")
    with pytest.raises(StoreError, match=r"b\.jsonl, row 33: input_ids has"):
        TokenStore.open(tmp_path / "b.jsonl")


def test_ids_that_the_tokenizer_does_not_have_are_refused(tmp_path: Path) -> None:
    rows = [{"input_ids": [1, 2], "loss_mask": [1, 1]}, {"input_ids": [1, 9], "loss_mask": [1, 1]}]
    path = write_parquet(rows, tmp_path / "s.parquet")
    for _ in range(2):
        assert TokenStore.open(path, vocabulary=10).manifest.largest_id == 9
        with pytest.raises(StoreError, match=r"^s\.parquet, row 1: input_ids holds 9, .* has 9 ids"):
            TokenStore.open(path, vocabulary=9)


def test_a_store_of_streamsft_has_no_extras(tmp_path: Path) -> None:
    with TokenStore.writer(tmp_path / "s"):
        pass
    with pytest.raises(StoreError, match="extras: a store that streamsft wrote holds nothing beside its tokens"):
        TokenStore.open(tmp_path / "s", extras=["row"])


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.arrow", "rows.parquet"])
def test_a_pipe_is_refused_and_not_waited_for(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    for place in (tmp_path, tmp_path / name):
        with pytest.raises(StoreError, match=f"{name}: is no file, but a pipe, a socket or a device"):
            TokenStore.open(place)
