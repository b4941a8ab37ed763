"""Writing a store: complete or not at all, whoever dies, races or runs out of space."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest

from streamsft.errors import StoreError
from streamsft.sources import publish
from streamsft.sources.manifest import MANIFEST_FILE
from streamsft.sources.store import TokenStore
from tests.processes import context
from tests.sources.store_processes import build, build_and_die, fill_the_disk, private_growth, race, watch


def run(target: Any, *args: Any) -> int | None:
    process = context().Process(target=target, args=args)
    process.start()
    process.join(120)
    return process.exitcode


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_eight_processes_build_the_same_entries_while_another_reads(tmp_path: Path) -> None:
    rounds, barrier, stop, failures = 8, context().Barrier(8), context().Event(), context().Queue()
    reader = context().Process(target=watch, args=(tmp_path, rounds, stop, failures))
    writers = [context().Process(target=race, args=(tmp_path, rounds, barrier, failures)) for _ in range(8)]
    for process in (reader, *writers):
        process.start()
    for process in writers:
        process.join(300)
    stop.set()
    reader.join(60)
    codes = [process.exitcode for process in (reader, *writers)]
    assert codes == [0] * 9, failures.get()
    assert names(tmp_path) == sorted(f"entry-{number}" for number in range(rounds))
    assert len({TokenStore.open(tmp_path / name, verify=True).fingerprint for name in names(tmp_path)}) == 1


def test_a_killed_writer_leaves_nothing_that_counts_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    assert run(build_and_die, tmp_path / "s") == -signal.SIGKILL
    (left,) = names(tmp_path)
    assert left.startswith(".s.tmp-")
    with pytest.raises(StoreError, match="no such file"):
        TokenStore.open(tmp_path / "s")
    assert len(build(tmp_path / "s")) == 300
    assert names(tmp_path) == ["s"]


def test_temporary_directories_of_living_writers_and_other_machines_stay(tmp_path: Path) -> None:
    living = publish.temporary_name(tmp_path / "s")
    elsewhere = tmp_path / f".s.tmp-0123456789-{2**22 + 1}-abcdefgh"
    strange = tmp_path / ".s.tmp-mine"
    for place in (living, elsewhere, strange):
        place.mkdir()
    build(tmp_path / "s")
    assert all(place.exists() for place in (living, elsewhere, strange))
    (elsewhere / "data").touch()
    for place in (elsewhere / "data", elsewhere):
        os.utime(place, (0, 0))
    build(tmp_path / "s")
    assert not elsewhere.exists()
    assert living.exists()


def test_a_limit_on_file_size_publishes_nothing_and_says_so(tmp_path: Path) -> None:
    for limit in (100, 3000, 30_000):
        messages = context().Queue()
        assert run(fill_the_disk, tmp_path / "s", limit, messages) == 1
        kind, message = messages.get(timeout=60)
        assert kind == "StoreError"
        assert f"{tmp_path}/s: writing failed: File too large. Nothing was published" in message
        assert names(tmp_path) == []


def failure(path: Path) -> str:
    """The message of what `build` raises, or ''."""
    try:
        build(path)
    except StoreError as error:
        return str(error)
    return ""


def test_a_place_that_cannot_be_written_to_is_to_be_another_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert failure(tmp_path / "file" / "s").endswith("; choose another folder, then run again")


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_full_disk_at_any_moment_publishes_nothing(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(os, call)
    allowed = left = 0

    def refuse(*args: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args)

    monkeypatch.setattr(os, call, refuse)
    while message := failure(tmp_path / "s"):
        assert f"{tmp_path}/s: writing failed: No space left on device. Nothing was published" in message
        assert message.endswith("free some space, then run again")
        assert names(tmp_path) == []
        allowed += 1
        left = allowed
    assert allowed >= 5
    monkeypatch.undo()
    assert len(TokenStore.open(tmp_path / "s", verify=True)) == 300


def test_short_writes_of_the_system_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[: max(1, len(data) // 3)]))
    build(tmp_path / "s")
    assert len(TokenStore.open(tmp_path / "s", verify=True)) == 300


def test_an_exception_in_the_block_publishes_nothing(tmp_path: Path) -> None:
    writer = TokenStore.writer(tmp_path / "s")

    def interrupted() -> None:
        with writer:
            writer.append(np.array([1], np.int32), np.array([True]), np.array([1], np.int32), np.array([0]))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert names(tmp_path) == []
    with pytest.raises(StoreError, match="is closed"):
        writer.append(np.array([1], np.int32), np.array([True]), np.array([1], np.int32), np.array([1]))


def test_the_end_of_the_block_publishes(tmp_path: Path) -> None:
    with TokenStore.writer(tmp_path / "deep" / "s") as writer:
        writer.append(np.array([1], np.int32), np.array([True]), np.array([1], np.int32), np.array([0]))
    assert len(TokenStore.open(tmp_path / "deep" / "s")) == 1


def test_further_files_belong_to_the_store(tmp_path: Path) -> None:
    with TokenStore.writer(tmp_path / "s") as writer:
        assert writer.directory is not None
        (writer.directory / "rejected.jsonl").write_text("{}\n")
    assert (tmp_path / "s" / "rejected.jsonl").read_text() == "{}\n"
    (tmp_path / "s" / "rejected.jsonl").write_text("[]\n")
    TokenStore.open(tmp_path / "s")
    with pytest.raises(StoreError, match=r"rejected\.jsonl"):
        TokenStore.open(tmp_path / "s", verify=True)
    assert TokenStore.writer(None).directory is None


def flip(file: Path) -> None:
    """Change a byte of a row's tokens, which no opening looks at."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def test_a_complete_store_stays(tmp_path: Path) -> None:
    first = build(tmp_path / "s")
    inode = (tmp_path / "s").stat().st_ino
    assert build(tmp_path / "s").fingerprint == first.fingerprint
    assert (tmp_path / "s").stat().st_ino == inode
    with pytest.raises(StoreError, match="already holds a store of other rows"):
        build(tmp_path / "s", rows=10)
    assert names(tmp_path) == ["s"]
    assert len(TokenStore.open(tmp_path / "s", verify=True)) == 300


@pytest.mark.parametrize("damage", ["no manifest", "cut", "bad manifest", "bad state", "no state", "flipped", "empty"])
def test_a_half_written_store_is_replaced(damage: str, tmp_path: Path) -> None:
    build(tmp_path / "s")
    if damage == "cut":
        os.truncate(tmp_path / "s" / "data-00000-of-00001.arrow", 100)
    elif damage == "bad manifest":
        (tmp_path / "s" / MANIFEST_FILE).write_text("{")
    elif damage == "bad state":
        (tmp_path / "s" / "state.json").write_text("")
    elif damage == "no state":
        (tmp_path / "s" / "state.json").unlink()
    elif damage == "flipped":
        flip(tmp_path / "s" / "data-00000-of-00001.arrow")
    elif damage == "no manifest":
        (tmp_path / "s" / MANIFEST_FILE).unlink()
    else:
        for file in (tmp_path / "s").iterdir():
            file.unlink()
    assert len(build(tmp_path / "s")) == 300
    assert names(tmp_path) == ["s"]
    TokenStore.open(tmp_path / "s", verify=True)


def test_a_damaged_store_of_other_rows_stays(tmp_path: Path) -> None:
    build(tmp_path / "s")
    flip(tmp_path / "s" / "data-00000-of-00001.arrow")
    with pytest.raises(StoreError, match="already holds a store of other rows"):
        build(tmp_path / "s", rows=10)
    assert len(TokenStore.open(tmp_path / "s")) == 300


def test_what_is_no_store_is_never_replaced(tmp_path: Path) -> None:
    for name in ("folder", "states", "manifest"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.txt").write_text("mine")
    (tmp_path / "states" / "state.json").write_text("")
    (tmp_path / "manifest" / MANIFEST_FILE).write_text("{}")
    (tmp_path / "file").write_text("mine")
    before = names(tmp_path)
    for name in before:
        with pytest.raises(StoreError, match="exists and is no store"):
            build(tmp_path / name)
    assert names(tmp_path) == before
    assert (tmp_path / "folder" / "thesis.txt").read_text() == "mine"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's account of a process's memory")
@pytest.mark.parametrize("kind", ["own", "foreign"])
def test_reading_does_not_fill_the_memory(kind: str, tmp_path: Path) -> None:
    lengths = np.full(200_000, 20, np.int32)
    ids = np.arange(lengths.sum(), dtype=np.int32)
    if kind == "own":
        with TokenStore.writer(tmp_path / "s") as writer:
            writer.append(ids, ids % 2 == 0, lengths, np.arange(len(lengths)))
    else:
        offsets = pa.array(np.arange(0, len(ids) + 1, 20, dtype=np.int32))
        columns = {"input_ids": ids.astype(np.int64), "loss_mask": ids % 2}
        arrays = {name: pa.ListArray.from_arrays(offsets, pa.array(values)) for name, values in columns.items()}
        datasets.Dataset(pa.table(arrays)).save_to_disk(tmp_path / "s")
    results = context().Queue()
    assert run(private_growth, tmp_path / "s", results) == 0
    assert results.get(timeout=60) < 4 * 2**20  # 200,000 rows; the tokens are 16 MB, as 64-bit numbers 32 MB


@pytest.mark.parametrize(
    ("ids", "mask", "lengths", "row", "message"),
    [
        ([1, 2], [1], [2], [5], "2 ids and 1 mask entries"),
        ([1, 2], [1, 1], [3], [5], "add up to 3"),
        ([1, 2], [1, 1], [1, 1], [5], "2 lengths, 1 rows"),
        ([1, -2], [1, 1], [1, 1], [5, 6], "negative"),
        ([1, 2], [1, 1], [3, -1], [5, 6], "negative"),
        ([1, 2], [1, 1], [1, 1], [5, 5], "must increase"),
        ([1, 2], [1, 1], [1, 1], [4, 5], "must increase"),
    ],
)
def test_rows_that_do_not_fit_together_are_refused(
    ids: list[int], mask: list[int], lengths: list[int], row: list[int], message: str, tmp_path: Path
) -> None:
    writer = TokenStore.writer(tmp_path / "s")
    writer.append(np.array([7], np.int32), np.array([True]), np.array([1], np.int32), np.array([4]))
    with pytest.raises(StoreError, match=message):
        writer.append(np.array(ids, np.int32), np.array(mask, bool), np.array(lengths, np.int32), np.array(row))
    writer.abort()
    assert names(tmp_path) == []


def test_one_call_may_bring_more_rows_than_a_batch_holds(tmp_path: Path) -> None:
    lengths = np.full(3000, 1500, np.int32)
    ids = np.arange(lengths.sum(), dtype=np.int32)
    stores = []
    for path in (tmp_path / "s", None):
        with TokenStore.writer(path) as writer:
            writer.append(ids, ids % 3 == 0, lengths, np.arange(3000))
            stores.append(writer.close())
    for store in stores:
        assert all(
            (s.input_ids == ids[1500 * s.row : 1500 * (s.row + 1)]).all() for s in store.__getitems__([0, 999, 2999])
        )
    assert stores[0].fingerprint == stores[1].fingerprint
    assert stores[0].lengths.tolist() == lengths.tolist()
