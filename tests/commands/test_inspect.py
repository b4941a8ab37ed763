"""Looking at stores and writing them in other layouts, from Python and from the command line."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from rich.console import Console
from typer.testing import CliRunner

import streamsft as ss
from streamsft.cli import app
from streamsft.errors import StoreError
from tests.sources.stores import contents, rows_of, write_lines, write_parquet, write_saved, write_stream

ROWS = rows_of(50)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMSFT_CACHE", str(tmp_path / "cache"))


def quiet() -> Console:
    return Console(file=io.StringIO(), width=120)


def test_a_report_tells_what_a_store_holds(tmp_path: Path) -> None:
    path = write_parquet(ROWS, tmp_path / "s.parquet", group=20)
    console = quiet()
    report = ss.inspect(path, console=console)
    lengths = [len(row["input_ids"]) for row in ROWS]
    assert (report.layout, report.rows, report.tokens) == ("parquet", 50, sum(lengths))
    assert report.supervised == sum(sum(row["loss_mask"][1:]) for row in ROWS)
    assert report.usable == sum(any(row["loss_mask"][1:]) for row in ROWS)
    assert report.longest == max(lengths)
    assert report.files == (("s.parquet", path.stat().st_size),)
    assert (report.row_groups, report.carried, report.tokenizer) == (3, (), "")
    assert report.fingerprint == ss.TokenStore.from_rows(ROWS).fingerprint
    for low, high, rows in report.lengths:
        assert rows == sum(low <= length <= high for length in lengths)
    assert sum(rows for _, _, rows in report.lengths) == 50
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    for part in ("parquet", f"{sum(lengths):,}", report.fingerprint, "s.parquet", "32 to 63", "█"):
        assert part in printed


def test_a_converted_store_lists_its_own_files_and_what_it_was_made_of(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    for name in "abcde":
        write_parquet(ROWS, tmp_path / "from" / f"{name}.parquet")
    console = quiet()
    ss.convert(tmp_path / "from", tmp_path / "to", console=quiet())
    report = ss.inspect(tmp_path / "to", console=console)
    data = sorted((tmp_path / "to").glob("*.arrow"))
    assert report.files == tuple((file.name, file.stat().st_size) for file in data)
    assert report.origins == tuple(f"{name}.parquet" for name in "abcde")
    assert "a.parquet, b.parquet, c.parquet, 2 more" in console.file.getvalue()  # type: ignore[attr-defined]
    assert ss.inspect(tmp_path / "from", console=quiet()).origins == ()


def test_verify_reads_everything_again_and_tells_how_far_it_is(tmp_path: Path) -> None:
    write_parquet(ROWS, tmp_path / "a.parquet")
    write_parquet(ROWS, tmp_path / "b.parquet")
    told: list[tuple[int, int]] = []
    total = sum(file.stat().st_size for file in tmp_path.glob("*.parquet"))
    for verify, times in ((False, 2), (False, 0), (True, 2)):
        told.clear()
        ss.inspect(tmp_path, verify=verify, progress=lambda *now: told.append(now), console=quiet())
        assert len(told) == times
    assert told[-1] == (total, total)


def test_the_commands_print_json(tmp_path: Path) -> None:
    path = write_stream(ROWS, tmp_path / "s.arrow")
    runner = CliRunner()
    looked = runner.invoke(app, ["inspect", str(path), "--verify", "--json"])
    assert looked.exit_code == 0
    report = json.loads(looked.stdout)
    assert (report["layout"], report["rows"], report["row_groups"]) == ("arrow", 50, 8)
    written = runner.invoke(
        app, ["convert", str(path), str(tmp_path / "t.parquet"), "--row-group-tokens", "200", "--json"]
    )
    assert written.exit_code == 0
    after = json.loads(written.stdout)
    assert after["fingerprint"] == report["fingerprint"]
    assert 5 <= after["row_groups"] <= 12
    refused = runner.invoke(app, ["convert", str(path), str(tmp_path / "u"), "--to", "csv"])
    assert refused.exit_code == 2
    assert "there are the layouts store, arrow and parquet" in refused.stderr
    assert runner.invoke(app, ["inspect", str(tmp_path / "none")]).exit_code == 2


SOURCES: dict[str, Callable[[Path], Path]] = {
    "parquet": lambda p: write_parquet(ROWS, p / "s.parquet"),
    "arrow": lambda p: write_stream(ROWS, p / "s.arrow"),
    "saved": lambda p: write_saved(ROWS, p / "s"),
    "jsonl": lambda p: write_lines(ROWS, p / "s.jsonl"),
}


@pytest.mark.parametrize(
    ("target", "options", "files"),
    [
        ("t.parquet", {}, 1),
        ("t.arrow", {"row_group_tokens": 100}, 1),
        ("t", {}, 1),
        ("t", {"to": "parquet", "row_group_tokens": 60, "file_tokens": 300}, 3),
        ("t", {"to": "arrow", "file_tokens": 300, "row_group_tokens": 1}, 3),
    ],
)
@pytest.mark.parametrize("source", SOURCES)
def test_any_layout_becomes_any_other(
    source: str, target: str, options: dict[str, Any], files: int, tmp_path: Path
) -> None:
    store = ss.convert(SOURCES[source](tmp_path), tmp_path / target, **options, console=quiet())
    assert contents(store) == ROWS
    assert store.fingerprint == ss.TokenStore.from_rows(ROWS).fingerprint
    assert len(store.layout.files) >= files
    assert not list(tmp_path.glob(".*.tmp-*"))
    if options.get("to") == "parquet":
        for file in sorted((tmp_path / target).glob("*.parquet")):
            for group in range(pq.ParquetFile(file).num_row_groups):
                lengths = [len(ids) for ids in pq.ParquetFile(file).read_row_group(group)["input_ids"].to_pylist()]
                assert sum(lengths) <= 60 or len(lengths) == 1


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
@pytest.mark.parametrize(("group", "file", "files"), [(100, 500, 8), (1000, 250, 16), (100, 100, 40), (7, 4000, 1)])
def test_a_file_holds_as_many_tokens_as_asked_for(kind: str, group: int, file: int, files: int, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"input_ids": [n % 9] * 10, "loss_mask": [1] * 10} for n in range(400)]
    source = write_lines(rows, tmp_path / "s.jsonl")
    options: dict[str, Any] = {"to": kind, "row_group_tokens": group, "file_tokens": file}
    store = ss.convert(source, tmp_path / "t", **options, console=quiet())
    assert len(store) == 400
    assert len(list((tmp_path / "t").glob(f"*.{kind}"))) == files


@pytest.mark.parametrize("target", ["u", "deep/u.parquet"])
def test_nothing_is_written_into_the_directory_that_is_read(target: str, tmp_path: Path) -> None:
    write_parquet(ROWS, tmp_path / "s.parquet")
    for place in (tmp_path / target, tmp_path / ".." / tmp_path.name / target):
        with pytest.raises(ss.StoreError, match="which is read and would hold all rows twice; choose another place"):
            ss.convert(tmp_path, place, console=quiet())
    assert [path.name for path in tmp_path.iterdir()] == ["s.parquet"]


def test_there_and_back(tmp_path: Path) -> None:
    first = ss.convert(write_saved(ROWS, tmp_path / "s"), tmp_path / "t.parquet", console=quiet())
    second = ss.convert(tmp_path / "t.parquet", tmp_path / "u", console=quiet())
    third = ss.convert(tmp_path / "u", tmp_path / "v.arrow", console=quiet())
    assert first.fingerprint == second.fingerprint == third.fingerprint


def test_compressed_text_can_be_converted(tmp_path: Path) -> None:
    (tmp_path / "s.jsonl.gz").write_bytes(gzip.compress(write_lines(ROWS, tmp_path / "s.jsonl").read_bytes()))
    assert contents(ss.convert(tmp_path / "s.jsonl.gz", tmp_path / "t", console=quiet())) == ROWS


def test_extras_are_taken_along(tmp_path: Path) -> None:
    rows = [{**row, "language": f"l{at % 3}"} for at, row in enumerate(ROWS)]
    store = ss.convert(
        write_parquet(rows, tmp_path / "s.parquet"), tmp_path / "t.arrow", extras=["language"], console=quiet()
    )
    assert store[7].extras == {"language": "l1"}
    with pytest.raises(StoreError, match="extras: goes with arrow or parquet"):
        ss.convert(tmp_path / "s.parquet", tmp_path / "t", extras=["language"], console=quiet())


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("there", {}, "exists already; remove it"),
        ("t.jsonl", {}, "stores are written as a directory, .arrow or .parquet"),
        ("t.txt", {}, "stores are written as a directory, .arrow or .parquet"),
        ("t.parquet", {"to": "arrow"}, "is named as parquet, and arrow is asked for"),
        ("t.parquet", {"file_tokens": 5}, "is one file; give a directory"),
        ("t", {"file_tokens": 5}, "file_tokens: goes with arrow or parquet"),
    ],
)
def test_what_cannot_be_written_is_refused(target: str, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    source = write_parquet(ROWS, tmp_path / "s.parquet")
    with pytest.raises(StoreError, match=message):
        ss.convert(source, tmp_path / target, **options, console=quiet())


@pytest.mark.parametrize("target", ["t.parquet", "t.arrow", "t"])
def test_a_bad_row_late_in_the_source_leaves_nothing(target: str, tmp_path: Path) -> None:
    rows = [*ROWS, {"input_ids": [1], "loss_mask": [3]}]
    source = write_parquet(rows, tmp_path / "s.parquet")
    with pytest.raises(StoreError, match="row 50: loss_mask holds 3"):
        ss.convert(source, tmp_path / target, console=quiet())
    assert [path.name for path in tmp_path.iterdir()] == ["s.parquet"]


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from streamsft.sources import converting

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    source = write_parquet(ROWS, tmp_path / "s.parquet")
    monkeypatch.setattr(converting, "fsync_file", full)
    with pytest.raises(StoreError, match="writing failed: No space left on device; nothing was left there"):
        ss.convert(source, tmp_path / "t", to="parquet", console=quiet())
    assert [path.name for path in tmp_path.iterdir()] == ["s.parquet"]


@pytest.mark.parametrize("target", ["s.arrow", "s.parquet", "folder"])
def test_a_store_without_rows_is_not_written_to_files(target: str, tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    with pytest.raises(StoreError, match="there is nothing to write, the source holds no row"):
        ss.convert(empty, tmp_path / target, to="parquet" if target == "folder" else None, console=quiet())
    assert [path for path in tmp_path.iterdir() if path.name != "cache"] == [empty]
