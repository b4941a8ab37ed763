"""Raw files as shards of a streaming source."""

from __future__ import annotations

import gzip
import json
import logging
import os
import pickle
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

from streamsft.errors import DataError, StateError
from streamsft.sources import rawrows
from streamsft.sources.rawrows import BadRow
from streamsft.sources.shardfiles import ShardFiles
from streamsft.sources.shardvalues import decode_values
from tests.sources.shards import FORMATS, arrow, check_reader, decoded, json_lines, parquet, rows_of, written


def read_all(reader: ShardFiles, lanes: int = 1) -> list[Any]:
    return [row for unit in range(reader.units(lanes)) for row in reader.read(unit, lanes, None)]


class TestUnitsAndPositions:
    @pytest.mark.parametrize("kind", FORMATS)
    @pytest.mark.parametrize("lanes", [1, 2, 8, 16])
    @pytest.mark.parametrize("sizes", [[3], [13, 0, 7]])
    def test_each_row_once_and_the_rest_from_every_position(
        self, tmp_path: Path, kind: str, lanes: int, sizes: list[int]
    ) -> None:
        folder = written(tmp_path / "data", kind, sizes)
        check_reader(lambda: ShardFiles(folder), lanes, rows_of(0, sum(sizes)))

    @given(
        kind=st.sampled_from(sorted(FORMATS)),
        sizes=st.lists(st.integers(0, 24), min_size=1, max_size=5).filter(any),
        lanes=st.integers(1, 20),
    )
    @settings(max_examples=30)
    def test_for_any_files_and_lanes(
        self, tmp_path_factory: pytest.TempPathFactory, kind: str, sizes: list[int], lanes: int
    ) -> None:
        folder = written(tmp_path_factory.mktemp("shards") / "data", kind, sizes)
        check_reader(lambda: ShardFiles(folder), lanes, rows_of(0, sum(sizes)))

    def test_rows_are_numbered_in_their_files(self, tmp_path: Path) -> None:
        folder = written(tmp_path / "data", "jsonl", [3, 2])
        (folder / "000.jsonl").write_bytes(b'{"n": 1}\n\n{bad\n  \n{"n": 2}\n')
        reader = ShardFiles(folder)
        rows = read_all(reader)
        assert [row.number for row in rows] == [0, 1, 2, 2**32, 2**32 + 1]
        assert isinstance(decoded(rows)[1], BadRow)
        assert rows[1].value.place == "000.jsonl:3"
        assert reader.where(2**32 + 1) == "001.jsonl:1"

    @pytest.mark.parametrize("lanes", [1, 8])
    def test_an_array_under_the_name_of_lines_is_read_as_one(self, tmp_path: Path, lanes: int) -> None:
        folder = written(tmp_path / "data", "jsonl", [13])
        (folder / "000.jsonl").write_bytes(FORMATS["json"](rows_of(0, 13)))
        check_reader(lambda: ShardFiles(folder), lanes, rows_of(0, 13))

    def test_files_of_several_formats(self, tmp_path: Path) -> None:
        paths = []
        for number, kind in enumerate(FORMATS):
            paths.append(str(written(tmp_path / str(number), kind, [4]) / f"000.{kind}"))
        for lanes in (1, 12, 64):
            reader = ShardFiles(paths)
            assert reader.units(lanes) == {1: 10, 12: 12, 64: 40}[lanes]
            assert len({row.number for row in read_all(reader, lanes)}) == 40

    def test_whole_files_where_there_are_enough(self, tmp_path: Path) -> None:
        assert ShardFiles(written(tmp_path / "data", "parquet", [20, 20, 0, 20])).units(3) == 3

    def test_row_groups_before_row_strides(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        reader = ShardFiles(written(tmp_path / "data", "parquet", [20, 20]), name="code")
        assert reader.units(8) == reader.units(8) == 8
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert record.getMessage().startswith("source code: 2 files for 8 lanes: read by row group, in 8 units. ")
        assert {row.number & (2**32 - 1) for row in reader.read(1, 8, None)} == {5, 6, 7, 8, 9}

    def test_the_split_is_said_once_with_the_fix(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        reader = ShardFiles(written(tmp_path / "data", "jsonl", [3]), name="tiny")
        assert reader.units(8) == 3
        pickle.loads(pickle.dumps(reader)).units(8)
        assert [record.getMessage() for record in caplog.records] == [
            "source tiny: 1 file for 8 lanes: read every n-th row of a file, so that a file is read up to 3 times a "
            "pass, in 3 units; it has no more rows, so in each pass some lanes get none. To read whole files, write "
            "it as 8 files or more, or lower lanes_per_step or lane_groups"
        ]

    def test_larger_files_are_cut_into_more_parts(self, tmp_path: Path) -> None:
        reader = ShardFiles(written(tmp_path / "data", "jsonl", [4, 100]))
        counts = [sum(1 for _ in reader.read(unit, 8, None)) for unit in range(reader.units(8))]
        assert len(counts) == 8
        assert max(counts) <= 20

    def test_no_rows_at_all(self, tmp_path: Path) -> None:
        assert ShardFiles(written(tmp_path / "data", "jsonl", [0, 0])).units(4) == 0

    @pytest.mark.parametrize("kind", FORMATS)
    def test_a_position_of_other_data_is_refused(self, tmp_path: Path, kind: str) -> None:
        reader = ShardFiles(written(tmp_path / "data", kind, [3]))
        for position in ([1, 2, 3, 4, 5], ["x"], [-1, 0, 0], {"a": 1}):
            with pytest.raises(StateError, match="is no position in a"):
                list(reader.read(0, 1, position))


class TestSeeking:
    """Resuming reads at most one block of rows again."""

    ROWS = 10_000

    def test_json_lines_are_read_from_the_byte(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        path.write_bytes(json_lines(rows_of(0, self.ROWS)))
        rows = read_all(ShardFiles(path))
        byte = rows[9000].after[0]
        data = path.read_bytes()
        path.write_bytes(b"\xff" * byte + data[byte:])  # whatever lies before the position is not looked at
        rest = list(ShardFiles(path).read(0, 1, rows[9000].after))
        assert decoded(rest) == rows_of(9001, self.ROWS - 9001)

    @pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "json", "parquet", "arrow", "csv"])
    def test_no_json_is_decoded_that_was_consumed(
        self, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / f"a.{kind}"
        path.write_bytes(FORMATS[kind](rows_of(0, self.ROWS)))
        position = read_all(ShardFiles(path))[8999].after
        decodes = []
        monkeypatch.setattr(rawrows, "parse_json_row", lambda text: decodes.append(text))
        monkeypatch.setattr("streamsft.sources.shardvalues.parse_json_row", lambda text: decodes.append(text))
        row = next(ShardFiles(path).read(0, 1, position))
        assert row.number == 9000
        assert decodes == []

    def test_parquet_opens_the_row_group_and_arrow_the_batch(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "a.parquet"
        path.write_bytes(parquet(rows_of(0, self.ROWS), group=500))
        position = read_all(ShardFiles(path))[8999].after
        groups: list[int] = []
        original = pq.ParquetFile.iter_batches

        def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
            groups.extend(kwargs["row_groups"])
            return original(self, *args, **kwargs)

        monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
        assert len(list(ShardFiles(path).read(0, 1, position))) == self.ROWS - 9000
        assert groups == [17, 18, 19]
        for file in (True, False):
            path = tmp_path / f"{file}.arrow"
            path.write_bytes(arrow(rows_of(0, self.ROWS), file=file, batch=500))
            position = read_all(ShardFiles(path))[9100].after
            assert position[:3] == (18, 101, 9000)
            assert next(ShardFiles(path).read(0, 1, position)).number == 9101

    def test_an_arrow_stream_with_dictionaries_between_its_batches(self, tmp_path: Path) -> None:
        path = tmp_path / "a.arrow"
        kind = pa.dictionary(pa.int32(), pa.string())
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, pa.schema({"n": kind})) as writer:
            for first in range(0, 40, 10):
                texts = [str(number) for number in range(first, first + 10)]
                writer.write_batch(pa.record_batch({"n": pa.array(texts).dictionary_encode()}))
        check_reader(lambda: ShardFiles(path), 2, [{"n": str(number)} for number in range(40)])


class TestBadInput:
    def test_a_file_that_vanished_or_changed(self, tmp_path: Path) -> None:
        folder = written(tmp_path / "data", "jsonl", [3, 3])
        reader = ShardFiles(folder)
        assert reader.units(2) == 2
        list(reader.read(1, 2, None))
        (folder / "001.jsonl").unlink()
        with pytest.raises(DataError, match=r"001\.jsonl: cannot be read: .*No such file"):
            list(reader.read(1, 2, None))
        (folder / "000.jsonl").write_text('{"n": 1}\n')
        with pytest.raises(DataError, match=r"000\.jsonl: changed while it was in use"):
            list(reader.read(0, 2, None))

    @pytest.mark.parametrize("kind", ["jsonl.gz", "jsonl.zst", "json.gz", "tsv.gz", "parquet", "arrow", "file.arrow"])
    def test_a_truncated_file_is_named(self, tmp_path: Path, kind: str) -> None:
        path = tmp_path / f"a.{kind}"
        path.write_bytes(FORMATS[kind](rows_of(0, 400))[:-20])
        with pytest.raises(DataError, match=r"a\.[a-z.]+: cannot be read"):
            read_all(ShardFiles(path))

    def test_a_file_that_is_shorter_than_its_position(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl.gz"
        path.write_bytes(gzip.compress(json_lines(rows_of(0, 3))))
        with pytest.raises(DataError, match="shorter than when the state was saved"):
            list(ShardFiles(path).read(0, 1, [10**6, 5, 5]))

    def test_invalid_utf8_costs_its_row_alone(self, tmp_path: Path) -> None:
        (tmp_path / "a.jsonl").write_bytes(b'{"t": "ok"}\n{"t": "\xff"}\n{"t": "ok"}\n')
        text = pa.array([b"ok", b"\xff", b"ok"], pa.binary()).view(pa.string())
        pq.write_table(pa.table({"t": text}), tmp_path / "b.parquet")
        values = decoded(read_all(ShardFiles(tmp_path)))
        assert [isinstance(value, BadRow) for value in values] == [False, True, False] * 2

    def test_schemas_that_drift_from_file_to_file(self, tmp_path: Path) -> None:
        schemas = [pa.null(), pa.string(), pa.null()]
        for number, (kind, integer) in enumerate(zip(schemas, (pa.int32(), pa.int64(), pa.int16()), strict=True)):
            value = "s" if kind == pa.string() else None
            data = pa.table({"m": pa.array([value], kind), "n": pa.array([number], integer)})
            pq.write_table(data, tmp_path / f"{number}.parquet")
        for lanes in (1, 8):
            values = decoded(read_all(ShardFiles(tmp_path), lanes))
            assert values == [{"m": None, "n": 0}, {"m": "s", "n": 1}, {"m": None, "n": 2}]

    def test_utf16_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "a.jsonl").write_bytes("\ufeff{}\n".encode("utf-16-le"))
        with pytest.raises(DataError, match="UTF-16"):
            read_all(ShardFiles(tmp_path))


class TestFingerprint:
    def test_the_same_data_elsewhere_and_other_data(self, tmp_path: Path) -> None:
        one = ShardFiles(written(tmp_path / "a", "jsonl", [5, 5])).fingerprint
        assert ShardFiles(written(tmp_path / "b", "jsonl", [5, 5])).fingerprint == one
        assert ShardFiles(written(tmp_path / "c", "jsonl", [5, 6])).fingerprint != one
        assert ShardFiles([tmp_path / "a" / "001.jsonl", tmp_path / "a" / "000.jsonl"]).fingerprint != one

    def test_the_ends_of_a_file_count(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        path.write_bytes(json.dumps({"t": "x" * 200_000}).encode())
        before = ShardFiles(path).fingerprint
        for at, changes in ((10, True), (100_000, False), (-10, True)):
            data = bytearray(path.read_bytes())
            data[at] = ord("y")
            other = tmp_path / f"{at}.jsonl"
            other.write_bytes(data)
            assert (ShardFiles(other).fingerprint != before) == changes


def test_readers_are_picklable_and_keep_few_files_open(tmp_path: Path) -> None:
    reader = ShardFiles(written(tmp_path / "data", "jsonl", [3] * 40))

    def open_files() -> list[str]:
        return [file.path for file in psutil.Process().open_files() if file.path.startswith(str(tmp_path))]

    rows = []
    for unit in range(reader.units(8)):
        reading = reader.read(unit, 8, None)
        rows.append(next(reading))
        assert len(open_files()) <= 1
        rows += reading
    assert not open_files()
    again = pickle.loads(pickle.dumps(reader))
    assert [row.number for row in read_all(again, 8)] == [row.number for row in rows]
    assert os.path.basename(again.files[0]) == "000.jsonl"


def test_values_of_other_kinds_are_bad_rows() -> None:
    assert decode_values([{"n": 1}, 3]) == [{"n": 1}, BadRow("the row is a int, not a mapping")]
