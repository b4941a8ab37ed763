"""Stores written to object storage: whole, checked, and not to be read before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamsft.errors import StoreError
from streamsft.sources import converting
from streamsft.sources.converting import convert_store
from streamsft.sources.objects import UNFINISHED
from streamsft.sources.rowgroups import RowGroupStore
from streamsft.sources.store import TokenStore
from tests.objectstore import S3, s3_server, write_groups


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with s3_server() as server:
        server.filesystem.create_dir("bucket")
        yield server


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_groups(tmp_path_factory.mktemp("store"), files=2, groups=3, rows=20)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMSFT_CACHE", str(tmp_path / "cache"))


def names(s3: S3, path: str) -> list[str]:
    import pyarrow.fs as pafs

    found = s3.filesystem.get_file_info(pafs.FileSelector(f"bucket/{path}", recursive=True, allow_not_found=True))
    return sorted(info.base_name for info in found if info.is_file)


@pytest.mark.parametrize("file_tokens", [None, 1000])
def test_a_folder_holds_the_rows_in_row_groups(s3: S3, store: Path, file_tokens: int | None) -> None:
    address = s3.address(f"tokens-{file_tokens}")
    written = convert_store(store, address, row_group_tokens=300, file_tokens=file_tokens, extras=["note"])
    assert isinstance(written, RowGroupStore)
    assert written.fingerprint == TokenStore.open(store, extras=["note"]).fingerprint
    assert written.layout.blocks > 3
    found = names(s3, f"tokens-{file_tokens}")
    assert found == [f"part-{number:05}.parquet" for number in range(len(found))]
    assert (len(found) > 1) == (file_tokens is not None)
    with pytest.raises(StoreError, match="exists already"):
        convert_store(store, address)


def test_one_file(s3: S3, store: Path) -> None:
    written = convert_store(store, s3.address("one.parquet"))
    assert written.fingerprint == TokenStore.open(store).fingerprint
    with pytest.raises(StoreError, match="exists already"):
        convert_store(store, s3.address("one.parquet"))


def test_an_unfinished_folder_is_refused(s3: S3, store: Path) -> None:
    convert_store(store, s3.address("half"))
    with s3.filesystem.open_output_stream(f"bucket/half/{UNFINISHED}") as mark:
        mark.write(b"as a call that was killed leaves it")
    with pytest.raises(StoreError, match="s3://bucket/half: is being written, or was left unfinished"):
        RowGroupStore.open(s3.address("half"))


@pytest.mark.parametrize("target", ["failing", "failing.parquet"])
def test_nothing_is_left_where_writing_fails(s3: S3, store: Path, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = converting._groups

    def failing(*args: Any) -> Iterator[Any]:
        yield next(iter(groups(*args)))
        raise OSError("the source has gone")

    monkeypatch.setattr(converting, "_groups", failing)
    with pytest.raises(StoreError, match=rf"s3://bucket/{target}: cannot be written \(OSError: the source has gone\)"):
        convert_store(store, s3.address(target), row_group_tokens=300)
    assert target not in names(s3, "")
    assert names(s3, "failing") == []


def test_what_does_not_fit_an_address_is_refused(s3: S3, store: Path) -> None:
    with pytest.raises(StoreError, match="a store at an address is of Parquet files; leave arrow out"):
        convert_store(store, s3.address("x"), to="arrow")
    with pytest.raises(StoreError, match="is one file"):
        convert_store(store, s3.address("x.parquet"), file_tokens=10)
    with pytest.raises(StoreError, match="an address with credentials in it"):
        convert_store(store, "s3://key:secret@bucket/x")
    with pytest.raises(StoreError, match="s3://no-such-bucket/x: cannot be written"):
        convert_store(store, "s3://no-such-bucket/x")
