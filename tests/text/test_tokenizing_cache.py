"""The cache of tokenized sources: found by content, whole or not there, one result whoever races."""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from streamsft.sources.files import RawFiles
from streamsft.sources.store import TokenStore
from streamsft.text import cachekey
from streamsft.text.cachekey import cache_key, default_cache_dir
from streamsft.text.tokenizing import tokenize
from tests import processes
from tests.text.transforms import characters, failing, slowly


def written(path: Path, rows: int = 50, mark: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": f"row {n}{mark}"}) + "\n" for n in range(rows)), "utf-8")
    return path


def run(path: Path, cache: Path, **more: Any) -> TokenStore:
    return tokenize(path, transform=characters, name=more.pop("name", "s"), cache_dir=cache, **more)


def entries(cache: Path) -> list[str]:
    return sorted(entry.name for entry in (cache / "stores").iterdir())


def alone(cache: Path, data: Path, limit: int | None = None, slow: bool = False) -> None:
    """In a process of its own: tokenize, where no file may have more than `limit` bytes."""
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    store = tokenize(data, transform=slowly if slow else characters, name="s", cache_dir=cache)
    print(store.fingerprint)


class TestKey:
    def test_everything_that_decides_the_tokens_is_in_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        content = [["jsonl", None, "aa"]]
        keys = [
            cache_key(content, "e", format=None, columns=None),
            cache_key([["jsonl", None, "ab"]], "e", format=None, columns=None),
            cache_key(content, "f", format=None, columns=None),
            cache_key(content, "e", format="alpaca", columns=None),
            cache_key(content, "e", format=None, columns={"prompt": "p"}),
        ]
        monkeypatch.setattr(cachekey, "CODE_VERSION", 10_000)
        keys.append(cache_key(content, "e", format=None, columns=None))
        assert len(set(keys)) == len(keys)

    def test_the_default_folder(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("STREAMSFT_CACHE", raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", "/x")
        assert default_cache_dir() == Path("/x/streamsft")
        monkeypatch.setenv("STREAMSFT_CACHE", "/y")
        assert default_cache_dir() == Path("/y")


class TestHit:
    def test_reads_and_tokenizes_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = written(tmp_path / "a.jsonl")
        os.utime(path, (1_600_000_000, 1_600_000_000))
        first = run(path, tmp_path / "c")
        monkeypatch.setattr("streamsft.sources.files.hash_file", None)
        monkeypatch.setattr(RawFiles, "chunks", None)
        again = run(path, tmp_path / "c", name="other", processes=2)
        assert (again.fingerprint, again.name) == (first.fingerprint, "other")

    def test_follows_content_not_place(self, tmp_path: Path) -> None:
        first = run(written(tmp_path / "a" / "a.jsonl"), tmp_path / "c")
        moved = run(written(tmp_path / "b" / "moved.jsonl"), tmp_path / "c")
        assert moved.path == first.path
        for store in (moved, pickle.loads(pickle.dumps(moved))):
            assert (store.files, store.origin(3)) == (("moved.jsonl",), "moved.jsonl:3")
        shutil.move(tmp_path / "c", tmp_path / "d")
        assert run(tmp_path / "a" / "a.jsonl", tmp_path / "d").fingerprint == first.fingerprint
        assert len(entries(tmp_path / "d")) == 1

    def test_is_none_after_a_change_of_rows_or_function(self, tmp_path: Path) -> None:
        path = written(tmp_path / "a.jsonl")
        first = run(path, tmp_path / "c")
        written(path, mark="!")
        assert run(path, tmp_path / "c").fingerprint != first.fingerprint
        path.write_text('{"n": 1}\n')
        tokenize(path, transform=failing, name="s", cache_dir=tmp_path / "c")
        assert len(entries(tmp_path / "c")) == 3

    def test_equals_the_result_without_a_cache(self, tmp_path: Path) -> None:
        path = written(tmp_path / "a.jsonl")
        memory = tokenize(path, transform=characters, name="s", cache_dir=False)
        assert memory.fingerprint == run(path, tmp_path / "c").fingerprint
        assert memory.path is None


class TestDamage:
    @pytest.mark.parametrize("lost", ["streamsft.json", "data-00000-of-00001.arrow", "streamsft-index.bin"])
    def test_a_half_written_entry_is_made_again(
        self, tmp_path: Path, lost: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = written(tmp_path / "a.jsonl")
        first = run(path, tmp_path / "c")
        assert first.path is not None
        (first.path / lost).unlink()
        again = run(path, tmp_path / "c")
        assert (again.path, again.fingerprint) == (first.path, first.fingerprint)
        assert TokenStore.open(first.path, verify=True).fingerprint == first.fingerprint
        assert "its cached store is made again" in caplog.text

    def test_a_truncated_entry_is_made_again(self, tmp_path: Path) -> None:
        path = written(tmp_path / "a.jsonl")
        first = run(path, tmp_path / "c")
        assert first.path is not None
        data = first.path / "data-00000-of-00001.arrow"
        content = data.read_bytes()
        data.unlink()
        data.write_bytes(content[:-100])
        assert run(path, tmp_path / "c").fingerprint == first.fingerprint
        assert TokenStore.open(first.path, verify=True)

    def test_a_killed_writer_leaves_nothing_that_counts(self, tmp_path: Path) -> None:
        path = written(tmp_path / "a.jsonl")
        writer = processes.start(alone, tmp_path / "c", path, None, True)
        writer.readline()  # it is in the middle of its rows
        os.kill(writer.pid, signal.SIGKILL)
        assert writer.end().returncode == -signal.SIGKILL
        assert len(entries(tmp_path / "c")) == 1
        assert entries(tmp_path / "c")[0].startswith(".")
        store = run(path, tmp_path / "c")
        assert len(store) == 50
        assert store.path is not None
        assert store.path.name in entries(tmp_path / "c")

    def test_a_full_disk_publishes_nothing_and_says_so(self, tmp_path: Path) -> None:
        path = written(tmp_path / "a.jsonl", 3000)
        full = processes.run(alone, tmp_path / "c", path, 20_000)
        assert full.returncode == 1
        assert "StoreError" in full.stderr
        assert "Nothing was published" in full.stderr
        assert entries(tmp_path / "c") == []
        assert len(run(path, tmp_path / "c")) == 3000

    def test_a_disk_too_full_for_the_list_of_rejections(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        path.write_text('{"text": "fine"}\n' + "bad\n" * 3000)
        full = processes.run(alone, tmp_path / "c", path, 20_000)
        assert "StoreError" in full.stderr
        assert "rejected.jsonl: cannot be written" in full.stderr
        assert entries(tmp_path / "c") == []


@pytest.mark.parametrize("damaged", [False, True])
def test_racing_processes_make_one_entry(tmp_path: Path, damaged: bool) -> None:
    path = written(tmp_path / "a.jsonl", 300)
    if damaged:
        store = run(path, tmp_path / "c")
        assert store.path is not None
        (store.path / "state.json").write_bytes(b"")
    racers = [processes.start(alone, tmp_path / "c", path) for _ in range(4)]
    ended = [racer.end() for racer in racers]
    assert [racer.returncode for racer in ended] == [0] * 4
    prints = {racer.stdout for racer in ended}
    assert len(prints) == 1
    (entry,) = entries(tmp_path / "c")
    assert TokenStore.open(tmp_path / "c" / "stores" / entry, verify=True).fingerprint == prints.pop().strip()
