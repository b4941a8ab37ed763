"""Stores that are gone through by an engine: what is found is what one process finds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from streamsft.commands.inspect import StoreReport
from streamsft.errors import StoreError
from streamsft.sources.converting import convert_store
from streamsft.sources.rowgroups import RowGroupStore
from streamsft.sources.store import TokenStore
from streamsft.text.workers import LocalEngine
from tests.sources.stores import Rows, arrow_table, rows_of, write_indexed, write_stream


def parquet(rows: Rows, path: Path) -> None:
    pq.write_table(arrow_table(rows), path, row_group_size=16)


WRITERS: dict[str, Callable[[Rows, Path], object]] = {
    "stream.arrow": write_stream,
    "compressed.arrow": lambda rows, path: write_stream(rows, path, compression="zstd"),
    "indexed.arrow": write_indexed,
    "groups.parquet": parquet,
}


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Chooses a cache, so that what one scan has found is not there for another."""

    def choose(name: str) -> None:
        monkeypatch.setenv("STREAMSFT_CACHE", str(tmp_path / "caches" / name))

    choose("first")
    return choose


def tagged(rows: Rows) -> Rows:
    """The rows with a column that travels with them, null in some."""
    return [{**row, "tag": None if n % 5 == 0 else [f"t{n}", "x" * (n % 3)]} for n, row in enumerate(rows)]


@pytest.mark.parametrize(("name", "processes"), [*((name, 1) for name in WRITERS), ("groups.parquet", 2)])
def test_any_engine_finds_what_one_process_finds(
    tmp_path: Path, caches: Callable[[str], None], name: str, processes: int
) -> None:
    found = []
    for number, engine in enumerate((None, LocalEngine(processes))):
        folder = tmp_path / str(number)
        folder.mkdir()
        for part in range(2):
            WRITERS[name](tagged(rows_of(60, seed=part)), folder / f"{part}-{name}")
        caches(f"{number}")
        store = TokenStore.open(folder, extras=("tag",), name="rows", engine=engine)
        ids, masks = store.read(np.array([0, 59, 60, 119]))
        tags = store.read_carried(np.array([0, 1, 61]))["tag"]
        found.append((StoreReport.of(store), [store.origin(at) for at in range(120)], *map(repr, (ids, masks, tags))))
        assert StoreReport.of(TokenStore.open(folder, extras=("tag",), engine=engine, verify=True)) == found[-1][0]
    assert found[0] == found[1]


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    done: list[int] = []
    parquet(rows_of(60), tmp_path / "a.parquet")
    TokenStore.open(tmp_path / "a.parquet", engine=LocalEngine(1), advance=done.append)
    assert done == sorted(done)
    assert done[-1] == (tmp_path / "a.parquet").stat().st_size


def test_row_groups_are_checked_by_an_engine(tmp_path: Path, caches: Callable[[str], None]) -> None:
    parquet(rows_of(60), tmp_path / "rows.parquet")
    caches("alone")
    alone = RowGroupStore.open(tmp_path / "rows.parquet")
    caches("engine")
    store = RowGroupStore.open(tmp_path / "rows.parquet", engine=LocalEngine(2))
    assert StoreReport.of(store) == StoreReport.of(alone)
    assert store.group_bounds.tolist() == alone.group_bounds.tolist()


@pytest.mark.parametrize("name", ["stream.arrow", "groups.parquet"])
def test_a_row_that_breaks_a_rule_is_named_in_the_same_words(tmp_path: Path, name: str) -> None:
    rows = rows_of(60)
    rows[41] = {"input_ids": [1, 2, 3], "loss_mask": [0, 1, 2]}
    WRITERS[name](rows, tmp_path / name)
    messages = []
    for engine in (None, LocalEngine(1)):
        with pytest.raises(StoreError, match=f"{name}, row 41: loss_mask holds 2") as error:
            TokenStore.open(tmp_path / name, engine=engine)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_files_with_and_without_pairs_do_not_go_together(tmp_path: Path) -> None:
    rows = [{"input_ids": [1, 2, 3, 4, 5, 6], "loss_mask": [0, 0, 0, 1, 0, 1]} for _ in range(4)]
    parquet(rows, tmp_path / "a.parquet")
    parquet([{**row, "shared_length": 2, "chosen_length": 2} for row in rows], tmp_path / "b.parquet")
    with pytest.raises(StoreError, match=r"b\.parquet: has pairs, and the files before it have none"):
        TokenStore.open(tmp_path, engine=LocalEngine(1))


def test_the_bytes_of_a_store_of_ours_are_digested_by_an_engine(tmp_path: Path) -> None:
    convert_store(_stored(tmp_path), tmp_path / "store", to="store")
    assert len(TokenStore.open(tmp_path / "store", verify=True, engine=LocalEngine(1))) == 60
    data = next((tmp_path / "store").glob("data-*.arrow"))
    damaged = bytearray(data.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    data.write_bytes(damaged)
    with pytest.raises(StoreError, match="its bytes are not those that were written"):
        TokenStore.open(tmp_path / "store", verify=True, engine=LocalEngine(1))


def _stored(folder: Path) -> Path:
    parquet(rows_of(60), folder / "rows.parquet")
    return folder / "rows.parquet"
