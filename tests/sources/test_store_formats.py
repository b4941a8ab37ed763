"""Stores of every kind read like the same rows held as Python lists."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

from streamsft.errors import StoreError
from streamsft.sources import opening
from streamsft.sources.index import INDEX_FILE
from streamsft.sources.store import TokenStore
from streamsft.stream.interleave import Interleave
from streamsft.stream.loader import Loader
from streamsft.stream.packer import Packer
from tests.sources.stores import (
    WRITERS,
    Rows,
    arrow_table,
    contents,
    labelled,
    rows_of,
    write_lines,
    write_parquet,
    write_saved,
    write_stream,
)

ROWS = rows_of(50)
LISTED = TokenStore.from_rows(ROWS, name="s")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMSFT_CACHE", str(tmp_path / "cache"))


def same(store: TokenStore, rows: Rows = ROWS, listed: TokenStore = LISTED) -> None:
    """Row for row, in order, out of order, and in what planning sees, `store` is `rows`."""
    assert contents(store) == rows
    chosen = np.random.default_rng(1).integers(0, len(rows), 30).tolist()
    assert contents(store, chosen) == [rows[i] for i in chosen]
    assert store.fingerprint == listed.fingerprint
    assert (store.tokens, store.manifest.supervised) == (listed.tokens, listed.manifest.supervised)
    assert store.manifest.largest_id == listed.manifest.largest_id
    for column in ("lengths", "supervised", "first_supervised", "row_numbers"):
        assert getattr(store, column).tolist() == getattr(listed, column).tolist()
        assert getattr(store, column).dtype == getattr(listed, column).dtype


@pytest.mark.parametrize("supervision", ["loss_mask", "labels"])
@pytest.mark.parametrize("kind", WRITERS)
def test_every_kind_reads_like_lists(kind: str, supervision: str, tmp_path: Path) -> None:
    path = WRITERS[kind](ROWS if supervision == "loss_mask" else labelled(ROWS), tmp_path / kind)
    for _ in range(2):  # scanned, then from what the scan has left
        store = TokenStore.open(path, name="s")
        same(store)
        same(pickle.loads(pickle.dumps(store)))
        assert len(pickle.dumps(store)) < 600
        assert store.read(np.empty(0, np.int64)) == ([], [])
        for missing in (-1, 50):
            with pytest.raises(IndexError):
                store.read(np.array([missing]))


def batches(store: TokenStore) -> list[list[list[int]]]:
    mix = Interleave([store], seed=3)
    taken = []
    for batch in Loader(Packer(mix, 64, lookahead=16), global_batch_size=2, background=False):
        taken.append([batch.input_ids.tolist(), batch.labels.tolist(), batch.position_ids.tolist(), batch.rows])
        if batch.step == 12:
            return taken
    raise AssertionError


@pytest.mark.parametrize("kind", WRITERS)
def test_every_kind_gives_the_same_batches(kind: str, tmp_path: Path) -> None:
    store = TokenStore.open(WRITERS[kind](ROWS, tmp_path / kind), name="s")
    assert batches(store) == batches(LISTED)


@pytest.mark.parametrize("kind", WRITERS)
def test_rows_are_named_by_file_and_number(kind: str, tmp_path: Path) -> None:
    store = TokenStore.open(WRITERS[kind](ROWS, tmp_path / kind))
    last = {
        "saved": "data-00001-of-00002.arrow:24",
        "parts": "c.parquet:17",
    }
    assert store.origin(49) == last.get(kind, f"{kind}:49")
    assert store.origin(0).endswith(":0")


def no_scan(*_: Any) -> Any:
    raise AssertionError("scanned again")


@pytest.mark.parametrize("kind", WRITERS)
def test_a_store_is_scanned_once(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = WRITERS[kind](ROWS, tmp_path / kind)
    TokenStore.open(path)
    monkeypatch.setattr(opening, "scan_files", no_scan)
    assert contents(TokenStore.open(path)) == ROWS
    with pytest.raises(AssertionError, match="scanned again"):
        TokenStore.open(path, verify=True)


def test_a_store_that_changed_is_scanned_again(tmp_path: Path) -> None:
    path = write_parquet(ROWS, tmp_path / "rows.parquet")
    pickled = pickle.dumps(TokenStore.open(path))
    write_parquet(ROWS[1:], path)
    assert contents(TokenStore.open(path)) == ROWS[1:]
    with pytest.raises(StoreError, match="holds other rows"):
        len(pickle.loads(pickled))


def test_where_nothing_can_be_written_beside_the_files_the_cache_keeps_what_a_scan_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_parquet(ROWS, tmp_path / "rows.parquet")
    real = os.open

    def refusing(place: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_CREAT and Path(place).parent == tmp_path:
            raise PermissionError(13, "Permission denied")
        return real(place, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refusing)
    store = TokenStore.open(path)
    assert not list(tmp_path.glob(f"*{INDEX_FILE}"))
    assert len(list((tmp_path / "cache" / "indexes").iterdir())) == 1
    assert len(pickle.dumps(store)) < 600
    monkeypatch.setattr(opening, "scan_files", no_scan)
    same(TokenStore.open(path))


def test_a_list_keeps_its_order(tmp_path: Path) -> None:
    paths = [write_stream(ROWS[30:], tmp_path / "b.arrow"), write_stream(ROWS[:30], tmp_path / "a.arrow")]
    store = TokenStore.open(paths)
    assert contents(store) == ROWS[30:] + ROWS[:30]
    assert (store.name, store.path, store.origin(20)) == ("b", None, "a.arrow:0")
    assert contents(pickle.loads(pickle.dumps(store))) == contents(store)
    assert contents(TokenStore.open(str(tmp_path / "*.arrow"))) == ROWS


def test_files_of_one_store_may_differ_in_layout(tmp_path: Path) -> None:
    write_stream(ROWS[:20], tmp_path / "a.arrow")
    write_stream(labelled(ROWS[20:]), tmp_path / "b.arrow", compression="zstd")
    same(TokenStore.open(tmp_path))


@pytest.mark.parametrize("kind", ["stream.arrow", "rows.parquet", "rows.jsonl"])
def test_an_attention_mask_of_ones_and_agreeing_labels_change_nothing(kind: str, tmp_path: Path) -> None:
    rows = [
        {**row, "labels": labels["labels"], "attention_mask": [1] * len(row["input_ids"]), "text": "no tokens"}
        for row, labels in zip(ROWS, labelled(ROWS), strict=True)
    ]
    same(TokenStore.open(WRITERS[kind](rows, tmp_path / kind)))


def test_row_groups_of_any_size_are_read_whatever_the_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from streamsft.sources import blockrows

    monkeypatch.setattr(blockrows.BlockRows.__init__, "__kwdefaults__", {"budget": 500})
    for group in (1, 7, 100):
        path = write_parquet(ROWS, tmp_path / f"{group}.parquet", group)
        store = TokenStore.open(path)
        assert store.layout.blocks == -(-50 // group)
        same(store)


def test_a_store_in_which_nothing_lies_is_empty(tmp_path: Path) -> None:
    empty: Rows = [{"input_ids": [], "loss_mask": []}]
    for kind in ("stream.arrow", "rows.parquet", "rows.jsonl"):
        store = TokenStore.open(WRITERS[kind](empty, tmp_path / kind))
        assert (len(store), store.tokens, contents(store)) == (1, 0, empty)
    nothing = arrow_table(ROWS).slice(0, 0)
    pq.write_table(nothing, tmp_path / "nothing.parquet")
    with pa.ipc.new_stream(str(tmp_path / "nothing.arrow"), nothing.schema):
        pass
    (tmp_path / "nothing.jsonl").touch()
    for name in ("nothing.parquet", "nothing.arrow", "nothing.jsonl"):
        assert len(TokenStore.open(tmp_path / name)) == 0


def test_json_that_the_fast_reader_refuses_is_read_row_by_row(tmp_path: Path) -> None:
    rows = [{**row, "note": 1 if at % 2 else {"deep": [at]}} for at, row in enumerate(ROWS)]
    rows[3]["loss_mask"] = [float(m) for m in rows[3]["loss_mask"]]
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n \r\n".join("  " + json.dumps(row) for row in rows).encode())
    same(TokenStore.open(path))


def test_ids_of_eight_bits_are_ids(tmp_path: Path) -> None:
    rows: Rows = [{"input_ids": [0, 2, 100], "loss_mask": [0, 1, 1]}]
    pq.write_table(arrow_table(rows, pa.list_(pa.int8())), tmp_path / "small.parquet")
    assert contents(TokenStore.open(tmp_path / "small.parquet")) == rows
    assert contents(TokenStore.from_arrow(arrow_table(rows, pa.list_(pa.uint8())))) == rows


def test_dictionaries_and_bits_in_files(tmp_path: Path) -> None:
    table = arrow_table(ROWS)
    bits = table.column("loss_mask").cast(pa.list_(pa.bool_()))
    index = pa.array(list(range(50)), pa.int16())
    encoded = pa.DictionaryArray.from_arrays(index, table.column("input_ids").combine_chunks())
    table = pa.table({"loss_mask": bits, "input_ids": encoded})
    with pa.ipc.new_stream(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table.slice(0, 30), 8)
        writer.write_table(table.slice(30), 8)
    same(TokenStore.open(tmp_path / "a.arrow"))


token_rows = st.lists(
    st.lists(st.tuples(st.integers(0, 2**31 - 1), st.booleans()), max_size=9), min_size=1, max_size=25
)


@settings(max_examples=40, deadline=None)
@given(found=token_rows, kind=st.sampled_from(sorted(set(WRITERS) - {"saved", "parts"})), data=st.data())
def test_any_store_reads_like_lists(
    tmp_path_factory: pytest.TempPathFactory, found: list[list[tuple[int, bool]]], kind: str, data: st.DataObject
) -> None:
    rows: Rows = [{"input_ids": [i for i, _ in row], "loss_mask": [int(m) for _, m in row]} for row in found]
    folder = tmp_path_factory.mktemp("store")
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(rows) - 1)), max_size=2)))
    for number, (first, last) in enumerate(zip([0, *cuts], [*cuts, len(rows)], strict=True)):
        part = rows[first:last]
        if part:
            WRITERS[kind](labelled(part) if data.draw(st.booleans()) else part, folder / f"{number}-{kind}")
    same(TokenStore.open(folder), rows, TokenStore.from_rows(rows, name="s"))


def test_many_rows_are_scanned_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from streamsft.sources import rowfacts, validation

    monkeypatch.setattr(rowfacts, "_SPILL_BYTES", 64)
    monkeypatch.setattr(rowfacts, "_CHUNK", 5)
    monkeypatch.setattr(validation.pieces, "__defaults__", (20, 3))
    same(TokenStore.open(write_saved(ROWS, tmp_path / "s", shards=3)))
    same(TokenStore.open(write_lines(ROWS, tmp_path / "s.jsonl")))
