"""A store of the cache that is damaged, in whatever file and way, is made again; what a user names is not touched."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamsft.errors import DataError
from streamsft.sources.store import TokenStore
from streamsft.text.tokenizing import tokenize
from tests.text.transforms import characters

DATA_FILE = "data-00000-of-00001.arrow"
FILES = ["streamsft.json", "state.json", "dataset_info.json", "streamsft-index.bin", DATA_FILE, "rejected.jsonl"]
CONTENTS: dict[str, Callable[[bytes], bytes]] = {
    "emptied": lambda data: b"",
    "truncated": lambda data: data[: len(data) // 2],
    "lengthened": lambda data: data + b"\0",
    "junk": lambda data: b"\x00junk\xff" * 40,
    "JSON": lambda data: b"[1]",
    "junk as long": lambda data: b"?" * len(data),
    "flipped": lambda data: bytes(byte ^ 0xFF for byte in data),
}
AS_LONG = ("junk as long", "flipped")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": f"row {n}"}) + "\n" for n in range(50)) + "bad\n", "utf-8")
    return path


def run(rows: Path, **more: Any) -> TokenStore:
    return tokenize(rows, transform=characters, name="s", cache_dir=rows.parent / "cache", processes=1, **more)


def place_of(store: TokenStore) -> Path:
    assert store.path is not None
    return store.path


def replace(file: Path, content: bytes | None) -> None:
    """Put another file in the place of `file`, as those who have it open are not to be disturbed."""
    file.unlink()
    if content is not None:
        file.write_bytes(content)


def check_healed(rows: Path, first: TokenStore, again: TokenStore) -> None:
    assert (again.path, again.fingerprint) == (first.path, first.fingerprint)
    assert TokenStore.open(place_of(first), verify=True).rejected == {"bad_row": 1}
    assert [entry.name for entry in place_of(first).parent.iterdir()] == [place_of(first).name]
    assert sorted(file.name for file in place_of(first).iterdir()) == sorted(FILES)
    assert len(first.read(np.arange(50))[0]) == 50  # what is mapped stays


@pytest.mark.parametrize("kind", [*CONTENTS, "deleted", "a folder"])
@pytest.mark.parametrize("file", FILES)
def test_any_damage_of_any_file_heals(file: str, kind: str, rows: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = run(rows)
    damaged = place_of(first) / file
    replace(damaged, CONTENTS[kind](damaged.read_bytes()) if kind in CONTENTS else None)
    if kind == "a folder":
        damaged.mkdir()
    unseen = file == "rejected.jsonl" and kind in AS_LONG  # by an opening that does not need it
    caplog.clear()
    check_healed(rows, first, run(rows, verify=unseen))
    (line,) = [record.message for record in caplog.records if "is made again" in record.message]
    assert line.startswith("source s: its cached store is made again")
    assert file in line
    caplog.clear()
    run(rows, verify=True)
    assert not caplog.records


def test_verify_heals_every_flipped_byte(rows: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = run(rows)
    with caplog.at_level(logging.CRITICAL):
        for file in FILES:
            length = (place_of(first) / file).stat().st_size
            for place in np.unique(np.linspace(0, length - 1, 6).astype(int)).tolist():
                data = bytearray((place_of(first) / file).read_bytes())
                data[place] ^= 0x55
                replace(place_of(first) / file, bytes(data))
                check_healed(rows, first, run(rows, verify=True))


def test_a_list_of_rejected_rows_that_cannot_be_read_does_not_hide_them(rows: Path) -> None:
    first = run(rows)
    listed = place_of(first) / "rejected.jsonl"
    replace(listed, b"?" * listed.stat().st_size)
    with pytest.raises(DataError, match=r"rows\.jsonl:51"):
        run(rows, on_bad_row="error")


@pytest.mark.parametrize("kind", ["file", "link to nothing", "link", "other folder", "store of other rows"])
def test_whatever_is_in_the_place_of_the_store_gives_way(kind: str, rows: Path, tmp_path: Path) -> None:
    first = run(rows)
    aside = tmp_path / "aside"
    place_of(first).rename(aside)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("mine")
    if kind == "file":
        place_of(first).write_text("")
    elif kind == "other folder":
        other.rename(place_of(first))
    elif kind == "store of other rows":
        with TokenStore.writer(place_of(first)) as writer:
            writer.append(np.ones(3, np.int32), np.ones(3, bool), np.array([3], np.int32), np.array([0]))
    else:
        os.symlink(other if kind == "link" else tmp_path / "nothing", place_of(first))
    check_healed(rows, first, run(rows))
    assert kind == "other folder" or (other / "thesis.txt").exists()
