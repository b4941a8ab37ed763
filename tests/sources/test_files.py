"""Raw files: what counts as a row, how it is decoded, and what is said of one that cannot be."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

from streamsft.errors import DataError
from streamsft.sources import jsontext
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


class TestJsonLines:
    def test_bom_crlf_blank_lines_and_a_missing_last_newline(self, tmp_path: Path) -> None:
        path = written(tmp_path, "x.jsonl", b'\xef\xbb\xbf{"a":1}\r\n\r\n  \n{"a":2}')
        assert rows_of(path) == [Row({"a": 1}, 1), Row({"a": 2}, 4)]

    @pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\r\n"])
    def test_a_file_without_content_has_no_rows(self, tmp_path: Path, content: bytes) -> None:
        assert rows_of(written(tmp_path, "x.jsonl", content)) == []

    def test_line_separators_inside_strings_do_not_end_a_row(self, tmp_path: Path) -> None:
        text = "a\u2028b\u2029c\x85d\x0be\x1cf"
        raw = json.dumps({"t": text}, ensure_ascii=False).replace("\\u000b", "\x0b").replace("\\u001c", "\x1c")
        path = written(tmp_path, "x.jsonl", json.dumps({"t": text}, ensure_ascii=False) + "\n" + '{"t": "z"}\n')
        assert "\u2028" in raw
        assert values_of(path) == [{"t": text}, {"t": "z"}]

    @pytest.mark.parametrize(
        ("line", "says"),
        [
            (b'{"a":1},', "malformed JSON at column 8"),
            (b'{"a":', "malformed JSON at column 6"),
            (b'{"a": NaN}', "NaN is not JSON"),
            (b'{"a": -Infinity}', "-Infinity is not JSON"),
            (b"[1, 2]", "a JSON array, not an object"),
            (b"null", "a JSON null, not an object"),
            (b"12", "a JSON number, not an object"),
            (b'{"a": "\\ud800"}', "half of a surrogate pair"),
            (b'{"a": "\xed\xa0\x80"}', "not UTF-8 at byte 8"),
            (b'{"a": "\xff"}', "not UTF-8 at byte 8"),
            (b"[" * 100_000, "nested too deeply"),
            (b'{"a": ' + b"1" * 5000 + b"}", "malformed JSON"),
            (b"{'a': 1}", "malformed JSON at column 2"),
        ],
    )
    def test_a_bad_line_costs_itself_alone(self, tmp_path: Path, line: bytes, says: str) -> None:
        path = written(tmp_path, "x.jsonl", b'{"a": 0}\n' + line + b'\n{"a": 2}\n')
        before, bad, after = rows_of(path)
        assert (before.value, after.value) == ({"a": 0}, {"a": 2})
        assert says in detail(bad)
        assert bad.line == 2

    def test_escaped_pairs_of_surrogates_are_characters(self, tmp_path: Path) -> None:
        assert values_of(written(tmp_path, "x.jsonl", b'{"a": "\\ud83d\\ude00"}')) == [{"a": "😀"}]

    def test_keys_missing_or_null_in_one_file_and_text_in_another_stay_as_they_are(self, tmp_path: Path) -> None:
        a = written(tmp_path, "a.jsonl", '{"t": "x", "m": null}\n')
        b = written(tmp_path, "b.jsonl", '{"t": "y", "m": "s"}\n')
        c = written(tmp_path, "c.jsonl", '{"t": "z"}\n')
        rows = {a: {"t": "x", "m": None}, b: {"t": "y", "m": "s"}, c: {"t": "z"}}
        for order in ([a, b, c], [b, c, a], [c, a, b]):
            assert values_of([str(path) for path in order]) == [rows[path] for path in order]

    def test_tool_arguments_of_differing_shape_do_not_mix(self, tmp_path: Path) -> None:
        lines = ['{"args": {"t": "x"}}', '{"args": {"t": 1, "default": null}}', '{"args": "{}"}']
        path = written(tmp_path, "x.jsonl", "\n".join(lines))
        assert values_of(path) == [json.loads(line) for line in lines]

    def test_utf16_is_named(self, tmp_path: Path) -> None:
        path = written(tmp_path, "x.jsonl", '{"a": 1}\n'.encode("utf-16"))
        with pytest.raises(DataError, match=r"x\.jsonl: the text is UTF-16; convert it to UTF-8"):
            rows_of(path)

    def test_rows_longer_than_a_chunk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(jsontext, "CHUNK_BYTES", 5)
        path = written(tmp_path, "x.jsonl", b"\xef\xbb\xbf" + LINES + b"\n\nnope")
        rows = rows_of(path)
        assert [row.value for row in rows[:-1]] == ROWS
        assert [row.line for row in rows] == [1, 2, 3, 4, 5, 6, 7, 10]


class TestJsonArray:
    def test_an_array_and_lines_are_told_apart_by_content(self, tmp_path: Path) -> None:
        array = written(tmp_path, "a.json", json.dumps(ROWS, indent=2))
        lines = written(tmp_path, "l.json", LINES)
        assert values_of(array) == values_of(lines) == ROWS

    def test_an_array_under_the_name_of_lines_is_read_as_one(self, tmp_path: Path) -> None:
        for name, indent in (("a.jsonl", 2), ("b.ndjson", None)):
            assert values_of(written(tmp_path, name, json.dumps(ROWS, indent=indent))) == ROWS
        assert values_of(written(tmp_path, "c.jsonl", "[]\n")) == []

    @pytest.mark.parametrize("first", ["[]", "[1, 2]", "[1, 2", '[{"a": 1}]', "[[1]]"])
    def test_a_first_line_that_is_an_array_costs_itself_alone(self, tmp_path: Path, first: str) -> None:
        bad, row = values_of(written(tmp_path, "x.jsonl", f'{first}\n{{"a": 2}}\n'))
        assert isinstance(bad, BadRow)
        assert row == {"a": 2}

    def test_lines_of_elements_are_known(self, tmp_path: Path) -> None:
        path = written(tmp_path, "a.json", b'\xef\xbb\xbf\r\n[\r\n{"a":\n1},\n\n{"a": NaN}, {"a": 3}\n]\n\n')
        first, bad, last = rows_of(path)
        assert first == Row({"a": 1}, 3)
        assert (detail(bad), bad.line) == ("malformed JSON: NaN is not JSON", 6)
        assert last == Row({"a": 3}, 6)

    @pytest.mark.parametrize("text", ["[]", " [ ] \n", "\ufeff[\n]"])
    def test_an_empty_array(self, tmp_path: Path, text: str) -> None:
        assert rows_of(written(tmp_path, "a.json", text)) == []

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ('[{"a": 1},\n{"a": 2}', r"a\.json:2: .*expected ',' or '\]'"),
            ('[{"a": 1},\n]', r"a\.json:2: .*Expecting value"),
            ('[{"a": 1}\n{"a": 2}]', r"a\.json:2: .*expected ',' or '\]'"),
            ('[\n\n{"a": 1]', r"a\.json:3: "),
            ('[{"a": "x', r"a\.json:1: .*Unterminated string"),
            ("[{}]\n[{}]", r"a\.json:2: .*text after the end"),
            ("[" * 100_000, r"a\.json:1: .*nested too deeply"),
        ],
    )
    def test_a_broken_array_is_an_error_with_its_line(self, tmp_path: Path, text: str, says: str) -> None:
        with pytest.raises(DataError, match=says):
            rows_of(written(tmp_path, "a.json", text))

    def test_a_row_in_another_encoding_costs_itself_alone(self, tmp_path: Path) -> None:
        path = written(tmp_path, "a.json", b'[{"a": "\xe9"}, {"a": "\xc3\xa9"}]')
        bad, good = rows_of(path)
        assert "not UTF-8" in detail(bad)
        assert good.value == {"a": "é"}

    @settings(max_examples=60, deadline=None)
    @given(
        rows=st.lists(
            st.dictionaries(
                st.text(max_size=3),
                st.recursive(
                    st.none()
                    | st.booleans()
                    | st.integers()
                    | st.floats(allow_nan=False, allow_infinity=False)
                    | st.text(max_size=8),
                    lambda inner: st.lists(inner, max_size=3),
                    max_leaves=5,
                ),
                max_size=4,
            ),
            max_size=6,
        ),
        indent=st.sampled_from([None, 0, 3]),
        ascii_only=st.booleans(),
        chunk=st.integers(1, 40),
    )
    def test_any_array_cut_anywhere_gives_its_rows(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        rows: list[Any],
        indent: int | None,
        ascii_only: bool,
        chunk: int,
    ) -> None:
        folder = tmp_path_factory.mktemp("array")
        path = written(folder, "a.json", json.dumps(rows, indent=indent, ensure_ascii=ascii_only))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jsontext, "CHUNK_BYTES", chunk)
            assert values_of(path) == rows

    @pytest.mark.parametrize("chunk", [1, 2, 3, 1000])
    def test_numbers_and_words_cut_by_the_window(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
    ) -> None:
        monkeypatch.setattr(jsontext, "CHUNK_BYTES", chunk)
        path = written(tmp_path, "a.json", '[12345, -1.5e3, true, {"a": 1}, "x\\u00e9"]')
        kinds = [detail(row) if isinstance(row.value, BadRow) else row.value for row in rows_of(path)]
        assert [str(kind).split(", ")[0] for kind in kinds] == [
            "the row is a JSON number",
            "the row is a JSON number",
            "the row is a JSON boolean",
            "{'a': 1}",
            "the row is a JSON string",
        ]


def test_chunks_travel_between_processes(tmp_path: Path) -> None:
    written(tmp_path, "a.jsonl", LINES)
    written(tmp_path, "b.json", json.dumps(ROWS))
    written(tmp_path, "c.csv", "a\n1\n")
    pq.write_table(pa.table({"n": [1]}), tmp_path / "d.parquet")
    reader = RawFiles(tmp_path)
    chunks = list(reader.chunks())
    assert [chunk.file for chunk in chunks] == [0, 1, 2, 3]
    assert [pickle.loads(pickle.dumps(chunk)).rows() for chunk in chunks] == [chunk.rows() for chunk in chunks]
    assert chunks[-1].read == reader.size


def test_a_file_that_changes_between_listing_and_reading_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl", LINES)
    reader = RawFiles(path)
    path.write_bytes(LINES + LINES)
    with pytest.raises(DataError, match=r"a\.jsonl: changed while it was in use"):
        list(reader.chunks())
    with pytest.raises(DataError, match=r"a\.jsonl: changed while it was in use"):
        reader.content_key()
