"""Stores that are read by row groups, on the local disk and in memory."""

from __future__ import annotations

import os
import pickle
import threading
import zlib
from pathlib import Path

import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest

from streamsft.errors import ConfigError, StoreError
from streamsft.sources.base import is_grouped
from streamsft.sources.grouprows import ReadOptions
from streamsft.sources.grouptier import Tier
from streamsft.sources.objects import Objects
from streamsft.sources.rowgroups import RowGroupStore
from streamsft.sources.store import TokenStore
from streamsft.types import Ints
from tests.forking import in_child
from tests.objectstore import write_groups


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STREAMSFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_groups(tmp_path / "rows", files=3, groups=4, rows=5)


INDEX = np.array([7, 59, 0, 7, 33, 12, 58], np.int64)


def same_rows(one: RowGroupStore, other: RowGroupStore | TokenStore, index: Ints = INDEX) -> None:
    for found, expected in zip(one.read(index), other.read(index), strict=True):
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == b.dtype
            assert np.array_equal(a, b)


def test_rows_are_those_of_a_store_that_is_mapped(folder: Path) -> None:
    store, mapped = RowGroupStore.open(folder), TokenStore.open(folder)
    same_rows(store, mapped)
    assert (store.name, len(store), store.groups) == ("rows", 60, 12)
    assert store.fingerprint == mapped.fingerprint
    for name in ("lengths", "supervised", "first_supervised", "row_numbers"):
        assert np.array_equal(getattr(store, name), getattr(mapped, name))
    assert store.origin(33) == mapped.origin(33) == "part-01.parquet:13"
    assert store.group_bounds.tolist() == list(range(0, 61, 5))
    assert is_grouped(store)
    assert not is_grouped(mapped)
    assert store[-1].row == 59
    assert np.array_equal(store[-1].input_ids, mapped[59].input_ids)


def test_columns_that_are_named_travel_along(folder: Path) -> None:
    store = RowGroupStore.open(folder, extras=["note"])
    assert store.read_carried(INDEX)["note"][1] == "row 19 of file 2"
    assert store[33].extras == {"note": "row 13 of file 1"}


def test_only_the_groups_and_columns_that_are_needed_are_read(folder: Path) -> None:
    store = RowGroupStore.open(folder)
    store.read(np.array([0, 4, 22], np.int64))
    sizes = [
        pq.ParquetFile(file).metadata.row_group(group).total_byte_size
        for file, group in ((folder / "part-00.parquet", 0), (folder / "part-01.parquet", 0))
    ]
    io = store.io
    assert (io["groups_fetched"], io["rows_fetched"], io["rows_served"]) == (2, 10, 3)
    assert 0 < io["bytes_fetched"] < sum(sizes)
    store.read(np.array([1], np.int64))
    assert store.io["groups_fetched"] == 2
    assert store.io["memory_hits"] == 1


def test_files_beside_the_rows_are_passed_over(folder: Path) -> None:
    (folder / "_metadata").write_text("x")
    (folder / ".part.parquet").write_text("x")
    (folder / "readme.md").write_text("x")
    (folder / "more").mkdir()
    (folder / "part-02.parquet").rename(folder / "more" / "part-02.parquet")
    assert RowGroupStore.open(folder).files == ("more/part-02.parquet", "part-00.parquet", "part-01.parquet")


def test_a_spawned_process_gets_a_few_names(folder: Path) -> None:
    store = RowGroupStore.open(folder)
    data = pickle.dumps(store)
    assert len(data) < 2_000
    same_rows(pickle.loads(data), store)


def test_without_a_cache_folder_what_is_known_travels(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STREAMSFT_CACHE", str(tmp_path / "file"))
    store = RowGroupStore.open(folder)
    same_rows(pickle.loads(pickle.dumps(store)), store)


def test_a_forked_process_opens_its_own_files(folder: Path) -> None:
    store = RowGroupStore.open(folder)
    expected = [ids.tolist() for ids in store.read(INDEX)[0]]

    def again() -> bool:
        found = [ids.tolist() for ids in store.read(INDEX)[0]]
        return found == expected and store.io["rows_served"] == len(INDEX)

    assert in_child(again)


def test_threads_may_read_at_a_time(folder: Path) -> None:
    store = RowGroupStore.open(folder, options=ReadOptions(memory=1))
    mapped = TokenStore.open(folder)
    failures: list[BaseException] = []

    def read(seed: int) -> None:
        try:
            same_rows(store, mapped, np.random.default_rng(seed).integers(0, 60, 40))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_an_object_that_changed_is_refused(folder: Path) -> None:
    store = RowGroupStore.open(folder)
    same_rows(store, TokenStore.open(folder), np.array([0]))
    file = folder / "part-02.parquet"
    status = file.stat()
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(StoreError, match=r"part-02\.parquet: has changed since the store was opened"):
        store.read(np.array([59]))


def test_other_contents_are_scanned_anew(folder: Path) -> None:
    before = RowGroupStore.open(folder)
    write_groups(folder, files=3, groups=4, rows=5, seed=1)
    after = RowGroupStore.open(folder)
    assert after.fingerprint == TokenStore.open(folder).fingerprint != before.fingerprint
    with pytest.raises(StoreError, match="other versions"):
        len(pickle.loads(pickle.dumps(before)))


@pytest.mark.parametrize(("damage", "message"), [
    (lambda data: b"", "is no Parquet file, it has 0 bytes"),
    (lambda data: data[:-10], "is no Parquet file, or an encrypted or half written one"),
    (lambda data: data[:-8] + b"\xff\xff\xff\x7f" + data[-4:], "is damaged"),
    (lambda data: _without_footer(data) + b"\xff" * 40 + data[len(_without_footer(data)) + 40 :], "footer is damaged"),
    (lambda data: data[:4] + b"\0" * (len(data) // 2) + data[4 + len(data) // 2 :], "row group 0: is damaged"),
])  # fmt: skip
def test_a_damaged_file_is_told(folder: Path, damage: object, message: str) -> None:
    file = folder / "part-01.parquet"
    file.write_bytes(damage(file.read_bytes()))  # type: ignore[operator]
    with pytest.raises(StoreError, match=rf"part-01\.parquet.*{message}"):
        RowGroupStore.open(folder)


def _without_footer(data: bytes) -> bytes:
    return data[: -8 - int.from_bytes(data[-8:-4], "little")]


def test_a_row_that_breaks_a_rule_is_told_with_its_file(folder: Path) -> None:
    table = pq.read_table(folder / "part-01.parquet").to_pydict()
    table["loss_mask"][13][1] = 2
    import pyarrow as pa

    pq.write_table(pa.table(table), folder / "part-01.parquet", row_group_size=5)
    with pytest.raises(StoreError, match=r"part-01\.parquet, row 13: loss_mask holds 2"):
        RowGroupStore.open(folder)


def test_ids_beyond_the_tokenizer_are_refused(folder: Path) -> None:
    with pytest.raises(StoreError, match="the tokenizer in use has 500 ids"):
        RowGroupStore.open(folder, vocabulary=500)


def test_a_place_without_rows_is_told(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match=r"holds no \.parquet file"):
        RowGroupStore.open(tmp_path / "empty")
    with pytest.raises(StoreError, match="cannot be read"):
        RowGroupStore.open(tmp_path / "missing")


def test_an_address_with_credentials_is_refused_and_not_repeated() -> None:
    with pytest.raises(StoreError, match="credentials") as raised:
        Objects("s3://key:hidden@bucket/rows")
    assert "hidden" not in str(raised.value)


def test_any_file_system_of_fsspec_will_do(folder: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(folder), "/rows-of-a-test", recursive=True)
    store = RowGroupStore.open("memory://rows-of-a-test")
    same_rows(store, TokenStore.open(folder))
    again = RowGroupStore.open("/rows-of-a-test", filesystem=memory)
    same_rows(pickle.loads(pickle.dumps(again)), store)
    memory.pipe("/rows-of-a-test/part-00.parquet", (folder / "part-01.parquet").read_bytes())
    with pytest.raises(StoreError, match="has changed"):
        RowGroupStore.open("/rows-of-a-test", filesystem=memory, name="x") and same_rows(again, store, np.array([0, 1]))


def test_a_tier_holds_the_whole_store_if_asked(folder: Path, tmp_path: Path) -> None:
    RowGroupStore.open(folder)  # the rows are known, and not in the tier
    tier = Tier(dir=tmp_path / "tier", budget=1 << 20, whole=True)
    store = RowGroupStore.open(folder, tier=tier)
    told: list[int] = []
    store.download(told.append)
    assert told[-1] == store.groups == store.io["groups_fetched"]
    other = RowGroupStore.open(folder, name="other", tier=tier)
    same_rows(other, TokenStore.open(folder))
    assert other.io["bytes_fetched"] == 0
    assert other.io["tier_hits"] > 0
    told.clear()
    other.download(told.append)
    assert not told


def test_what_does_not_fit_the_tier_is_not_downloaded(folder: Path, tmp_path: Path) -> None:
    store = RowGroupStore.open(folder, tier=Tier(dir=tmp_path / "tier", budget=1000))
    with pytest.raises(StoreError, match=r"and tier\.budget is 1,000"):
        store.download()
    with pytest.raises(StoreError, match="there is none"):
        RowGroupStore.open(folder).download()


def test_a_file_of_the_tier_with_other_rows_is_not_used(folder: Path, tmp_path: Path) -> None:
    tier = Tier(dir=tmp_path / "tier", budget=1 << 20)
    store = RowGroupStore.open(folder, tier=tier)
    files = sorted((tmp_path / "tier").glob("*.arrow"))
    swapped = files[0].read_bytes()
    for file in files:
        file.write_bytes(swapped)
    same_rows(store, TokenStore.open(folder))


@pytest.mark.parametrize("options", [{"memory": 0}, {"prefetch": -1}, {"requests": True}, {"deadline": float("nan")}])
def test_options_out_of_range_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=f"io.{next(iter(options))}"):
        ReadOptions(**options)


def test_verifying_reads_all_rows_again(folder: Path) -> None:
    store = RowGroupStore.open(folder)
    place = store._known.sidecar.kept
    assert place is not None
    behind: list[int] = []
    assert RowGroupStore.open(folder, verify=True, advance=behind.append).fingerprint == store.fingerprint
    assert behind
    other = "0" * 32
    index = place.read_bytes().replace(store.fingerprint.encode(), other.encode())
    facts = index[-16 - int.from_bytes(index[-16:-12], "little") : -16]
    place.write_bytes(index[:-12] + zlib.crc32(facts).to_bytes(4, "little") + index[-8:])
    assert RowGroupStore.open(folder).fingerprint == other
    with pytest.raises(StoreError, match=rf"fingerprint {store.fingerprint}.* are not those of the first use"):
        RowGroupStore.open(folder, verify=True)
