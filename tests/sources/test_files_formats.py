"""Raw files that are compressed, columnar or delimited."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from streamsft.errors import DataError
from streamsft.sources.files import RawFiles
from streamsft.sources.rawrows import BadRow, Row, iterate_rows


def rows_of(path: Path | str | list[str]) -> list[Row]:
    return [row for _, _, row in iterate_rows(RawFiles(path))]


def values_of(path: Path | str | list[str]) -> list[dict[str, Any] | BadRow]:
    return [row.value for row in rows_of(path)]


def written(folder: Path, name: str, content: bytes | str) -> Path:
    path = folder / name
    path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    return path


def detail(row: Row) -> str:
    assert isinstance(row.value, BadRow)
    return row.value.detail


ROWS: list[dict[str, Any]] = [{"n": i, "t": "é\u2028😀" * i, "deep": {"x": [1, None]}} for i in range(7)]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode("utf-8")


class TestCompressed:
    def test_gzip_members_and_zstd_frames_in_a_row(self, tmp_path: Path) -> None:
        half = LINES.index(b"\n") + 1
        parts = (LINES[:half], LINES[half:])
        skipped = (0x184D2A50).to_bytes(4, "little") + (3).to_bytes(4, "little") + b"abc"
        gz = written(tmp_path, "x.jsonl.gz", b"".join(map(gzip.compress, parts)))
        zst = written(tmp_path, "y.jsonl.zst", skipped.join(map(zstandard.ZstdCompressor().compress, parts)))
        assert values_of(gz) == values_of(zst) == ROWS

    @pytest.mark.parametrize("name", ["x.jsonl.gz", "x.jsonl.zst", "x.json.gz", "x.csv.zst"])
    def test_a_truncated_file_is_an_error(self, tmp_path: Path, name: str) -> None:
        content = b'{"n": "' + os.urandom(20_000).hex().encode() + b'"}\n'
        packed = gzip.compress(content) if name.endswith("gz") else zstandard.ZstdCompressor().compress(content)
        path = written(tmp_path, name, packed[:-30])
        with pytest.raises(DataError, match=rf"{name}: cannot be read: .*end"):
            rows_of(path)

    @pytest.mark.parametrize("name", ["x.jsonl.gz", "x.jsonl.zst"])
    def test_a_file_that_is_not_compressed_at_all(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(DataError, match=f"{name}: cannot be read"):
            rows_of(written(tmp_path, name, LINES))

    @pytest.mark.parametrize("name", ["x.jsonl.gz", "x.jsonl.zst"])
    def test_an_empty_file_has_no_rows(self, tmp_path: Path, name: str) -> None:
        assert rows_of(written(tmp_path, name, b"")) == []


class TestColumnar:
    def test_parquet_and_both_kinds_of_arrow_files(self, tmp_path: Path) -> None:
        table = pa.table({"q": ["a", None, "c"] * 50, "n": list(range(150))})
        pq.write_table(table, tmp_path / "x.parquet", row_group_size=40)
        with pa.ipc.new_stream(tmp_path / "s.arrow", table.schema) as stream:
            stream.write_table(table, max_chunksize=33)
        with pa.ipc.new_file(tmp_path / "f.arrow", table.schema) as file:
            file.write_table(table, max_chunksize=33)
        for name in ("x.parquet", "s.arrow", "f.arrow"):
            assert values_of(tmp_path / name) == table.to_pylist()

    def test_nulls_that_fill_up_nested_structs_are_dropped_and_others_kept(self, tmp_path: Path) -> None:
        rows = [
            {"tools": [{"args": {"a": "x"}}], "schema": '{"default": null}', "top": None},
            {"tools": [{"args": {"b": 1}}, {"args": {"a": "y", "b": 2}}], "schema": "{}", "top": {"k": [1, None]}},
            {"tools": None, "schema": None, "top": None},
        ]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
        assert values_of(tmp_path / "x.parquet") == rows

    def test_text_that_is_not_utf8_costs_its_row_alone(self, tmp_path: Path) -> None:
        binary = pa.array([b"ok", b"\xff", b"fine"])
        values = pa.StringArray.from_buffers(3, binary.buffers()[1], binary.buffers()[2])
        pq.write_table(pa.table({"t": values}), tmp_path / "x.parquet")
        first, bad, last = rows_of(tmp_path / "x.parquet")
        assert (first.value, last.value) == ({"t": "ok"}, {"t": "fine"})
        assert "not UTF-8" in detail(bad)

    @pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
    @pytest.mark.parametrize("content", [b"", b"no such thing", b"PAR1 truncated"])
    def test_a_damaged_file_is_named(self, tmp_path: Path, name: str, content: bytes) -> None:
        with pytest.raises(DataError, match=f"{name}: cannot be read"):
            rows_of(written(tmp_path, name, content))

    def test_a_truncated_parquet_file(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"n": list(range(1000))}), tmp_path / "x.parquet")
        content = (tmp_path / "x.parquet").read_bytes()
        with pytest.raises(DataError, match="cannot be read"):
            rows_of(written(tmp_path, "y.parquet", content[: len(content) // 2]))


class TestDelimited:
    def test_csv_and_tsv(self, tmp_path: Path) -> None:
        path = written(tmp_path, "x.csv", '\ufeffq,a\r\n"1, ""one""\nline two","x\u2028y"\r\n\r\n007,\r\n')
        assert rows_of(path) == [Row({"q": '1, "one"\nline two', "a": "x\u2028y"}, 2), Row({"q": "007", "a": ""}, 5)]
        assert values_of(written(tmp_path, "x.tsv", "q\ta\n1,5\t2\n")) == [{"q": "1,5", "a": "2"}]

    def test_a_field_longer_than_the_csv_modules_limit(self, tmp_path: Path) -> None:
        assert values_of(written(tmp_path, "x.csv", "a\n" + "y" * 200_000)) == [{"a": "y" * 200_000}]

    def test_bad_rows(self, tmp_path: Path) -> None:
        path = written(tmp_path, "x.csv", b'a,b\n1\n1,2,3\n\xff,1\n"x"y,2\n3,4\n"open,5\n')
        rows = rows_of(path)
        assert [detail(row) for row in rows if isinstance(row.value, BadRow)] == [
            "1 fields where the header names 2",
            "3 fields where the header names 2",
            "not UTF-8",
            "malformed quoting: ',' expected after '\"'",
            "malformed quoting: unexpected end of data",
        ]
        assert [row.line for row in rows] == [2, 3, 4, 5, 6, 7]
        assert rows[4].value == {"a": "3", "b": "4"}

    def test_headers_that_cannot_be_used(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"x\.csv:1: column 'a' is named twice"):
            rows_of(written(tmp_path, "x.csv", "a,b,a\n1,2,3\n"))
        with pytest.raises(DataError, match=r"x\.csv:1: the header line is blank"):
            rows_of(written(tmp_path, "x.csv", "\na,b\n1,2\n"))
        assert rows_of(written(tmp_path, "x.csv", "")) == []
