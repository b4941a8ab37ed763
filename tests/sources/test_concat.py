"""Concatenated stores: one map-style dataset, for the samplers and loaders of others."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.utils.data import RandomSampler, WeightedRandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from streamsft.errors import ConfigError
from streamsft.sources.concat import ConcatStore
from streamsft.sources.store import TokenStore
from streamsft.types import Sample
from tests.processes import context
from tests.sources.samplers import Spread, collate
from tests.sources.stores import rows_of, write_lines, write_parquet, write_saved

ROWS = rows_of(60)


@pytest.fixture
def both(tmp_path: Path) -> ConcatStore:
    write_parquet(ROWS[:25], tmp_path / "a.parquet")
    write_saved(ROWS[25:45], tmp_path / "b")
    write_lines(ROWS[45:], tmp_path / "c.jsonl")
    return ConcatStore([TokenStore.open(tmp_path / name) for name in ("a.parquet", "b", "c.jsonl")])


def as_row(sample: Sample) -> dict[str, list[int]]:
    return {"input_ids": sample.input_ids.tolist(), "loss_mask": sample.loss_mask.astype(int).tolist()}


def test_rows_follow_one_another(both: ConcatStore) -> None:
    assert len(both) == 60
    assert both.dataset_lengths.tolist() == [25, 20, 15]
    assert both.sequence_lengths.tolist() == [len(row["input_ids"]) for row in ROWS]
    assert both.sequence_lengths.dtype == np.int32
    assert list(map(as_row, both)) == ROWS
    assert [(both[i].source, both[i].row) for i in (0, 24, 25, -16, -1)] == [
        ("a", 0), ("a", 24), ("b", 0), ("b", 19), ("c", 14),
    ]  # fmt: skip
    for missing in (60, -61):
        with pytest.raises(IndexError, match="has 60 rows"):
            both[missing]


@settings(max_examples=50, deadline=None)
@given(index=st.lists(st.integers(-60, 59), max_size=40))
def test_any_rows_come_in_the_order_asked_for(index: list[int]) -> None:
    stores = [TokenStore.from_rows(ROWS[a:b], name=n) for n, a, b in (("a", 0, 25), ("b", 25, 26), ("c", 26, 60))]
    assert list(map(as_row, ConcatStore(stores).__getitems__(index))) == [ROWS[i] for i in index]


def test_each_store_is_asked_once(both: ConcatStore, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = TokenStore.read
    monkeypatch.setattr(TokenStore, "read", lambda store, index: asked.append(len(index)) or real(store, index))
    both.__getitems__([59, 0, 30, 0, 58, 31, 57, 1])
    assert sorted(asked) == [2, 3, 3]


def test_pickles_small(both: ConcatStore) -> None:
    assert len(both.sequence_lengths) == 60
    data = pickle.dumps(both)
    assert len(data) < 1500
    assert list(map(as_row, pickle.loads(data))) == ROWS


def test_names_must_differ() -> None:
    store = TokenStore.from_rows(ROWS, name="s")
    with pytest.raises(ConfigError, match="two stores are named 's'"):
        ConcatStore([store, store])
    for other in ("a.parquet", None, [1]):
        with pytest.raises(ConfigError, match=r"ConcatStore: .* is no store; open it first"):
            ConcatStore([other])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="give at least one"):
        ConcatStore([])


def sampler(kind: str, rows: ConcatStore) -> Any:
    generator = torch.Generator().manual_seed(5)
    if kind == "random":
        return RandomSampler(rows, generator=generator)
    if kind == "weighted":
        weights = np.repeat([3.0, 1.0, 0.5] / rows.dataset_lengths, rows.dataset_lengths)
        return WeightedRandomSampler(weights.tolist(), len(rows), generator=generator)
    return Spread(len(rows))


def loader(kind: str, rows: ConcatStore, workers: int) -> StatefulDataLoader[Any]:
    return StatefulDataLoader(
        rows,  # type: ignore[arg-type]
        batch_size=4,
        sampler=sampler(kind, rows),
        collate_fn=collate,
        num_workers=workers,
        multiprocessing_context=context() if workers else None,
    )


@pytest.mark.filterwarnings("ignore:.*set_vital.*")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["random", "weighted", "custom"])
def test_a_stateful_loader_goes_on_exactly_where_it_stood(kind: str, workers: int, both: ConcatStore) -> None:
    whole = list(loader(kind, both, 0))
    assert len(whole) == 15
    first, taken = loader(kind, both, workers), []
    for batch in first:
        taken.append(batch)
        if len(taken) == 6:
            break
    state = first.state_dict()
    del first
    second = loader(kind, both, workers)
    second.load_state_dict(state)
    assert taken + list(second) == whole
