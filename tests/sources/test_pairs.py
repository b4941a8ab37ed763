"""Stores of preference pairs: in every layout the same, checked, and side by side."""

from __future__ import annotations

import pickle
from pathlib import Path

import datasets
import numpy as np
import pytest

from streamsft.errors import DataError, StoreError
from streamsft.sources.converting import convert_store
from streamsft.sources.pairs import SideBySide, holds_pairs
from streamsft.sources.rowgroups import RowGroupStore
from streamsft.sources.store import TokenStore
from streamsft.text.jobs import tokens_of
from tests.pairs import answers, pair_store


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMSFT_CACHE", str(tmp_path / "cache"))


def written(path: Path) -> TokenStore:
    """A store on disk that holds the rows of `pair_store(20)`."""
    store = pair_store(20)
    rows = np.arange(20)
    ids, masks = store.read(rows)
    with TokenStore.writer(path, name="pairs", pairs=True) as writer:
        writer.append(
            np.concatenate(ids), np.concatenate(masks), store.lengths, rows, pairs=store.read_carried(rows)["pair"]
        )
        return writer.close()


def test_a_store_is_the_same_in_every_layout(tmp_path: Path) -> None:
    expected, ours = pair_store(20), written(tmp_path / "ours")
    convert_store(tmp_path / "ours", tmp_path / "parquet", to="parquet")
    convert_store(tmp_path / "parquet", tmp_path / "arrow", to="arrow")
    convert_store(tmp_path / "arrow", tmp_path / "again")
    datasets.load_from_disk(tmp_path / "ours").save_to_disk(tmp_path / "saved")
    stores = [ours, pickle.loads(pickle.dumps(expected)), RowGroupStore.open(tmp_path / "parquet", name="pairs")]
    stores += [TokenStore.open(tmp_path / kind) for kind in ("parquet", "arrow", "again", "saved")]
    for store in stores:
        assert holds_pairs(store)
        assert store.fingerprint == expected.fingerprint
        assert store.whole is not None
        assert store.whole.all()
        assert [store[row].extras["pair"].tolist() for row in range(20)] == [
            expected[row].extras["pair"].tolist() for row in range(20)
        ]


def test_pairs_of_the_same_tokens_with_other_borders_are_another_store() -> None:
    def store(chosen: int) -> TokenStore:
        with TokenStore.writer(None, name="s", pairs=True) as writer:
            mask = np.array([0, 0, 1, 0, 1, 0, 1], np.bool_)
            pairs = np.array([[1, chosen]], np.int32)
            writer.append(np.arange(7, dtype=np.int32), mask, np.array([7], np.int32), np.array([0]), pairs=pairs)
            return writer.close()

    assert store(2).fingerprint != store(4).fingerprint


@pytest.mark.parametrize(
    ("shared", "chosen", "mask", "message"),
    [
        (0, 3, [0, 0, 1, 0, 1, 1], "at least one token must be shared"),
        (2, 1, [0, 0, 0, 0, 1, 1], "at least one token must be shared"),
        (2, 3, [0, 0, 0, 1, 1, 1], "at least one token must be shared"),
        (1, 2, [0, 1, 1, 0, 1, 1], "but not its first token"),
        (1, 2, [0, 0, 1, 1, 1, 1], "but not its first token"),
        (1, 2, [0, 0, 0, 0, 1, 1], "something must be trained on"),
    ],
)
def test_a_pair_without_an_answer_or_with_a_label_that_nothing_predicts_is_refused(
    shared: int, chosen: int, mask: list[int], message: str, tmp_path: Path
) -> None:
    row = {"input_ids": list(range(6)), "loss_mask": mask, "shared_length": shared, "chosen_length": chosen}
    datasets.Dataset.from_list([row]).to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(StoreError, match=rf"rows.parquet, row 0: .*{message}"):
        TokenStore.open(tmp_path / "rows.parquet")
    with pytest.raises(StoreError, match=message), TokenStore.writer(None, name="s", pairs=True) as writer:
        writer.append(
            np.arange(6, dtype=np.int32),
            np.array(mask, np.bool_),
            np.array([6], np.int32),
            np.array([0]),
            pairs=np.array([[shared, chosen]], np.int32),
        )


def test_one_of_the_two_columns_is_not_enough_and_other_ways_in_refuse_pairs(tmp_path: Path) -> None:
    row = {"input_ids": [1, 2, 3], "loss_mask": [0, 1, 1], "shared_length": 1}
    datasets.Dataset.from_list([row]).to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(StoreError, match="has shared_length but no column chosen_length"):
        TokenStore.open(tmp_path / "rows.parquet")
    with pytest.raises(StoreError, match="JSON does not hold"):
        TokenStore.from_rows([row])
    with pytest.raises(DataError, match="format: preference"):
        tokens_of(row, "the transform must return")
    with (
        pytest.raises(StoreError, match="a store has them for all"),
        TokenStore.writer(None, name="s", pairs=True) as writer,
    ):
        writer.append(np.arange(3, dtype=np.int32), np.ones(3, np.bool_), np.array([3], np.int32), np.array([0]))


def test_side_by_side_each_answer_has_the_prompt() -> None:
    store = pair_store(20)
    both = SideBySide(store)
    assert both.fingerprint != store.fingerprint
    ids, masks = both.read(np.arange(20))
    for row in range(20):
        sides = answers(store, row)
        np.testing.assert_array_equal(ids[row], np.concatenate([side for side, _ in sides]))
        np.testing.assert_array_equal(masks[row], np.concatenate([mask for _, mask in sides]))
        assert both.lengths[row] == len(ids[row])
        assert both.read_carried(np.array([row]))["pair"].tolist() == [[0, len(sides[0][0])]]
    with pytest.raises(StoreError, match="no preference pairs"):
        SideBySide(TokenStore.from_rows([{"input_ids": [1, 2], "loss_mask": [0, 1]}]))
