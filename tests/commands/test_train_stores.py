"""Training from stores of tokens alone: the same losses whatever they are stored as, and no tokenizer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamsft.build import build, build_aggregator, build_settings, build_sinks
from streamsft.comm import current
from streamsft.commands.train import train
from streamsft.config import load_config
from streamsft.encoders import Encoders
from streamsft.errors import RunError
from streamsft.sources.store import TokenStore
from streamsft.training.loop import train as train_loop
from streamsft.training.model import prepare_model
from streamsft.types import Shard
from tests.sources.stores import Rows, write_lines, write_parquet, write_saved, write_stream

STEPS = 3


def rows() -> Rows:
    """Rows of 4 to 24 tokens, all of which but the first are trained on."""
    random = np.random.default_rng(3)
    lengths = random.integers(4, 25, 48).tolist()
    return [
        {"input_ids": random.integers(0, 200, length).tolist(), "loss_mask": [0] + [1] * (length - 1)}
        for length in lengths
    ]


def config_of(store: Path, run: Path) -> dict[str, Any]:
    return {
        "seed": 5,
        "sequence_length": 64,
        "mix": {"sources": {"rows": {"store": str(store)}}},
        "packing": {"lookahead": 16},
        "loader": {"global_batch_size": 2, "lanes_per_step": 2},
        "train": {"steps": STEPS, "save_every": 2, "run_dir": str(run), "model": "tiny", "lr": 1e-3},
        "metrics": {"log_every": 1},
    }


def losses(run: Path) -> list[float]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == list(range(1, STEPS + 1))
    return [record["metrics"]["train/loss"] for record in records]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of a run on the rows held as Python lists."""
    place = tmp_path_factory.mktemp("lists")
    config = load_config(config_of(write_lines(rows(), place / "rows.jsonl"), place / "run"))
    built = build(config, {"rows": TokenStore.from_rows(rows(), name="rows")}, Encoders(config), dp=Shard())
    train_loop(
        built.loader,
        "tiny",
        settings=build_settings(config),
        aggregator=lambda: build_aggregator(config, built.loader, (), current()),
        sinks=lambda: build_sinks(config, quiet=True),
        vocabulary=max(max(row["input_ids"]) for row in rows()) + 1,
    )
    return losses(place / "run")


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (write_saved, "rows"),
        (write_stream, "rows.arrow"),
        (write_parquet, "rows.parquet"),
        (write_lines, "rows.jsonl"),
    ],
)
def test_losses_are_those_of_the_rows_as_lists_at_every_step(
    tmp_path: Path,
    expected: list[float],
    write: Callable[[Rows, Path], Path],
    name: str,
) -> None:
    config = config_of(write(rows(), tmp_path / name), tmp_path / "run")
    train(config, quiet=True)
    assert len(expected) == STEPS
    assert all(map(math.isfinite, expected))
    assert losses(tmp_path / "run") == expected


def test_a_run_goes_on_with_as_many_token_ids_as_it_began_with(tmp_path: Path) -> None:
    write_lines([{"input_ids": [1, 250, 3, 4], "loss_mask": [0, 1, 1, 1]}] * 8, tmp_path / "large.jsonl")
    config = config_of(write_lines(rows(), tmp_path / "rows.jsonl"), tmp_path / "run")
    config["mix"]["sources"]["large"] = {"store": str(tmp_path / "large.jsonl")}
    train(config, overrides=["train.steps=2"], quiet=True)
    del config["mix"]["sources"]["large"]
    result = train(config, overrides=["train.steps=4"], accept_changes=True, quiet=True)
    assert (result.resumed_from, result.steps) == (2, 4)
    write_lines([{"input_ids": [1, 300], "loss_mask": [0, 1]}] * 8, tmp_path / "larger.jsonl")
    config["mix"]["sources"]["larger"] = {"store": str(tmp_path / "larger.jsonl")}
    with pytest.raises(RunError, match="knows 251 token ids, the data has 301"):
        train(config, accept_changes=True, quiet=True)


def test_where_the_number_of_token_ids_cannot_be_known_a_tokenizer_is_asked_for() -> None:
    with pytest.raises(RunError, match=r"tiny needs the number of token ids.*set `tokenizer`"):
        prepare_model("tiny", vocabulary=None, sequence_length=8, seed=0)
