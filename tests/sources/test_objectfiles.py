"""Raw files at addresses: the rows and the store of the same files on a disk, whatever happens on the way."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from streamsft.errors import ConfigError, DataError
from streamsft.sources.filehash import HashMemory
from streamsft.sources.files import RawFiles
from streamsft.sources.objectfiles import ObjectFiles
from streamsft.sources.paths import find_files
from streamsft.sources.rawrows import iterate_rows
from streamsft.text.chat import ChatTokenizer
from streamsft.text.tokenizing import tokenize
from tests.objectstore import S3, Faults, s3_server
from tests.text.tokenizers import bpe


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of each format, in two folders, and others that are none."""
    folder = tmp_path_factory.mktemp("raw")
    (folder / "more").mkdir()
    rows = [{"question": f"What is {n} + {n}?", "answer": f"It is {2 * n}."} for n in range(40)]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (folder / "a.jsonl").write_bytes(lines + b'{"question": 1}\n')
    (folder / "b.json").write_text(json.dumps(rows))
    (folder / "c.jsonl.gz").write_bytes(gzip.compress(lines))
    (folder / "more" / "d.jsonl.zst").write_bytes(zstandard.compress(lines))
    (folder / "more" / "e.csv").write_text("question,answer\n" + "".join(f"is it {n}?,it is {n}\n" for n in range(40)))
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, folder / "more" / "f.parquet", row_group_size=7)
    with pa.ipc.new_file(str(folder / "more" / "g.arrow"), table.schema) as file:
        file.write_table(table, max_chunksize=9)
    with pa.ipc.new_stream(str(folder / "more" / "h.arrow"), table.schema) as stream:
        stream.write_table(table, max_chunksize=9)
    (folder / ".hidden.jsonl").write_bytes(lines)
    (folder / "README.md").write_text("none of these")
    return folder


@pytest.fixture(scope="module")
def address(s3: S3, folder: Path) -> str:
    return s3.upload(folder, "raw")


@pytest.fixture(autouse=True)
def no_faults(s3: S3) -> Iterator[None]:
    yield
    s3.faults = Faults()


@pytest.mark.parametrize("pattern", ["", "/*.json*", "/**/*.jsonl*", "/more/[ef].*"])
def test_files_names_keys_and_rows_are_those_on_a_disk(address: str, folder: Path, pattern: str) -> None:
    here, there = RawFiles(f"{folder}{pattern}"), ObjectFiles(f"{address}{pattern}")
    assert there.files == here.files
    assert len(here.files) >= 2
    assert there.size == here.size
    assert there.content_key() == here.content_key()
    assert list(iterate_rows(there)) == list(iterate_rows(here))


def test_the_store_is_that_of_the_same_files_and_is_found_again(
    s3: S3, address: str, folder: Path, tmp_path: Path
) -> None:
    s3.faults = Faults(cut=0.2)
    chat = ChatTokenizer(bpe())
    expected = tokenize(folder, chat, name="raw", cache_dir=tmp_path / "here")
    store = tokenize(address, chat, name="raw", cache_dir=tmp_path / "there")
    assert s3.faults.happened["cut"] > 0
    for name in ("data-00000-of-00001.arrow", "rejected.jsonl"):
        assert (Path(str(store.path)) / name).read_bytes() == (Path(str(expected.path)) / name).read_bytes()
    assert store.fingerprint == expected.fingerprint
    assert store.files == expected.files
    before = sum(s3.gets.values())
    assert tokenize(address, chat, name="raw", cache_dir=tmp_path / "there").path == store.path
    assert sum(s3.gets.values()) == before, "what has not changed is not read again"


def test_an_object_that_changes_is_hashed_anew_and_refused_while_it_is_read(s3: S3, tmp_path: Path) -> None:
    rows = tmp_path / "raw" / "rows.jsonl"
    rows.parent.mkdir()
    rows.write_text('{"question": "a", "answer": "b"}\n')
    memory = HashMemory(tmp_path / "hashes")
    address = s3.upload(rows.parent, "changing")
    opened = ObjectFiles(address, memory=memory)
    before = opened.content_key()
    rows.write_text('{"question": "a", "answer": "c"}\n')
    s3.upload(rows.parent, "changing")
    with pytest.raises(DataError, match=r"s3://bucket/changing/rows\.jsonl: changed while it was in use"):
        list(opened.chunks())
    assert ObjectFiles(address, memory=memory).content_key() != before


def test_damage_is_told_with_its_address(s3: S3, tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n' * 1000)[:-20])
    (tmp_path / "raw" / "no.parquet").write_bytes(b"PAR1 no PAR1")
    address = s3.upload(tmp_path / "raw", "damaged")
    for name in ("cut.jsonl.gz", "no.parquet"):
        with pytest.raises(DataError, match=f"s3://bucket/damaged/{name}: cannot be read"):
            list(ObjectFiles(f"{address}/{name}").chunks())


def test_what_cannot_be_used_is_refused(s3: S3, address: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="s3://bucket/nowhere: cannot be read"):
        ObjectFiles(s3.address("nowhere"))
    with pytest.raises(DataError, match=r"s3://bucket/raw/\*\.txt: nothing is there"):
        ObjectFiles(f"{address}/*.txt")
    with pytest.raises(DataError, match=r"s3://bucket/raw/README\.md: unknown kind of file"):
        ObjectFiles(f"{address}/R*")
    with pytest.raises(ConfigError, match="listed twice"):
        ObjectFiles([f"{address}/a.jsonl", f"{address}/*.jsonl"])
    with pytest.raises(ConfigError, match="addresses and paths of this machine in one list"):
        ObjectFiles([f"{address}/a.jsonl", str(tmp_path)])
    with pytest.raises(DataError, match="is an address, and only files of this machine"):
        find_files(address)
