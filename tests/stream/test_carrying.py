"""Images and named columns travel with their rows, untouched, and rows with images are never cut."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from streamsft.sources.store import TokenStore
from streamsft.stream.interleave import Interleave
from streamsft.stream.loader import Loader
from streamsft.stream.packer import Packer
from streamsft.types import Sample
from tests.sources.stores import WRITERS

KINDS = ["stream.arrow", "zstd.arrow", "rows.parquet", "rows.jsonl", "saved"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMSFT_CACHE", str(tmp_path / "cache"))


def vision_rows(count: int = 24) -> list[dict[str, Any]]:
    """Every third row is text alone; row n has n % 3 images, of 2 and 3 patches, and n + 4 tokens."""
    rows = []
    for n in range(count):
        grids = [[1, 1, 2], [1, 1, 3]][: n % 3]
        patches = [[float(n), 0.25 * at] for at in range(sum(t * h * w for t, h, w in grids))]
        row = {"input_ids": [n] * (n + 4), "loss_mask": [0, 1] * (n // 2 + 2) + [1] * (n % 2)}
        rows.append({**row, "pixel_values": patches or None, "image_grid_thw": grids or None, "tag": f"t{n}"})
    return rows


ROWS = vision_rows()


def check(row: int, extras: Any) -> None:
    expected = ROWS[row]
    for name in ("pixel_values", "image_grid_thw"):
        if expected[name] is None:
            assert extras.get(name) is None
        else:
            assert extras[name].tolist() == expected[name]
    assert extras["tag"] == expected["tag"]


@pytest.mark.parametrize("kind", KINDS)
def test_samples_carry_what_their_row_has(kind: str, tmp_path: Path) -> None:
    store = TokenStore.open(WRITERS[kind](ROWS, tmp_path / kind), name="s", extras=["tag"])
    assert store.carried == ("pixel_values", "image_grid_thw", "tag")
    assert store.whole is not None
    assert store.whole.tolist() == [n % 3 > 0 for n in range(24)]
    for sample in store.__getitems__([7, 3, 7, 0, 23]):
        check(sample.row, sample.extras)
    mix = Interleave([store], seed=1)
    for stage in (mix, store.stream(seed=1)):
        for sample, _ in zip(stage, range(30), strict=False):
            check(sample.row, sample.extras)
    for pack, _ in zip(Packer(mix, 64, lookahead=8), range(5), strict=False):
        for sample in pack.samples:
            check(sample.row, sample.extras)


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_carry_them_in_the_order_of_documents(workers: int, tmp_path: Path) -> None:
    path = WRITERS["rows.parquet"](ROWS, tmp_path / "rows.parquet")
    plain = TokenStore.from_rows([{"input_ids": [1, 2], "loss_mask": [1, 1]}] * 4, name="plain")
    store = TokenStore.open(path, name="s", extras=["tag"])
    packer = Packer(Interleave([store, plain], seed=1, weights=[3, 1]), 64, lookahead=8)
    for batch in Loader(packer, global_batch_size=4, workers=workers, background=False):
        rows = [row for pack in batch.rows for row in pack]
        for place, (source, row, _) in enumerate(rows):
            extras = {name: values[place] for name, values in batch.carried.items()}
            if source == "s":
                check(row, extras)
            else:
                assert set(extras.values()) == {None}
        with_images = [row for source, row, _ in rows if source == "s" and row % 3]
        inputs = batch.model_inputs()
        assert inputs["pixel_values"].tolist() == [patch for row in with_images for patch in ROWS[row]["pixel_values"]]
        assert inputs["image_grid_thw"].tolist() == [
            grid for row in with_images for grid in ROWS[row]["image_grid_thw"]
        ]
        assert inputs["image_grid_thw"].dtype == torch.int64
        halves = [half.images for half in batch.split(2)]
        for name in ("pixel_values", "image_grid_thw"):
            assert torch.equal(torch.cat([half[name] for half in halves if name in half]), inputs[name])
        if batch.step == 3:
            break


def test_batches_without_images_have_none() -> None:
    store = TokenStore.from_rows([{"input_ids": [1, 2], "loss_mask": [1, 1]}] * 4)
    batch = next(iter(Loader(Packer(Interleave([store]), 64), global_batch_size=2, background=False)))
    assert batch.carried == batch.images == {}
    assert set(batch.model_inputs()) == {"input_ids", "attention_mask", "position_ids", "labels"}


@pytest.mark.parametrize("overflow", ["truncate", "split", "drop"])
def test_rows_with_images_are_dropped_rather_than_cut(overflow: Any, tmp_path: Path) -> None:
    store = TokenStore.open(WRITERS["rows.parquet"](ROWS, tmp_path / "rows.parquet"), name="s")
    packer = Packer(Interleave([store], seed=1), 12, lookahead=8, overflow=overflow)
    long_ones = [n for n in range(24) if n + 4 > 12]
    dropped = long_ones if overflow == "drop" else [n for n in long_ones if n % 3]
    assert packer.mixture.leaves[0].dropped == {"too_long": len(dropped)}
    seen: set[int] = set()
    for pack, _ in zip(packer, range(200), strict=False):
        for sample in pack.samples:
            seen.add(sample.row)
            assert sample.row % 3 == 0 or len(sample) == sample.row + 4
    assert seen == set(range(24)) - set(dropped)


def test_metrics_see_them(tmp_path: Path) -> None:
    from streamsft.metrics.metric import Metric
    from streamsft.metrics.reducers import Mean

    def patches(sample: Sample) -> float:
        return float(len(sample.extras.get("pixel_values", ())))

    store = TokenStore.open(WRITERS["rows.parquet"](ROWS, tmp_path / "rows.parquet"), name="s")
    packer = Packer(Interleave([store], seed=1), 64, lookahead=8)
    loader = Loader(packer, global_batch_size=2, metrics=[Metric("patches", patches, [Mean()])], background=False)
    batch = next(iter(loader))
    expected = [len(ROWS[row]["pixel_values"] or ()) for pack in batch.rows for _, row, _ in pack]
    assert batch.stats.values["patches"].tolist() == expected


COLUMNS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.string(), ["a", "bc", None]),
    (pa.large_string(), ["a", "bc", None]),
    (pa.binary(), [b"a", b"", None]),
    (pa.bool_(), [True, False, None]),
    (pa.float16(), [np.float16(1.5), np.float16(2), None]),
    (pa.date32(), [date(2024, 1, 2), date(1960, 1, 1), None]),
    (pa.timestamp("us"), [datetime(2024, 1, 2), datetime(2023, 1, 2), None]),
    (pa.decimal128(5, 2), [Decimal("1.25"), Decimal(2), None]),
    (pa.dictionary(pa.int8(), pa.string()), ["a", "bc", None]),
    (pa.list_(pa.int64()), [[1, 2], [], None]),
    (pa.list_(pa.string()), [["a", None], [], None]),
    (pa.list_(pa.list_(pa.float32(), 2)), [[[1.0, 2.0]], [], None]),
    (pa.struct([("a", pa.int8()), ("b", pa.list_(pa.bool_()))]), [{"a": 1, "b": [True]}, {"a": None, "b": None}, None]),
]


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize(("kind", "values"), COLUMNS, ids=[str(kind) for kind, _ in COLUMNS])
def test_columns_of_any_kind_travel_and_count_for_the_fingerprint(
    kind: pa.DataType, values: list[Any], tmp_path: Path
) -> None:
    tokens = {"input_ids": [[1, 2]] * 3, "loss_mask": [[1, 1]] * 3}

    def stored(order: list[int], rows: int = 3) -> TokenStore:
        table = pa.table({**tokens, "more": pa.array([values[i] for i in order], kind)})
        return TokenStore.from_arrow(
            pa.concat_tables(table.slice(at, rows) for at in range(0, 3, rows)), extras=["more"]
        )

    store = stored([0, 1, 2])
    expected = [values[2], values[0], values[1]]
    assert [plain(value) for value in store.read_carried(np.array([2, 0, 1]))["more"]] == expected
    assert stored([0, 1, 2], rows=1).fingerprint == store.fingerprint
    assert len({stored(order).fingerprint for order in ([0, 1, 2], [1, 0, 2], [0, 2, 1])}) == 3
    pq.write_table(pa.table({**tokens, "more": pa.array(values, kind)}), tmp_path / "s.parquet")
    again = TokenStore.open(tmp_path / "s.parquet", extras=["more"])
    assert [plain(value) for value in again.read_carried(np.array([2, 0, 1]))["more"]] == expected
