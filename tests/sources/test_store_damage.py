"""Damaged, incomplete and absent stores: found, named, never read as something else."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamsft.errors import StoreError, StreamsftError
from streamsft.sources.index import INDEX_FILE
from streamsft.sources.manifest import MANIFEST_FILE
from streamsft.sources.store import TokenStore
from tests.sources.store_processes import build

DATA_FILE = "data-00000-of-00001.arrow"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    build(tmp_path / "s")
    return tmp_path / "s"


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    rows = {"input_ids": [[1, 2, 3]] * 50, "loss_mask": [[0, 1, 1]] * 50}
    features = {"input_ids": datasets.List(datasets.Value("int32")), "loss_mask": datasets.List(datasets.Value("bool"))}
    datasets.Dataset.from_dict(rows, features=datasets.Features(features)).save_to_disk(tmp_path / "f")
    return tmp_path / "f"


def flip(file: Path, place: int) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 0xFF
    times = file.stat()
    file.write_bytes(data)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_flipped_bytes_anywhere_are_found_by_verify(path: Path) -> None:
    TokenStore.open(path, verify=True)
    for file in sorted(path.iterdir()):
        original = file.read_bytes()
        for place in np.linspace(0, len(original) - 1, 12).astype(int).tolist():
            flip(file, place)
            with pytest.raises(StoreError, match=str(path)):
                TokenStore.open(path, verify=True)
            file.write_bytes(original)
    TokenStore.open(path, verify=True)


def test_flipped_bytes_without_verify_never_crash(path: Path) -> None:
    for name in (DATA_FILE, INDEX_FILE):
        original = (path / name).read_bytes()
        for place in np.linspace(0, len(original) - 1, 60).astype(int).tolist():
            flip(path / name, place)
            try:
                store = TokenStore.open(path)
                store.read(np.arange(len(store)))
            except StreamsftError:
                pass
            (path / name).write_bytes(original)


def test_flipped_bytes_of_the_index_are_found_at_open(path: Path) -> None:
    original = (path / INDEX_FILE).read_bytes()
    for place in np.linspace(0, len(original) - 1, 60).astype(int).tolist():
        flip(path / INDEX_FILE, place)
        with pytest.raises(StoreError, match=INDEX_FILE):
            TokenStore.open(path)
        (path / INDEX_FILE).write_bytes(original)


@pytest.mark.parametrize("name", [DATA_FILE, INDEX_FILE, "state.json", "dataset_info.json"])
@pytest.mark.parametrize("change", [-1, 1, None])
def test_a_file_of_another_size_is_refused_at_open(name: str, change: int | None, path: Path) -> None:
    if change is None:
        (path / name).unlink()
    else:
        os.truncate(path / name, (path / name).stat().st_size + change)
    with pytest.raises(StoreError, match=name):
        TokenStore.open(path)


def test_a_store_without_manifest_is_half_written(path: Path) -> None:
    (path / MANIFEST_FILE).unlink()
    with pytest.raises(StoreError, match="only half written"):
        TokenStore.open(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: {**m, "rows": 7}, "was changed after"),
        (lambda m: {**m, "version": 99}, "format version 99"),
        (lambda m: {k: v for k, v in m.items() if k != "digest"}, "cannot be read"),
        (lambda m: [m], "cannot be read"),
    ],
)
def test_a_changed_manifest_is_refused(change: Callable[[dict[str, object]], object], message: str, path: Path) -> None:
    manifest = json.loads((path / MANIFEST_FILE).read_bytes())
    (path / MANIFEST_FILE).write_text(json.dumps(change(manifest)))
    with pytest.raises(StoreError, match=message):
        TokenStore.open(path)


def test_data_of_another_store_are_refused(path: Path, tmp_path: Path) -> None:
    build(tmp_path / "t", rows=200)
    for name in (DATA_FILE, INDEX_FILE):
        shutil.copy(tmp_path / "t" / name, path / name)
    with pytest.raises(StoreError, match="bytes instead of"):
        TokenStore.open(path)


def test_what_is_not_there_is_named_with_the_nearest_that_is(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=rf"{tmp_path}/a/b: .*nearest path that exists is {tmp_path}$"):
        TokenStore.open(tmp_path / "a" / "b")


def test_a_directory_that_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"holds no file of rows .* and no other"):
        TokenStore.open(tmp_path)
    (tmp_path / "state.json").write_text("[]")
    with pytest.raises(StoreError, match=r"state\.json: cannot be read"):
        TokenStore.open(tmp_path)


def test_a_directory_of_splits_names_them(foreign: Path, tmp_path: Path) -> None:
    split = datasets.load_from_disk(foreign)
    datasets.DatasetDict({"train": split, "test": split}).save_to_disk(tmp_path / "d")
    with pytest.raises(StoreError, match="one of them: test, train"):
        TokenStore.open(tmp_path / "d")
    assert len(TokenStore.open(tmp_path / "d" / "test")) == 50


@pytest.mark.parametrize("size", [0, 4, 500, -8, -1])
def test_a_cut_off_foreign_store_is_refused(size: int, foreign: Path) -> None:
    file = foreign / DATA_FILE
    os.truncate(file, size if size >= 0 else file.stat().st_size + size)
    with pytest.raises(StoreError, match=rf"{file}: has no end-of-stream mark"):
        TokenStore.open(foreign)
    file.unlink()
    with pytest.raises(StoreError, match=rf"{file}: no such file"):
        TokenStore.open(foreign)


def test_verify_finds_flipped_bytes_of_a_foreign_store_after_its_first_use(foreign: Path) -> None:
    TokenStore.open(foreign)
    TokenStore.open(foreign, verify=True)
    data = (foreign / DATA_FILE).read_bytes()
    place = data.index(np.array([1, 2, 3, 1], np.int32).tobytes())
    flip(foreign / DATA_FILE, place)
    for verify in (False, True):  # in the first or last bytes of a file, that is: those are looked at each time
        with pytest.raises(StoreError, match="have other bytes than at the first use"):
            TokenStore.open(foreign, verify=verify)


def test_verify_finds_flipped_bytes_in_the_middle_of_a_foreign_store(tmp_path: Path) -> None:
    table = pa.table({"input_ids": [[1, 2, 3]] * 5000, "loss_mask": [[0, 1, 1]] * 5000})
    pq.write_table(table, tmp_path / "s.parquet", compression="none", use_dictionary=False)
    fingerprint = TokenStore.open(tmp_path / "s.parquet").fingerprint
    data = (tmp_path / "s.parquet").read_bytes()
    flip(tmp_path / "s.parquet", data.index(np.array([1, 2, 3] * 900, np.int64).tobytes()) + 8000 * 2)
    assert TokenStore.open(tmp_path / "s.parquet").fingerprint == fingerprint
    with pytest.raises(StoreError, match=r"are not those of the first use|holds -?\d+; allowed are"):
        TokenStore.open(tmp_path / "s.parquet", verify=True)
