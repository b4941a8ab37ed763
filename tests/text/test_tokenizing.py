"""Tokenizing a source: what is stored, what is rejected, and what is said when nothing can be stored."""

from __future__ import annotations

import gzip
import json
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamsft.errors import ConfigError, DataError, EmptySourceError
from streamsft.sources import jsontext
from streamsft.sources.store import TokenStore
from streamsft.text.summary import SourceSummary, summary_table
from streamsft.text.tokenizing import tokenize
from tests.text.transforms import Scaled, characters, failing, killing

GOOD = [{"text": "row " + "x" * n} for n in range(40)]


def lines(rows: list[Any]) -> str:
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)


def written(folder: Path, name: str, rows: list[Any] | str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(rows if isinstance(rows, str) else lines(rows), "utf-8")
    return path


def texts(store: TokenStore) -> list[str]:
    return ["".join(map(chr, store[i].input_ids)) for i in range(len(store))]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsontext, "CHUNK_BYTES", 100)


class TestRows:
    def test_are_stored_in_order_with_their_numbers_and_origins(self, tmp_path: Path, small_chunks: None) -> None:
        written(tmp_path / "in", "a.jsonl", [GOOD[0], '{"text": ', "", GOOD[1]])
        written(tmp_path / "in", "b.json", json.dumps(GOOD[2:5], indent=1))
        store = tokenize(tmp_path / "in", transform=characters, name="s", cache_dir=tmp_path / "cache")
        assert texts(store) == [row["text"] for row in GOOD[:5]]
        assert store.row_numbers.tolist() == [0, 2, 3, 4, 5]
        assert [store.origin(i) for i in range(5)] == ["a.jsonl:0", "a.jsonl:2", "b.json:0", "b.json:1", "b.json:2"]
        assert store.supervised.tolist() == [len(row["text"]) - 1 for row in GOOD[:5]]
        assert store.name == "s"

    @pytest.mark.parametrize("processes", [1, 2, 3, None])
    def test_do_not_depend_on_processes(self, tmp_path: Path, small_chunks: None, processes: int | None) -> None:
        path = written(tmp_path, "a.jsonl", [*GOOD, "bad", *GOOD])
        alone = tokenize(path, transform=characters, name="s", cache_dir=False, processes=1)
        store = tokenize(path, transform=characters, name="s", cache_dir=tmp_path / "c", processes=processes)
        assert store.fingerprint == alone.fingerprint
        assert texts(store) == texts(alone) == [row["text"] for row in GOOD * 2]

    def test_do_not_depend_on_the_kind_of_file_or_where_it_lies(self, tmp_path: Path) -> None:
        written(tmp_path / "jsonl", "x.jsonl", GOOD)
        written(tmp_path / "json", "y.json", json.dumps(GOOD, indent=2))
        written(tmp_path / "csv", "z.csv", "text\n" + "".join(row["text"] + "\n" for row in GOOD))
        (tmp_path / "gz").mkdir()
        (tmp_path / "gz" / "x.jsonl.gz").write_bytes(gzip.compress(lines(GOOD).encode()))
        (tmp_path / "pq").mkdir()
        pq.write_table(pa.Table.from_pylist(GOOD), tmp_path / "pq" / "x.parquet")
        prints = {
            tokenize(tmp_path / kind, transform=characters, name="s", cache_dir=False).fingerprint
            for kind in ("jsonl", "json", "csv", "gz", "pq")
        }
        assert len(prints) == 1

    def test_progress_rises_to_the_whole(self, tmp_path: Path, small_chunks: None) -> None:
        path = written(tmp_path, "a.jsonl", GOOD)
        seen: list[tuple[int, int]] = []
        tokenize(
            path,
            transform=characters,
            name="s",
            cache_dir=False,
            progress=lambda done, total: seen.append((done, total)),
        )
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)
        assert seen[-1] == (path.stat().st_size, path.stat().st_size)
        assert tokenize(path, transform=characters, name="s", cache_dir=False, progress=True)


class TestRejected:
    ROWS = (GOOD[0], '{"text": "x"},', {"n": 1}, GOOD[1], '{"text": NaN}', {"text": "y"}, '{"text": "\\ud800"}')

    def test_are_counted_by_reason_listed_and_logged_once_each(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = written(tmp_path, "a.jsonl", "\ufeff\r\n" + lines(list(self.ROWS)))
        with caplog.at_level(logging.WARNING, "streamsft"):
            store = tokenize(path, transform=characters, name="s", cache_dir=tmp_path / "c")
        assert store.manifest.rejected == {"bad_row": 3, "transform": 1, "nothing_supervised": 1}
        assert store.row_numbers.tolist() == [0, 3]
        assert store.path is not None
        records = [json.loads(line) for line in (store.path / "rejected.jsonl").read_text().splitlines()]
        assert records[0] == {
            "source": "s",
            "file": "a.jsonl",
            "line": 3,
            "file_row": 1,
            "row": 1,
            "reason": "bad_row",
            "detail": "malformed JSON at column 14: Extra data",
        }
        assert [(r["row"], r["reason"]) for r in records] == [
            (1, "bad_row"),
            (2, "transform"),
            (4, "bad_row"),
            (5, "nothing_supervised"),
            (6, "bad_row"),
        ]
        assert [r.getMessage() for r in caplog.records] == [
            "source s: first row rejected as bad_row: a.jsonl:3: malformed JSON at column 14: Extra data",
            "source s: first row rejected as transform: a.jsonl:4: the transform returned None",
            "source s: first row rejected as nothing_supervised: a.jsonl:7: "
            "the mask supervises no token behind the first",
        ]

    def test_are_listed_where_asked_without_a_cache(self, tmp_path: Path) -> None:
        path = written(tmp_path, "a.jsonl", [GOOD[0], "bad"])
        store = tokenize(
            path, transform=characters, name="s", cache_dir=False, rejected_path=tmp_path / "rejected.jsonl"
        )
        assert store.manifest.rejected == {"bad_row": 1}
        assert json.loads((tmp_path / "rejected.jsonl").read_text())["line"] == 2

    @pytest.mark.parametrize("processes", [1, 2])
    def test_are_an_error_if_asked_in_the_cache_too(self, tmp_path: Path, processes: int) -> None:
        path = written(tmp_path, "a.jsonl", [GOOD[0], {"n": 1}, "bad", GOOD[1]])

        def run(on_bad_row: Any) -> TokenStore:
            return tokenize(
                path,
                transform=characters,
                name="s",
                cache_dir=tmp_path / "c",
                processes=processes,
                on_bad_row=on_bad_row,
            )

        says = r"source s: a\.jsonl:3: bad_row: malformed JSON at column 1: Expecting value\. .*on_bad_row: skip"
        with pytest.raises(DataError, match=says):
            run("error")
        assert not list((tmp_path / "c" / "stores").iterdir())
        assert len(run("skip")) == 2
        with pytest.raises(DataError, match=says):
            run("error")


class TestNothing:
    @pytest.mark.parametrize("content", ["", "\n\n", "\ufeff"])
    def test_no_rows(self, tmp_path: Path, content: str) -> None:
        path = written(tmp_path, "a.jsonl", content)
        with pytest.raises(EmptySourceError, match=r"source s: a\.jsonl: there are no rows"):
            tokenize(path, transform=characters, name="s", cache_dir=tmp_path / "c")
        assert not list((tmp_path / "c" / "stores").iterdir())

    def test_an_empty_file_among_others_is_fine(self, tmp_path: Path) -> None:
        for name, rows in (("a.jsonl", []), ("b.jsonl", GOOD[:2]), ("c.jsonl", [])):
            written(tmp_path / "in", name, rows)
        assert len(tokenize(tmp_path / "in", transform=characters, name="s", cache_dir=False)) == 2

    def test_all_rejected(self, tmp_path: Path) -> None:
        path = written(tmp_path, "a.jsonl", ["bad", {"n": 1}, {"n": 2}])
        with pytest.raises(
            EmptySourceError,
            match=r"source s: a\.jsonl: all 3 rows were rejected: 1 bad_row \(first: a\.jsonl:1: malformed JSON.*\), "
            r"2 transform \(first: a\.jsonl:2: the transform returned None\)",
        ):
            tokenize(path, transform=characters, name="s", cache_dir=tmp_path / "c")

    def test_a_missing_path(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"nowhere\.jsonl: no such file; the nearest path that exists is"):
            tokenize(tmp_path / "nowhere.jsonl", transform=characters, name="s", cache_dir=False)


class TestTransform:
    @pytest.mark.parametrize("processes", [1, 2])
    def test_that_fails_is_an_error_with_its_row(self, tmp_path: Path, processes: int) -> None:
        path = written(tmp_path, "a.jsonl", [{"n": n} for n in range(5)])
        with pytest.raises(DataError, match=r"source s: a\.jsonl:4: the transform raised KeyError: 'no such thing'"):
            tokenize(path, transform=failing, name="s", cache_dir=tmp_path / "c", processes=processes)
        pq.write_table(pa.table({"n": range(5)}), tmp_path / "b.parquet", row_group_size=2)
        with pytest.raises(DataError, match=r"source s: b\.parquet:3: the transform raised KeyError"):
            tokenize(tmp_path / "b.parquet", transform=failing, name="s", cache_dir=False, processes=processes)

    def test_whose_process_is_killed_is_an_error_and_leaves_nothing(self, tmp_path: Path) -> None:
        path = written(tmp_path, "a.jsonl", [{"n": n} for n in range(5)])
        with pytest.raises(DataError, match=r"source s: worker process \d+ was killed by signal 9 .*fewer processes"):
            tokenize(path, transform=killing, name="s", cache_dir=tmp_path / "c", processes=2)
        assert not list((tmp_path / "c" / "stores").iterdir())

    def test_that_cannot_travel_works_in_this_process(self, tmp_path: Path) -> None:
        path = written(tmp_path, "a.jsonl", GOOD)
        store = tokenize(path, transform=lambda row: characters(row), name="s", cache_dir=False)
        assert len(store) == len(GOOD)
        with pytest.raises(ConfigError, match=r"source s: cannot be sent to worker processes: .*<lambda>"):
            tokenize(path, transform=lambda row: characters(row), name="s", cache_dir=False, processes=2)

    @pytest.mark.parametrize(
        ("result", "says"),
        [
            ([1, 2], "must return a mapping with input_ids and loss_mask \\(or labels\\), or None"),
            ({"input_ids": [1]}, "must return a mapping with input_ids and loss_mask \\(or labels\\), or None"),
            ({"input_ids": [1, 2], "loss_mask": [1]}, r"of the same length, not int64\[2\] and int64\[1\]"),
            ({"input_ids": [[1, 2]], "loss_mask": [[0, 1]]}, "flat integer input_ids"),
            ({"input_ids": [1.5, 2], "loss_mask": [0, 1]}, "flat integer input_ids"),
            ({"input_ids": [-1, 2], "loss_mask": [0, 1]}, "token ids from -1 to 2"),
            ({"input_ids": [1, 2**31], "loss_mask": [0, 1]}, "token ids from 1 to 2147483648"),
            ({"input_ids": [1, 2], "loss_mask": [0, 2]}, "other values than 0, 1"),
        ],
    )
    def test_that_returns_something_else(self, tmp_path: Path, result: Any, says: str) -> None:
        path = written(tmp_path, "a.jsonl", GOOD[:1])
        with pytest.raises(DataError, match=rf"source s: a\.jsonl:1: .*{says}"):
            tokenize(path, transform=lambda row: result, name="s", cache_dir=False)

    def test_with_a_setting(self, tmp_path: Path) -> None:
        path = written(tmp_path, "a.jsonl", [{"n": 2}])
        for factor in (3, 4, 3):
            store = tokenize(path, transform=Scaled(factor), name="s", cache_dir=tmp_path / "c")
            assert store[0].input_ids.tolist() == [2 * factor, 1]


def test_wrong_arguments(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl", GOOD[:1])
    for arguments, says in (
        ({}, r"needs a tokenizer \(chat\) or a transform"),
        ({"transform": 3}, "transform: a int is no function"),
        ({"transform": characters, "processes": 0}, "processes: 0"),
        ({"transform": characters, "on_bad_row": "ignore"}, "on_bad_row: 'ignore'"),
        ({"transform": characters, "format": "alpaca"}, "format and columns have no effect on a transform"),
        ({"chat": object(), "format": "nonsense"}, "format 'nonsense' is not known"),
        ({"transform": characters, "name": "a b"}, "source name 'a b'"),
    ):
        with pytest.raises(ConfigError, match=says):
            tokenize(path, **{"name": "s", "cache_dir": False, **arguments})
    with pytest.raises(ConfigError, match="a int cannot be read"):
        tokenize(3, transform=characters, name="s", cache_dir=False)  # type: ignore[arg-type]


def test_a_summary_tells_sizes_and_rejections(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl", [*({"text": "x" * n} for n in range(2, 102)), "bad"])
    summary = SourceSummary.of(tokenize(path, transform=characters, name="s", cache_dir=False))
    assert (summary.rows, summary.tokens, summary.longest) == (100, 5150, 101)
    assert (summary.p50, summary.p95, summary.rejected) == (52, 97, {"bad_row": 1})
    assert summary.supervised_share == pytest.approx(5050 / 5150)
    assert summary_table([summary]).row_count == 1
