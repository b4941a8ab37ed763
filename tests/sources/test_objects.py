"""Clients of file systems: one for each process, however many threads ask; and what they cannot list is no nothing."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fsspec.implementations.local import LocalFileSystem

import streamsft as ss
from streamsft.errors import StoreError
from streamsft.sources.objects import Objects
from tests.forking import in_child
from tests.objectstore import write_groups


class OfOneProcess(LocalFileSystem):  # type: ignore[misc]
    """Takes its time to be made, as clients do, and refuses to be used by another process."""

    protocol = "one-process"
    cachable = False
    made = 0

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        time.sleep(0.02)
        self.process = os.getpid()
        OfOneProcess.made += 1

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> Any:
        assert self.process == os.getpid(), "the client of the parent"
        return super().cat_file(path, start=start, end=end, **options)


class FailsOnce(LocalFileSystem):  # type: ignore[misc]
    """Cannot list one folder at first."""

    protocol = "fails-once"
    cachable = False

    def __init__(self, folder: str = "", error: type[Exception] = TimeoutError, **options: Any) -> None:
        super().__init__(**options)
        self.folder, self.error, self.left = folder, error, 1

    def ls(self, path: str, detail: bool = False, **options: Any) -> Any:
        if os.path.basename(path.rstrip("/")) == self.folder and self.left:
            self.left -= 1
            raise self.error("slow down")
        return super().ls(path, detail=detail, **options)


def test_threads_of_a_fork_share_a_client_of_its_own(tmp_path: Path) -> None:
    folder = write_groups(tmp_path / "rows")
    store = ss.RowGroupStore.open(str(folder), name="rows", filesystem=OfOneProcess())
    index = np.arange(0, len(store), 20)  # of every row group
    truth = store.read(index)[0]

    def reads_alike() -> bool:
        before = OfOneProcess.made
        found: list[bool] = []

        def read() -> None:
            ids = store.read(index)[0]
            found.append(all(np.array_equal(one, other) for one, other in zip(ids, truth, strict=True)))

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return found == [True] * 4 and OfOneProcess.made == before + 1 and store.io["groups_fetched"] == store.groups

    assert in_child(reads_alike)


@pytest.mark.parametrize("folder", ["rows", "b"])
def test_a_folder_that_cannot_be_listed_at_first_is_listed_again(tmp_path: Path, folder: str) -> None:
    for part in ("a", "b"):
        write_groups(tmp_path / "rows" / part, files=2)
    whole = ss.RowGroupStore.open(str(tmp_path / "rows"), name="rows")
    seen = ss.RowGroupStore.open(str(tmp_path / "rows"), name="rows", filesystem=FailsOnce(folder))
    assert (len(seen), seen.fingerprint) == (len(whole), whole.fingerprint)


def test_a_folder_that_may_not_be_listed_is_an_error(tmp_path: Path) -> None:
    for part in ("a", "b"):
        write_groups(tmp_path / "rows" / part, files=1)
    with pytest.raises(StoreError, match=r"cannot be read \(PermissionError"):
        ss.RowGroupStore.open(str(tmp_path / "rows"), name="rows", filesystem=FailsOnce("b", PermissionError))


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"holds no \.parquet file"):
        Objects(str(tmp_path / "none"), LocalFileSystem()).listed()


def test_what_travels_with_the_rows_counts_as_fetched_ahead(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, image = 16 * 8, 1 << 12
    blobs = np.random.default_rng(0).integers(0, 256, (rows, image), np.uint8)
    columns = {
        "input_ids": [[1, 2, 3]] * rows,
        "loss_mask": [[0, 1, 1]] * rows,
        "image": [row.tobytes() for row in blobs],
    }
    (tmp_path / "rows").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "rows" / "a.parquet", row_group_size=8)
    group = 8 * image
    options = ss.ReadOptions(memory=4 * group, prefetch=4 * group)
    store = ss.RowGroupStore.open(str(tmp_path / "rows"), name="rows", extras=["image"], options=options)
    store.expect(0, [(group, group) for group in range(16)])
    store.read(np.array([0]))
    cache = store._rows._groups
    with cache._changed:
        assert cache._changed.wait_for(lambda: not cache._fetcher.flights, 60)
        assert 2 * group < cache._early_bytes <= 4 * group
