"""Which files a path stands for, and how their content is known."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streamsft.errors import ConfigError, DataError
from streamsft.sources import filehash
from streamsft.sources.filehash import HashMemory
from streamsft.sources.files import RawFiles
from streamsft.sources.paths import find_files

LONG_AGO = 1_600_000_000


def made(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text('{"n": 1}\n')
        os.utime(folder / name, (LONG_AGO, LONG_AGO))


def names(*args: str | Path | list[str]) -> list[str]:
    return [file.name for path in args for file in find_files(path)]


def test_a_folder_is_searched_in_sorted_order_without_hidden_and_other_files(tmp_path: Path) -> None:
    made(tmp_path, "b.jsonl", "a/z.json", "a/.hidden.json", ".git/x.json", "LICENSE", "a/B.JSONL.GZ", "x.parquet.gz")
    assert names(tmp_path) == ["a/B.JSONL.GZ", "a/z.json", "b.jsonl"]


def test_a_glob_is_sorted_and_may_cross_folders(tmp_path: Path) -> None:
    made(tmp_path, "b.jsonl", "a.jsonl", "c/d.jsonl", "a.txt")
    assert names(str(tmp_path / "*")) == ["a.jsonl", "b.jsonl"]
    assert names(str(tmp_path / "**" / "*.jsonl")) == ["a.jsonl", "b.jsonl", "c/d.jsonl"]


def test_a_list_keeps_its_order(tmp_path: Path) -> None:
    made(tmp_path, "b.jsonl", "a.jsonl", "c/d.jsonl")
    assert names([str(tmp_path / "b.jsonl"), str(tmp_path / "c"), str(tmp_path / "a.jsonl")]) == [
        "b.jsonl",
        "c/d.jsonl",
        "a.jsonl",
    ]


def test_a_name_with_glob_characters_is_a_name_where_it_exists(tmp_path: Path) -> None:
    made(tmp_path, "[1].jsonl", "1.jsonl")
    assert names(tmp_path / "[1].jsonl") == ["[1].jsonl"]


def test_names_do_not_depend_on_where_the_data_lies(tmp_path: Path) -> None:
    for place in ("here", "there/deeper"):
        made(tmp_path / place, "x/train.jsonl", "y/train.jsonl")
    listed = [
        names([f"{tmp_path}/{place}/x/train.jsonl", f"{tmp_path}/{place}/y"]) for place in ("here", "there/deeper")
    ]
    assert listed == [["x/train.jsonl", "y/train.jsonl"]] * 2


def test_links_in_folders_are_followed_once(tmp_path: Path) -> None:
    made(tmp_path, "real/a.jsonl")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "up").symlink_to(tmp_path / "data")
    assert names(tmp_path / "data") == ["a.jsonl"]


def test_a_missing_path_names_the_nearest_existing_one(tmp_path: Path) -> None:
    made(tmp_path, "data/gsm8k/train.jsonl")
    with pytest.raises(DataError) as caught:
        find_files(tmp_path / "data" / "gms8k" / "train.jsonl")
    message = str(caught.value)
    assert f"the nearest path that exists is {tmp_path / 'data'}, which holds gsm8k" in message
    with pytest.raises(DataError, match=r"nearest path that exists is .*gsm8k, which holds train\.jsonl"):
        find_files(tmp_path / "data" / "gsm8k" / "trian.jsonl")
    with pytest.raises(DataError, match="nearest path that exists"):
        find_files(str(tmp_path / "nowhere" / "*.jsonl"))


def test_paths_with_nothing_to_read(tmp_path: Path) -> None:
    made(tmp_path, "notes.txt")
    with pytest.raises(DataError, match=r"holds no file that can be read \(\.jsonl.*it holds notes\.txt"):
        find_files(tmp_path)
    with pytest.raises(DataError, match=r"notes\.txt: unknown kind of file"):
        find_files(tmp_path / "notes.txt")
    with pytest.raises(DataError, match="holds no file that can be read"):
        find_files(str(tmp_path / "*.txt"))
    with pytest.raises(ConfigError, match="the list is empty"):
        find_files([])


def test_a_saved_dataset_is_its_arrow_files(tmp_path: Path) -> None:
    made(tmp_path, "d/data-0.arrow", "d/state.json", "d/dataset_info.json", "state.json")
    assert names(tmp_path) == ["d/data-0.arrow", "state.json"]


def test_a_token_store_is_no_folder_of_raw_files(tmp_path: Path) -> None:
    made(tmp_path, "d/data-0.arrow", "d/state.json", "d/streamsft.json")
    with pytest.raises(DataError, match="d: is a token store; give it as `store`"):
        find_files(tmp_path)


def test_a_file_listed_twice_is_refused(tmp_path: Path) -> None:
    made(tmp_path, "a.jsonl")
    with pytest.raises(ConfigError, match=r"a\.jsonl: listed twice"):
        find_files([str(tmp_path / "a.jsonl"), str(tmp_path)])


class TestContentKey:
    def test_follows_content_format_and_order_and_nothing_else(self, tmp_path: Path) -> None:
        made(tmp_path, "x/a.jsonl", "y/b.jsonl", "z/a.json")
        key = RawFiles(tmp_path / "x" / "a.jsonl").content_key()
        assert RawFiles(tmp_path / "y" / "b.jsonl").content_key() == key
        assert RawFiles(tmp_path / "z" / "a.json").content_key() != key
        (tmp_path / "y" / "b.jsonl").write_text('{"n": 2}\n')
        changed = RawFiles(tmp_path / "y" / "b.jsonl").content_key()
        assert changed != key
        both = [str(tmp_path / "x" / "a.jsonl"), str(tmp_path / "y" / "b.jsonl")]
        assert RawFiles(both).content_key() == key + changed
        assert RawFiles(both[::-1]).content_key() == changed + key

    def test_an_unchanged_file_is_not_read_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        made(tmp_path, "data/a.jsonl")
        memory = HashMemory(tmp_path / "hashes")
        key = RawFiles(tmp_path / "data", memory=memory).content_key()
        path = tmp_path / "data" / "a.jsonl"
        path.write_text('{"n": 2}\n')
        os.utime(path, (LONG_AGO, LONG_AGO))  # a change that nobody can see without reading
        assert RawFiles(tmp_path / "data", memory=memory).content_key() == key
        os.utime(path, (LONG_AGO, LONG_AGO + 5))
        assert RawFiles(tmp_path / "data", memory=memory).content_key() != key

    def test_a_file_changed_a_moment_ago_is_not_remembered(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(filehash, "_SETTLED_NS", 600 * 10**9)  # the machine may take its time
        made(tmp_path, "data/a.jsonl")
        os.utime(tmp_path / "data" / "a.jsonl")
        RawFiles(tmp_path / "data", memory=HashMemory(tmp_path / "hashes")).content_key()
        assert not (tmp_path / "hashes").exists()

    @pytest.mark.parametrize("record", ["", "[]", "{}", '{"hash": 1}', "\xff"])
    def test_a_damaged_memory_is_forgotten(self, tmp_path: Path, record: str) -> None:
        made(tmp_path, "data/a.jsonl")
        reader = RawFiles(tmp_path / "data", memory=HashMemory(tmp_path / "hashes"))
        key = reader.content_key()
        (place,) = (tmp_path / "hashes").iterdir()
        place.write_text(record, "latin-1")
        assert reader.content_key() == key

    def test_a_memory_that_cannot_be_written_is_no_error(self, tmp_path: Path) -> None:
        made(tmp_path, "data/a.jsonl", "hashes")
        reader = RawFiles(tmp_path / "data", memory=HashMemory(tmp_path / "hashes"))
        assert reader.content_key() == [["jsonl", None, filehash.hash_file(str(tmp_path / "data" / "a.jsonl"))]]
