"""Batches that workers send several at a time are those of a loader that sends one by one."""

from __future__ import annotations

import pickle
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.utils.data import DataLoader, RandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from streamsft.errors import ConfigError
from streamsft.sources.store import TokenStore
from streamsft.stream import portions as module
from streamsft.stream.portions import Portions
from streamsft.types import Sample
from tests.processes import context
from tests.sources.stores import rows_of, write_parquet

ROWS = rows_of(70)


class Padded(NamedTuple):
    ids: torch.Tensor
    rows: list[int]


def pad(samples: list[Sample]) -> Padded:
    ids = [torch.tensor(sample.input_ids.tolist()) for sample in samples]
    return Padded(torch.nn.utils.rnn.pad_sequence(ids, batch_first=True), [sample.row for sample in samples])


def listed(batches: Any) -> list[tuple[Any, ...]]:
    return [(batch.ids.tolist(), batch.rows) for batch in batches]


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 20), many=st.integers(1, 6), last=st.booleans(), seed=st.integers(0, 9))
def test_batches_are_those_of_one_by_one(size: int, many: int, last: bool, seed: int) -> None:
    store: Any = TokenStore.from_rows(ROWS, name="s")
    portions = Portions(size, pad)

    def loader(batch_size: int, collate: Any) -> DataLoader[Any]:
        sampler = RandomSampler(store, generator=torch.Generator().manual_seed(seed))
        return DataLoader(store, batch_size, sampler=sampler, collate_fn=collate, drop_last=last)

    found, wanted = listed(portions.batches(loader(many * size, portions))), listed(loader(size, pad))
    assert found == wanted[: len(found)]
    assert len(found) == (len(ROWS) // (many * size) * many if last else len(wanted))


@pytest.mark.parametrize("forked", [True, False])
def test_workers_send_the_same(tmp_path: Path, *, forked: bool) -> None:
    store: Any = TokenStore.open(write_parquet(ROWS, tmp_path / "a.parquet"))
    portions = Portions(8, pad)
    started: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork" if forked else context()}
    loader = DataLoader(store, 24, collate_fn=portions, persistent_workers=True, **started)
    wanted = listed(DataLoader(store, 8, collate_fn=pad))
    for _ in range(2):
        batches = list(portions.batches(loader))
        assert all(isinstance(batch, Padded) for batch in batches)
        assert listed(batches) == wanted
    batches[0].ids.zero_()  # writable, and nobody else's
    assert listed(batches[1:]) == wanted[1:]


def test_no_tensor_of_a_worker_is_a_shared_file() -> None:
    store: Any = TokenStore.from_rows(ROWS, name="s")
    portions = Portions(8, pad)
    loader = DataLoader(store, 24, collate_fn=portions, num_workers=1, multiprocessing_context="fork")
    assert not any(batch.ids.is_shared() for batch in portions.batches(loader))
    assert any(batch.ids.is_shared() for batch in DataLoader(store, 8, collate_fn=pad, num_workers=1))


TENSORS: dict[str, Any] = {
    "of each type": [torch.ones(3, dtype=kind) for kind in (torch.bool, torch.uint8, torch.int64, torch.float16)],
    "that numpy has no type for": torch.arange(4, dtype=torch.bfloat16),
    "of no elements": torch.zeros(0, 5, dtype=torch.int32),
    "of no dimensions": torch.tensor(7),
    "turned": torch.arange(12).reshape(3, 4).T,
    "a part of a larger one": torch.arange(1000)[10:20:3],
    "with a gradient": torch.ones(2, requires_grad=True),
    "conjugated": torch.tensor([1 + 2j]).conj(),
    "negated": torch.tensor([1 + 2j]).conj().imag,
    "sparse": torch.eye(3).to_sparse(),
    "a parameter": torch.nn.Parameter(torch.ones(2)),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_arrive_as_they_were(name: str) -> None:
    sent = TENSORS[name] if isinstance(TENSORS[name], list) else [TENSORS[name]]
    (received,) = pickle.loads(module._dumped([{"tensors": sent}]))
    for before, after in zip(sent, received["tensors"], strict=True):
        assert (after.dtype, after.shape, after.layout) == (before.dtype, before.shape, before.layout)
        assert (type(after), after.requires_grad) == (type(before), before.requires_grad)
        assert torch.equal(after.detach().to_dense(), before.detach().to_dense())


def test_the_bytes_of_a_part_alone_are_sent() -> None:
    assert len(module._dumped([torch.zeros(1_000_000)[:10]])) < 1000


def test_what_no_portions_can_be_made_of_is_refused() -> None:
    store: Any = TokenStore.from_rows(ROWS, name="s")
    for size in (0, -1, 1.5, True, "8", None):
        with pytest.raises(ConfigError, match="is not a number of rows >= 1"):
            Portions(size, pad)  # type: ignore[arg-type]
    portions = Portions(8, pad)
    with pytest.raises(ConfigError, match=r"batch_size 20 is no multiple of the 8 rows of a batch; write 2 \* 8"):
        portions.batches(DataLoader(store, 20, collate_fn=portions))
    with pytest.raises(ConfigError, match="the loader gives Padded, no portions; give it this object as collate_fn"):
        next(portions.batches(DataLoader(store, 16, collate_fn=pad)))


def broken(samples: list[Sample]) -> Any:
    raise ZeroDivisionError(f"row {samples[0].row}")


@pytest.mark.parametrize("workers", [0, 1])
def test_what_collating_raises_comes_where_the_batch_would(workers: int) -> None:
    store: Any = TokenStore.from_rows(ROWS, name="s")
    portions = Portions(8, broken)
    with pytest.raises(ZeroDivisionError, match="row 0"):
        next(portions.batches(DataLoader(store, 16, collate_fn=portions, num_workers=workers)))


def test_rows_of_arrays_are_collated_by_torch_if_nothing_is_said() -> None:
    rows: Any = [np.full(3, row) for row in range(10)]
    portions = Portions(2)
    found = [batch.tolist() for batch in portions.batches(DataLoader(rows, 4, collate_fn=portions))]
    assert found == [batch.tolist() for batch in DataLoader(rows, 2)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_can_be_resumed_goes_on_behind_a_portion(tmp_path: Path, workers: int) -> None:
    store: Any = TokenStore.open(write_parquet(ROWS, tmp_path / "a.parquet"))
    portions = Portions(5, pad)

    def loader() -> StatefulDataLoader[Any]:
        started: dict[str, Any] = {"num_workers": workers}
        if workers:
            started["multiprocessing_context"] = context()
        sampler = RandomSampler(store, generator=torch.Generator().manual_seed(3))
        return StatefulDataLoader(store, 10, sampler=sampler, collate_fn=portions, **started)

    first = loader()
    batches = portions.batches(first)
    begun = listed(islice(batches, 6))
    state = first.state_dict()
    rest = listed(batches)
    second = loader()
    second.load_state_dict(state)
    assert listed(portions.batches(second)) == rest
    assert sorted(row for _, rows in begun + rest for row in rows) == list(range(len(ROWS)))
