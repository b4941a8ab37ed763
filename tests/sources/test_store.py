"""Token stores: what is read is what was written, wherever it is read."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

from streamsft.errors import ConfigError, StoreError
from streamsft.sources.base import is_source
from streamsft.sources.concat import ConcatStore
from streamsft.sources.rowgroups import RowGroupStore
from streamsft.sources.store import TokenStore
from streamsft.types import Sample
from tests.processes import context

ROWS: list[dict[str, list[int]]] = [
    {"input_ids": [5, 6, 7], "loss_mask": [0, 1, 1]},
    {"input_ids": [], "loss_mask": []},
    {"input_ids": [9], "loss_mask": [1]},
    {"input_ids": [1, 2, 3, 4], "loss_mask": [1, 0, 0, 1]},
    {"input_ids": [8, 8], "loss_mask": [0, 0]},
]


def write(path: Path | None, rows: list[dict[str, list[int]]] = ROWS, step: int = 2, **facts: Any) -> TokenStore:
    """Write `rows` in calls of `step` rows each."""
    with TokenStore.writer(path, name="s", files=["a.jsonl", "b.jsonl"]) as writer:
        for first in range(0, len(rows), step):
            part = rows[first : first + step]
            writer.append(
                np.array([i for row in part for i in row["input_ids"]], np.int32),
                np.array([m for row in part for m in row["loss_mask"]], np.bool_),
                np.array([len(row["input_ids"]) for row in part], np.int32),
                np.arange(first, first + len(part)),
            )
        return writer.close(**facts)


def contents(store: TokenStore) -> list[dict[str, list[int]]]:
    ids, masks = store.read(np.arange(len(store)))
    assert all(i.dtype == np.int32 and m.dtype == np.bool_ for i, m in zip(ids, masks, strict=True))
    return [{"input_ids": i.tolist(), "loss_mask": m.astype(int).tolist()} for i, m in zip(ids, masks, strict=True)]


@pytest.fixture(params=["disk", "memory", "rows"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> TokenStore:
    if request.param == "rows":
        return TokenStore.from_rows(ROWS, name="s")
    return write(tmp_path / "s" if request.param == "disk" else None)


def test_reads_what_was_written(store: TokenStore) -> None:
    assert is_source(store)
    assert contents(store) == ROWS
    assert len(store) == 5
    assert store.tokens == store.manifest.tokens == 10
    assert store.manifest.supervised == 3


def test_keeps_what_planning_needs(store: TokenStore) -> None:
    assert store.lengths.tolist() == store.sequence_lengths.tolist() == [3, 0, 1, 4, 2]
    assert store.supervised.tolist() == [2, 0, 0, 1, 0]
    assert store.first_supervised.tolist() == [1, 0, 1, 3, 2]
    assert store.row_numbers.tolist() == [0, 1, 2, 3, 4]
    dtypes = [store.lengths.dtype, store.supervised.dtype, store.first_supervised.dtype, store.row_numbers.dtype]
    assert dtypes == [np.int32, np.int32, np.int32, np.int64]


def test_read_keeps_order_and_repeats(store: TokenStore) -> None:
    ids, masks = store.read(np.array([3, 0, 3]))
    assert [i.tolist() for i in ids] == [[1, 2, 3, 4], [5, 6, 7], [1, 2, 3, 4]]
    assert [m.tolist() for m in masks[1:2]] == [[False, True, True]]
    assert store.read(np.array([], np.int64)) == ([], [])


@pytest.mark.parametrize("index", [[5], [-1], [0, 1, 99]])
def test_read_refuses_rows_that_are_not_there(store: TokenStore, index: list[int]) -> None:
    with pytest.raises(IndexError):
        store.read(np.array(index))


def test_is_a_map_style_dataset(store: TokenStore) -> None:
    sample = store[-2]
    assert isinstance(sample, Sample)
    assert (sample.source, sample.row, sample.input_ids.tolist()) == ("s", 3, [1, 2, 3, 4])
    assert [s.row for s in store.__getitems__([4, 0, 0])] == [4, 0, 0]
    with pytest.raises(IndexError, match="has 5 rows"):
        store[5]
    assert [s.row for s in store] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("asked", [1.5, True, None, "1", slice(2), [0, 1], np.array([True]), np.array([0, 1])])
def test_rows_are_asked_for_by_number(asked: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"input_ids": [[1, 2]] * 5, "loss_mask": [[0, 1]] * 5}), tmp_path / "g.parquet")
    groups, store = RowGroupStore.open(tmp_path / "g.parquet"), TokenStore.from_rows(ROWS, name="s")
    for dataset in (store, groups, ConcatStore([ConcatStore([store]), groups])):
        with pytest.raises(TypeError, match=r"a row is asked for by its number, a whole one, not by .*__getitems__"):
            dataset[asked]
        with pytest.raises(IndexError, match=r"has \d+ rows; asked for 0 to 10"):
            dataset.__getitems__([0, 10])
        assert dataset.__getitems__([]) == []
        assert dataset.__getitems__(np.array([1, -1], np.int8))[0].row == dataset[torch.tensor(1)].row == 1


def test_the_same_rows_have_the_same_fingerprint_everywhere(tmp_path: Path) -> None:
    stores = [write(tmp_path / "a"), write(tmp_path / "b", step=1), write(None, step=5), TokenStore.from_rows(ROWS)]
    assert len({s.fingerprint for s in stores}) == 1
    assert len(stores[0].fingerprint) == 32
    assert TokenStore.from_rows(list(stores[0])).fingerprint == stores[0].fingerprint


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows[::-1],
        lambda rows: rows[:-1],
        lambda rows: [{**rows[0], "input_ids": [5, 6, 8]}, *rows[1:]],
        lambda rows: [{**rows[0], "loss_mask": [0, 0, 1]}, *rows[1:]],
        lambda rows: [{"input_ids": [5, 6, 7, 9], "loss_mask": [0, 1, 1, 1]}, rows[1], *rows[3:]],
    ],
)
def test_other_rows_have_another_fingerprint(change: Any) -> None:
    assert TokenStore.from_rows(change(ROWS)).fingerprint != TokenStore.from_rows(ROWS).fingerprint


def test_other_row_numbers_have_another_fingerprint() -> None:
    ids, mask, lengths = np.array([1, 2], np.int32), np.array([True, True]), np.array([1, 1], np.int32)
    stores = []
    for numbers in ([0, 1], [0, 2]):
        with TokenStore.writer(None) as writer:
            writer.append(ids, mask, lengths, np.array(numbers))
            stores.append(writer.close())
    assert stores[1].row_numbers.tolist() == [0, 2]
    assert stores[0].fingerprint != stores[1].fingerprint


def test_datasets_opens_a_store(tmp_path: Path) -> None:
    write(tmp_path / "s")
    table = datasets.load_from_disk(tmp_path / "s")
    assert [{"input_ids": r["input_ids"], "loss_mask": r["loss_mask"]} for r in table] == ROWS
    assert table["length"][:] == [3, 0, 1, 4, 2]
    assert table["supervised"][:] == [2, 0, 0, 1, 0]
    assert table["row"][:] == [0, 1, 2, 3, 4]


def test_manifest_survives_the_disk(tmp_path: Path) -> None:
    written = write(tmp_path / "s", rejected={"template_error": 2}, key="k", tokenizer="t", extra={"format": "alpaca"})
    manifest = TokenStore.open(tmp_path / "s", verify=True).manifest
    assert manifest == written.manifest
    assert (manifest.rejected, manifest.key, manifest.tokenizer) == ({"template_error": 2}, "k", "t")
    assert manifest.extra == {"format": "alpaca"}
    assert manifest.files == ("a.jsonl", "b.jsonl")


def test_origin_names_file_and_row() -> None:
    with TokenStore.writer(None, name="s", files=["a.jsonl", "b.jsonl"]) as writer:
        ones = np.ones(2, np.int32)
        writer.append(ones, ones == 1, ones, np.array([4, 9]), np.array([0, 1], np.int32), np.array([4, 2]))
        store = writer.close()
    assert [store.origin(0), store.origin(1)] == ["a.jsonl:4", "b.jsonl:2"]
    assert TokenStore.from_rows(ROWS, name="t").origin(3) == "t:3"


def test_pickles_small_and_is_mapped_again(tmp_path: Path) -> None:
    store = write(tmp_path / "s", ROWS * 2000)
    for _ in range(2):
        data = pickle.dumps(store)
        assert len(data) < 500
        store = pickle.loads(data)
        assert contents(store)[:5] == ROWS


def test_in_memory_pickles_with_its_data() -> None:
    store = pickle.loads(pickle.dumps(write(None)))
    assert contents(store) == ROWS
    assert (store.fingerprint, store.files) == (write(None).fingerprint, ("a.jsonl", "b.jsonl"))


def test_a_pickled_store_refuses_other_rows(tmp_path: Path) -> None:
    data = pickle.dumps(write(tmp_path / "s"))
    (tmp_path / "s").rename(tmp_path / "old")
    write(tmp_path / "s", ROWS[1:])
    with pytest.raises(StoreError, match="holds other rows"):
        len(pickle.loads(data))


def _first_ids(samples: list[Sample]) -> list[tuple[int, int]]:
    return [(sample.row, int(sample.input_ids.sum())) for sample in samples]


@pytest.mark.parametrize("kind", ["disk", "memory"])
def test_works_in_a_loader_whose_workers_get_it_pickled(kind: str, tmp_path: Path) -> None:
    store = write(tmp_path / "s" if kind == "disk" else None)
    loader = DataLoader(
        store,  # type: ignore[arg-type]
        batch_size=2,
        num_workers=2,
        multiprocessing_context=context(),
        collate_fn=_first_ids,
    )
    assert [pair for batch in loader for pair in batch] == [(0, 18), (1, 0), (2, 9), (3, 10), (4, 16)]


def test_renamed_shares_the_data(store: TokenStore) -> None:
    other = store.renamed("t")
    assert (other.name, other[0].source, store.name) == ("t", "t", "s")
    assert other.fingerprint == store.fingerprint
    assert np.shares_memory(other.read(np.array([0]))[0][0], store.read(np.array([0]))[0][0])
    with pytest.raises(ConfigError, match="source name"):
        store.renamed("no spaces")


def test_rows_are_views_on_the_memory_map(tmp_path: Path) -> None:
    store = write(tmp_path / "s")
    ids, masks = store.read(np.array([0, 3]))
    again = store.read(np.array([0, 3]))
    assert all(np.shares_memory(a, b) for a, b in zip(ids + masks, again[0] + again[1], strict=True))
    assert not ids[0].flags.writeable


def test_the_name_is_the_directorys_by_default(tmp_path: Path) -> None:
    write(tmp_path / "my store (1)")
    assert TokenStore.open(tmp_path / "my store (1)").name == "my_store__1_"


def test_another_tokenizers_store_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "s", tokenizer="aaa")
    assert TokenStore.open(tmp_path / "s", tokenizer_hash="aaa").name == "s"
    with pytest.raises(StoreError, match=r"tokenizer aaa.*in use is bbb"):
        TokenStore.open(tmp_path / "s", tokenizer_hash="bbb")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"input_ids": [1]}, "has no loss_mask"),
        ({"input_ids": [1, 2], "loss_mask": [1]}, "2 entries, loss_mask 1"),
        ({"input_ids": [-1], "loss_mask": [1]}, "input_ids holds -1"),
        ({"input_ids": [2**31], "loss_mask": [1]}, "holds 2147483648"),
        ({"input_ids": [1], "loss_mask": [2]}, "loss_mask holds 2"),
        ({"input_ids": [1.5], "loss_mask": [1]}, "flat list of integers"),
        ({"input_ids": [[1], [2, 3]], "loss_mask": [1]}, "flat list of integers"),
        ({"input_ids": ["a"], "loss_mask": [1]}, "flat list of integers"),
    ],
)
def test_rows_that_are_no_tokens_are_named(row: dict[str, Any], message: str) -> None:
    with pytest.raises(StoreError, match=rf"source s, row 5.*{message}"):
        TokenStore.from_rows([*ROWS, row], name="s")


def test_a_store_may_be_empty(tmp_path: Path) -> None:
    for store in (write(tmp_path / "s", []), write(None, []), TokenStore.from_rows([])):
        assert (len(store), store.tokens, store.lengths.tolist()) == (0, 0, [])
        assert store.read(np.array([], np.int64)) == ([], [])
        assert len(pickle.loads(pickle.dumps(store))) == 0
    assert len(datasets.load_from_disk(tmp_path / "s")) == 0
