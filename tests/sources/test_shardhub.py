"""Datasets of the hub as shards of a streaming source."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest
from datasets import Dataset, IterableDataset, concatenate_datasets, load_dataset
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader, IterableDataset as TorchDataset

from streamsft.errors import ConfigError, DataError, StateError
from streamsft.sources.hub import HubDataset
from streamsft.sources.shardhub import ShardDataset
from streamsft.sources.shardstate import packed, unpacked
from tests.sources.shards import check_reader, decoded, rows_of, written

SIZES = [23, 3, 70]  # the last is longer than what is read at a time
ROWS = rows_of(0, sum(SIZES))


def generated(shards: list[int]) -> Iterator[dict[str, Any]]:
    for shard in shards:
        yield from rows_of(sum(SIZES[:shard]), SIZES[shard])


def odd(row: dict[str, Any]) -> bool:
    return int(row["n"]) % 2 == 1


def doubled(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: [value for value in values for _ in range(2)] for name, values in batch.items()}


def streamed(kind: str, folder: Path) -> IterableDataset:
    loader = {"jsonl": "json"}.get(kind, kind)
    return load_dataset(loader, data_files=str(folder / f"*.{kind}"), split="train", streaming=True)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


PIPELINES: dict[str, tuple[Callable[[Path], IterableDataset], list[Any]]] = {
    "parquet": (lambda folder: streamed("parquet", folder / "parquet"), ROWS),
    "arrow": (lambda folder: streamed("arrow", folder / "arrow"), ROWS),
    "jsonl": (lambda folder: streamed("jsonl", folder / "jsonl"), ROWS),
    "generator": (lambda _: IterableDataset.from_generator(generated, gen_kwargs={"shards": [0, 1, 2]}), ROWS),
    "memory": (lambda _: Dataset.from_list(ROWS).to_iterable_dataset(num_shards=3), ROWS),
    "filter": (lambda folder: streamed("parquet", folder / "parquet").filter(odd), list(filter(odd, ROWS))),
    "batched map": (
        lambda folder: streamed("jsonl", folder / "jsonl").map(doubled, batched=True, batch_size=10),
        [row for row in ROWS for _ in range(2)],
    ),
    "concatenation": (
        lambda folder: concatenate_datasets([streamed(kind, folder / kind) for kind in ("parquet", "arrow")]),
        [*ROWS, *ROWS],
    ),
}


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("name", PIPELINES)
def test_each_row_once_and_the_rest_from_every_position(tmp_path: Path, name: str, lanes: int) -> None:
    for kind in ("parquet", "arrow", "jsonl"):
        written(tmp_path / kind, kind, SIZES)
    make, expected = PIPELINES[name]
    check_reader(lambda: ShardDataset(make(tmp_path)), lanes, expected, only=13)


class TestUnits:
    def test_three_rows_for_eight_lanes(self) -> None:
        reader = ShardDataset(Dataset.from_list(ROWS[:3]).to_iterable_dataset())
        assert reader.units(8) == 3
        assert [[row.number for row in reader.read(unit, 8, None)] for unit in range(3)] == [[0], [1], [2]]

    def test_parquet_by_row_group(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        reader = ShardDataset(streamed("parquet", written(tmp_path / "p", "parquet", [20, 20])), name="code")
        assert reader.units(2) == 2
        assert not caplog.records
        assert reader.units(8) == 8
        (record,) = caplog.records
        assert record.getMessage().startswith("source code: 2 shards for 8 lanes: read by row group, in 8 units")
        assert decoded(list(reader.read(1, 8, None))) == rows_of(5, 5)

    def test_parquet_seeks_to_the_row_group(self, tmp_path: Path) -> None:
        reader = ShardDataset(streamed("parquet", written(tmp_path / "p", "parquet", [400])))
        position = list(reader.read(0, 1, None))[350].after
        state = unpacked(position[0], reader._dataset.reshard().state_dict())  # type: ignore[attr-defined]
        assert "'shard_idx': 63" in str(state)  # of 80 row groups, the one with row 319, behind which 32 rows follow

    def test_a_loader_worker_reads_the_whole_unit(self) -> None:
        """`datasets` itself divides what it reads among a loader's workers."""
        loader = DataLoader(_Read(ShardDataset(Dataset.from_list(ROWS).to_iterable_dataset())), num_workers=2)
        assert sorted(int(number) for number in loader) == sorted([*range(len(ROWS)), *range(len(ROWS))])

    def test_rows_keep_no_padding_nulls(self) -> None:
        calls = pa.array([{"a": 1, "b": None}, {"a": None, "b": "x"}], pa.struct({"a": pa.int64(), "b": pa.string()}))
        reader = ShardDataset(Dataset(pa.table({"call": calls})).to_iterable_dataset())
        assert decoded(list(reader.read(0, 1, None))) == [{"call": {"a": 1}}, {"call": {"b": "x"}}]


class _Read(TorchDataset[int]):
    def __init__(self, reader: ShardDataset) -> None:
        self._reader = reader

    def __iter__(self) -> Iterator[int]:
        return (row.number for row in self._reader.read(0, 1, None))


class TestErrors:
    def test_what_cannot_be_resumed_is_refused(self) -> None:
        plain = Dataset.from_list(ROWS).to_iterable_dataset(num_shards=4)
        with pytest.raises(ConfigError, match=r"source s: the dataset was shuffled.*shuffle_window"):
            ShardDataset(plain.map(doubled, batched=True).shuffle(seed=1).filter(odd), name="s")
        with pytest.raises(ConfigError, match="split_dataset_by_node"):
            ShardDataset(split_dataset_by_node(plain, 0, 2))

    def test_a_mapped_function_that_fails(self) -> None:
        reader = ShardDataset(Dataset.from_list(ROWS).to_iterable_dataset().map(lambda row: row["none"]), name="s")
        with pytest.raises(DataError, match=r"s\[0\], row 0: cannot be read: KeyError: 'none'"):
            list(reader.read(0, 1, None))

    def test_a_file_that_vanished(self, tmp_path: Path) -> None:
        folder = written(tmp_path / "p", "parquet", [20, 20])
        reader = ShardDataset(streamed("parquet", folder))
        list(reader.read(1, 2, None))
        (folder / "001.parquet").unlink()
        with pytest.raises(DataError, match=r"dataset\[1\].*cannot be read: FileNotFoundError: .*001\.parquet"):
            list(reader.read(1, 2, None))

    def test_a_position_of_another_pipeline(self) -> None:
        reader = ShardDataset(Dataset.from_list(ROWS).to_iterable_dataset())
        for position in (3, [[[9, 1]], 0, 0], ["x"], [[], 3, 2]):
            with pytest.raises(StateError, match="is no position in"):
                list(reader.read(0, 1, position))

    def test_a_hub_dataset_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="cannot be loaded"):
            HubDataset(id=str(tmp_path / "none")).stream()


def test_a_hub_dataset_is_streamed(tmp_path: Path) -> None:
    folder = written(tmp_path / "data", "jsonl", [4])
    reader = ShardDataset(HubDataset(id="json", data_files=str(folder / "*")).stream())
    assert decoded(list(reader.read(0, 1, None))) == ROWS[:4]
    assert pickle.loads(pickle.dumps(reader)).fingerprint == reader.fingerprint


def test_the_fingerprint_follows_the_data() -> None:
    one, same, other = (
        ShardDataset(Dataset.from_list(rows).to_iterable_dataset(num_shards=2)).fingerprint
        for rows in (ROWS, ROWS, ROWS[1:])
    )
    assert one == same != other


def test_states_are_kept_as_what_differs() -> None:
    fresh = {"a": {"x": 0, "type": "A"}, "before": None, "list": [{"x": 0, "type": "A"}, 3], "n": 1}
    state = {"a": {"x": 7, "type": "A"}, "before": {"x": 5, "type": "A"}, "list": [{"x": 0, "type": "A"}, 4], "n": 1}
    difference = json.loads(json.dumps(packed(state, fresh)))
    assert unpacked(difference, fresh) == state
    assert unpacked(packed(fresh, fresh), fresh) == fresh
    assert packed(fresh, fresh) == []
    other = {**state, "before": {"unlike": [1]}, "n": None}
    assert unpacked(json.loads(json.dumps(packed(other, fresh))), fresh) == other
