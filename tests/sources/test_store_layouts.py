"""The same rows in every Arrow layout: one content, one fingerprint."""

from __future__ import annotations

import itertools
import os
import pickle
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from streamsft.errors import StoreError
from streamsft.sources.index import INDEX_FILE
from streamsft.sources.store import TokenStore

Rows = list[list[int] | None]
IDS: Rows = [[5, 6, 7], [], [], [1, 2, 3, 4], [2**31 - 1]]
MASK: Rows = [[0, 1, 1], [], [], [1, 0, 0, 1], [0]]
LAYOUTS: dict[str, Callable[[pa.DataType], pa.DataType]] = {
    "list": pa.list_,
    "large_list": pa.large_list,
    "list_view": pa.list_view,
    "large_list_view": pa.large_list_view,
}
ID_TYPES = [pa.int32(), pa.int64(), pa.uint32(), pa.uint64()]
MASK_TYPES = [pa.bool_(), pa.int8(), pa.uint8(), pa.int64()]


def table(ids: pa.Array | pa.ChunkedArray, mask: pa.Array | pa.ChunkedArray) -> pa.Table:
    return pa.table({"other": pa.nulls(len(ids)), "loss_mask": mask, "input_ids": ids})


def arrow(rows: Rows, kind: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(kind.value_type):
        return pa.array([None if row is None else [value == 1 for value in row] for row in rows], kind)
    return pa.array(rows, kind)


def cut(rows: Rows, kind: pa.DataType, sliced: bool, chunks: int) -> pa.ChunkedArray:
    """`rows` as an Arrow column of `chunks` chunks, each with rows before and after it cut off if `sliced`."""
    arrays = []
    for part in np.array_split(np.arange(len(rows)), chunks):
        chosen = [rows[i] for i in part]
        array = arrow([[1, 1], [0], *chosen, [1]] if sliced else chosen, kind)
        arrays.append(array.slice(2, len(chosen)) if sliced else array)
    return pa.chunked_array(arrays, kind)


def plain(store: TokenStore) -> list[tuple[list[int], list[bool]]]:
    ids, masks = store.read(np.arange(len(store)))
    assert all(i.dtype == np.int32 and m.dtype == np.bool_ for i, m in zip(ids, masks, strict=True))
    return [(i.tolist(), m.tolist()) for i, m in zip(ids, masks, strict=True)]


EXPECTED = [(list(i or []), [bool(m) for m in (mask or [])]) for i, mask in zip(IDS, MASK, strict=True)]
FINGERPRINT = TokenStore.from_rows(
    [{"input_ids": i, "loss_mask": m} for i, m in zip(IDS, MASK, strict=True)]
).fingerprint


@pytest.mark.parametrize("mask_type", MASK_TYPES, ids=str)
@pytest.mark.parametrize("id_type", ID_TYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_reads_alike(layout: str, id_type: pa.DataType, mask_type: pa.DataType) -> None:
    make = LAYOUTS[layout]
    for sliced, chunks in itertools.product([False, True], [1, 3]):
        ids, mask = cut(IDS, make(id_type), sliced, chunks), cut(MASK, make(mask_type), not sliced, chunks)
        store = TokenStore.from_arrow(table(ids, mask))
        assert plain(store) == plain(pickle.loads(pickle.dumps(store))) == EXPECTED
        assert store.fingerprint == FINGERPRINT
        assert store.supervised.tolist() == [2, 0, 0, 1, 0]
        assert store.first_supervised.tolist() == [1, 0, 0, 3, 1]


@pytest.mark.parametrize("mask_type", MASK_TYPES, ids=str)
def test_fixed_size_lists_read_alike(mask_type: pa.DataType) -> None:
    ids: Rows = [[1, 2], [3, 4], [5, 6], [7, 8]]
    mask: Rows = [[0, 1], [1, 1], [0, 0], [1, 0]]
    expected = TokenStore.from_rows([{"input_ids": i, "loss_mask": m} for i, m in zip(ids, mask, strict=True)])
    for sliced, chunks in itertools.product([False, True], [1, 3]):
        columns = []
        for rows, kind in ((ids, pa.list_(pa.int64(), 2)), (mask, pa.list_(mask_type, 2))):
            parts = [[rows[i] for i in part] for part in np.array_split(np.arange(4), chunks)]
            arrays = [arrow([[1, 1], *part], kind).slice(1) if sliced else arrow(part, kind) for part in parts]
            columns.append(pa.chunked_array(arrays, kind))
        store = TokenStore.from_arrow(table(*columns))
        assert plain(store) == plain(expected)
        assert store.fingerprint == expected.fingerprint


def test_layouts_may_differ_between_columns_and_dictionaries_are_decoded() -> None:
    ids = pa.array(IDS, pa.list_(pa.int32()))
    encoded = pa.DictionaryArray.from_arrays(
        pa.array([0, 1, 2, 3, 4], pa.int8()), arrow(MASK, pa.large_list(pa.bool_()))
    )
    store = TokenStore.from_arrow(table(ids, encoded))
    assert plain(store) == EXPECTED
    inner = pa.ListArray.from_arrays(ids.offsets, ids.values.dictionary_encode())
    rows = arrow([m or [] for m in MASK], pa.list_(pa.bool_()))
    assert TokenStore.from_arrow(table(inner, rows)).fingerprint == FINGERPRINT


ragged_rows = st.lists(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.booleans()), max_size=12), max_size=30)


@settings(max_examples=60)
@given(rows=ragged_rows, layout=st.sampled_from(sorted(LAYOUTS)), sliced=st.booleans(), data=st.data())
def test_any_rows_read_alike_in_any_layout(
    rows: list[list[tuple[int, bool]]], layout: str, sliced: bool, data: st.DataObject
) -> None:
    ids: Rows = [[i for i, _ in row] for row in rows]
    mask: Rows = [[int(m) for _, m in row] for row in rows]
    kinds = data.draw(st.tuples(st.sampled_from(ID_TYPES), st.sampled_from(MASK_TYPES)))
    chunks = data.draw(st.integers(1, 4))
    id_column = cut(ids, LAYOUTS[layout](kinds[0]), sliced, chunks)
    mask_column = cut(mask, LAYOUTS[layout](kinds[1]), not sliced, data.draw(st.integers(1, 4)))
    store = TokenStore.from_arrow(table(id_column, mask_column))
    assert plain(store) == [(list(i or []), [bool(m) for m in (k or [])]) for i, k in zip(ids, mask, strict=True)]
    expected = TokenStore.from_rows([{"input_ids": i, "loss_mask": m} for i, m in zip(ids, mask, strict=True)])
    assert store.fingerprint == expected.fingerprint
    for column in ("lengths", "supervised", "first_supervised", "row_numbers"):
        assert getattr(store, column).tolist() == getattr(expected, column).tolist()
    places = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=20)) if rows else []
    found = store.read(np.array(places, np.int64))[0]
    assert [f.tolist() for f in found] == [ids[p] for p in places]


def saved(path: Path, shards: int = 1, features: datasets.Features | None = None, repeat: int = 1) -> Path:
    rows = {"text": [str(i) for i in range(5 * repeat)]}
    tokens = {"input_ids": [i or [] for i in IDS] * repeat, "loss_mask": [m or [] for m in MASK] * repeat}
    datasets.Dataset.from_dict({**rows, **tokens}, features=features).save_to_disk(path, num_shards=shards)
    return path


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("mask", ["bool", "int8", "int64"])
@pytest.mark.parametrize("ids", ["int32", "int64"])
def test_a_saved_dataset_is_a_store(ids: str, mask: str, shards: int, tmp_path: Path) -> None:
    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "input_ids": datasets.List(datasets.Value(ids)),
            "loss_mask": datasets.LargeList(datasets.Value(mask)),
        }
    )
    path = saved(tmp_path / "f", shards, features)
    for _ in range(2):  # scanned, then from what the scan has left
        store = TokenStore.open(path)
        assert plain(store) == EXPECTED
        assert store.fingerprint == FINGERPRINT
        assert len(pickle.dumps(store)) < 500
        assert plain(pickle.loads(pickle.dumps(store))) == EXPECTED
    assert [s.row for s in store] == [0, 1, 2, 3, 4]
    assert datasets.load_from_disk(path)["input_ids"][0] == IDS[0]


def test_a_foreign_store_is_scanned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path / "f")
    TokenStore.open(path)
    from streamsft.sources import opening

    def no_scan(*_: Any) -> Any:
        raise AssertionError("scanned again")

    monkeypatch.setattr(opening, "scan_files", no_scan)
    assert TokenStore.open(path).fingerprint == FINGERPRINT


def test_a_changed_foreign_store_is_scanned_again(tmp_path: Path) -> None:
    path = saved(tmp_path / "f")
    before = TokenStore.open(path).fingerprint
    saved(tmp_path / "g", repeat=2)
    for file in (tmp_path / "g").iterdir():
        os.replace(file, path / file.name)
    store = TokenStore.open(path)
    assert (len(store), before == store.fingerprint) == (10, False)


def test_a_broken_index_of_a_foreign_store_is_made_anew(tmp_path: Path) -> None:
    path = saved(tmp_path / "f")
    lengths = TokenStore.open(path).lengths.tolist()
    whole = (path / INDEX_FILE).read_bytes()
    flipped = [whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :] for at in range(0, len(whole), 5)]
    for broken in (b"", b"abc", whole[:-1], *flipped):
        (path / INDEX_FILE).write_bytes(broken)
        store = TokenStore.open(path)
        assert (store.fingerprint, store.lengths.tolist()) == (FINGERPRINT, lengths)
        assert (path / INDEX_FILE).read_bytes() == whole


def test_a_foreign_store_in_a_directory_that_refuses_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path / "f")
    mode = stat.S_IMODE(path.stat().st_mode)
    path.chmod(0o500)
    try:
        if os.access(path, os.W_OK):  # root may write everywhere
            real = os.open
            monkeypatch.setattr(
                os, "open", lambda p, flags, *a, **k: real("/proc/no" if flags & os.O_CREAT else p, flags, *a, **k)
            )
        store = TokenStore.open(path)
        assert not (path / INDEX_FILE).exists()
        assert plain(pickle.loads(pickle.dumps(store))) == EXPECTED
    finally:
        path.chmod(mode)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"input_ids": [[1]]}, "has no column loss_mask, only input_ids"),
        ({"text": ["a"]}, "has no column input_ids and loss_mask, only text"),
        ({"input_ids": [[1]], "loss_mask": [[0.5]]}, "row 0: loss_mask holds 0.5"),
        ({"input_ids": ["a"], "loss_mask": [[1]]}, "column input_ids: .*found string"),
        ({"input_ids": [[1], [1, 2]], "loss_mask": [[1], [1]]}, "row 1: input_ids has 2 entries, loss_mask 1"),
        ({"input_ids": [[1], [2, 3]], "loss_mask": [[1], [1, 7]]}, "row 1: loss_mask holds 7"),
        ({"input_ids": [[1], [], [-3, 2]], "loss_mask": [[1], [], [1, 1]]}, "row 2: input_ids holds -3"),
        ({"input_ids": [[1], [2**31]], "loss_mask": [[1], [1]]}, "row 1: input_ids holds 2147483648"),
        ({"input_ids": [[1, None]], "loss_mask": [[1, 1]]}, "column input_ids, row 0: has a null"),
    ],
)
def test_what_is_no_token_store_is_named(columns: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=f"source s.*{message}"):
        TokenStore.from_arrow(pa.table(columns), name="s")
    datasets.Dataset.from_dict(columns).save_to_disk(tmp_path / "f")
    with pytest.raises(StoreError, match=rf"{tmp_path}/f.*{message}"):
        TokenStore.open(tmp_path / "f")
