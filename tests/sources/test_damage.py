"""Bytes that are not what was written: rows are read, or the file is named; never a crash, never another error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from streamsft.errors import DataError, StoreError
from streamsft.sources.files import RawFiles
from streamsft.sources.rawrows import BadRow, iterate_rows
from streamsft.sources.rowgroups import RowGroupStore
from streamsft.sources.shardfiles import ShardFiles
from streamsft.sources.store import TokenStore

ROWS = 60
EXTRAS = ("name", "facts", "tags")
LAYOUTS = ("stream", "file", "parquet")


def table(rows: int = ROWS) -> pa.Table:
    lengths = np.arange(rows) % 5 + 1
    return pa.table(
        {
            "input_ids": pa.array([np.arange(n, dtype=np.int32) for n in lengths]),
            "loss_mask": pa.array([np.ones(n, np.uint8) for n in lengths]),
            "name": pa.array([f"row {row % 7}" for row in range(rows)]).dictionary_encode(),
            "facts": pa.array([{"at": row, "text": "x" * (row % 4)} for row in range(rows)]),
            "tags": pa.array([["a", "bc"][: row % 3] for row in range(rows)]),
        }
    )


def written(folder: Path, layout: str, compression: str | None, rows: pa.Table | None = None) -> Path:
    rows = table() if rows is None else rows
    if layout == "parquet":
        path = folder / "x.parquet"
        pq.write_table(rows, path, row_group_size=20, compression=compression or "none")
        return path
    path = folder / "x.arrow"
    options = pa.ipc.IpcWriteOptions(compression=compression)
    opened = pa.ipc.new_stream if layout == "stream" else pa.ipc.new_file
    with opened(path, rows.schema, options=options) as writer:
        writer.write_table(rows.combine_chunks(), max_chunksize=20 if layout == "stream" else None)
    return path


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str | None], Path]:
    found = {}
    for layout in LAYOUTS:
        for compression in (None, "zstd"):
            folder = tmp_path_factory.mktemp("good")
            found[layout, compression] = written(folder, layout, compression)
    return found


@st.composite
def damages(draw: st.DrawFn) -> tuple[str, int, int]:
    """What is done to a file, where (from its start if positive, else from its end), and with what."""
    kind = draw(st.sampled_from(["bit", "byte", "zeros", "ones", "cut"]))
    near = st.integers(0, 1500)
    place = draw(st.one_of(near, near.map(lambda n: -n - 1), st.integers(0, 10_000)))
    return kind, place, draw(st.integers(0, 255))


def damaged(data: bytes, damage: tuple[str, int, int]) -> bytes:
    kind, place, value = damage
    at = place % len(data)
    new = bytearray(data)
    match kind:
        case "bit":
            new[at] ^= 1 << value % 8
        case "byte":
            new[at] = value
        case "zeros" | "ones":
            part = len(new[at : at + 8])
            new[at : at + 8] = (b"\0" if kind == "zeros" else b"\xff") * part
        case "cut":
            del new[at:]
    return bytes(new)


def read_store(path: Path) -> None:
    store = TokenStore.open(path, extras=EXTRAS)
    store.__getitems__(range(len(store)))


def read_groups(path: Path) -> None:
    store = RowGroupStore.open(path, extras=EXTRAS)
    store.__getitems__(range(len(store)))


def read_raw(path: Path) -> None:
    assert sum(1 for _ in iterate_rows(RawFiles(path))) >= 0


def read_shard(path: Path) -> None:
    shard = ShardFiles(path)
    for unit in range(shard.units(1)):
        for row in shard.read(unit, 1, None):
            assert row.number >= 0


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("layout", LAYOUTS)
@given(damage=damages(), compression=st.sampled_from([None, "zstd"]), number=st.integers(0, 3))
def test_damaged_files_are_read_or_named(
    layout: str,
    damage: tuple[str, int, int],
    compression: str | None,
    number: int,
    good: dict[tuple[str, str | None], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STREAMSFT_CACHE", str(tmp_path / "cache"))
    source = good[layout, compression]
    path = tmp_path / source.name
    path.write_bytes(damaged(source.read_bytes(), damage))
    readers: list[Callable[[Path], None]] = [
        read_store,
        read_raw,
        read_shard,
        *([read_groups] if layout == "parquet" else []),
    ]
    message = said(readers[number % len(readers)], path)
    assert message is None or path.name in message


def said(read: Callable[[Path], None], path: Path) -> str | None:
    try:
        read(path)
    except DataError as error:
        return str(error)
    return None


def replaced(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_name_that_is_no_text_is_damage(layout: str, tmp_path: Path) -> None:
    path = written(tmp_path, layout, None)
    replaced(path, b"input_ids", b"input_\xffds")
    with pytest.raises(StoreError, match=rf"{path.name}: is (no Parquet file, or )?damaged \(.*\); write or copy"):
        TokenStore.open(path)
    if layout == "parquet":
        with pytest.raises(StoreError, match=rf"{path.name}: its footer is damaged|has no column"):
            RowGroupStore.open(path)


@pytest.mark.parametrize("layout", ["stream", "file"])
def test_a_value_of_a_dictionary_that_is_not_there_is_damage(layout: str, tmp_path: Path) -> None:
    codes = np.arange(8)[::-1].astype(np.int64)
    names = pa.DictionaryArray.from_arrays(codes, ["a"] * 8)
    path = written(tmp_path, layout, None, table(8).set_column(2, "name", names))
    replaced(path, codes.tobytes(), (codes + (1 << 40)).tobytes())
    with pytest.raises(StoreError, match=rf"{path.name}: is damaged \(.*bounds"):
        TokenStore.open(path, extras=("name",))
    assert len(TokenStore.open(path)) == 8
    with pytest.raises(DataError, match=rf"{path.name}: cannot be read: .*bounds"):
        read_raw(path)


@pytest.mark.parametrize("layout", ["stream", "file"])
def test_rows_that_reach_beyond_the_values_are_damage(layout: str, tmp_path: Path) -> None:
    path = written(tmp_path, layout, None, table(8).select(["input_ids", "loss_mask", "tags"]))
    lengths = np.arange(8) % 3
    offsets = np.array([0, *np.cumsum(lengths)], np.int32)
    replaced(path, offsets.tobytes(), np.where(np.arange(9) == 4, 1 << 30, offsets).astype(np.int32).tobytes())
    with pytest.raises(StoreError, match=rf"{path.name}: is damaged \("):
        TokenStore.open(path, extras=("tags",))
    for read in (read_raw, read_shard):
        with pytest.raises(DataError, match=rf"{path.name}: cannot be read: "):
            read(path)


def test_text_that_is_not_utf8_is_an_error_of_a_store_and_costs_raw_rows_alone(tmp_path: Path) -> None:
    path = written(tmp_path, "stream", None, table(8).set_column(2, "name", [[f"row {row}" for row in range(8)]]))
    replaced(path, b"row 3", b"row \xff")
    with pytest.raises(StoreError, match=rf"{path.name}: is damaged \(.*UTF8"):
        TokenStore.open(path, extras=("name",))
    bad = [number for _, number, row in iterate_rows(RawFiles(path)) if isinstance(row.value, BadRow)]
    assert bad == [3]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_raw_rows_with_a_name_that_is_no_text_are_damaged(layout: str, tmp_path: Path) -> None:
    path = written(tmp_path, layout, None, table(8).select(["facts"]))
    replaced(path, b"text", b"te\xfft")
    for read in (read_raw, read_shard):
        with pytest.raises(DataError, match=rf"{path.name}: cannot be read: "):
            read(path)
