"""Training from a config: resumed by default, refused where the stream differs, with one's own functions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from streamsft.commands.train import train
from streamsft.errors import ConfigError, RunError
from streamsft.metrics.metric import Metric
from streamsft.metrics.reducers import Max
from streamsft.types import Sample
from tests.pipelines import small_config


def length(sample: Sample) -> float:
    return float(len(sample))


def two_tokens(row: dict[str, Any]) -> dict[str, Any]:
    return {"input_ids": [len(row["instruction"]), 5], "loss_mask": [False, True]}


def audit(run: Path) -> list[str]:
    return (run / "audit" / "rank-0.jsonl").read_text().splitlines()


def test_a_run_in_legs_consumes_what_one_run_consumes(tmp_path: Path) -> None:
    whole = train(small_config(tmp_path / "a"), quiet=True)
    assert (whole.steps, whole.stopped_by) == (4, "steps")
    config = small_config(tmp_path / "b")
    train(config, overrides=["train.steps=2", "loader.background=false"], quiet=True)
    changed = [
        "train.steps=4",
        "cache=false",
        "train.save_every=3",
        "train.keep=1",
        "loader.workers=1",
        "metrics.log_every=1",
    ]
    second = train(config, overrides=changed, quiet=True)
    assert second.resumed_from == 2
    assert audit(tmp_path / "a" / "run") == audit(tmp_path / "b" / "run")


@pytest.mark.parametrize(
    ("override", "key", "values"),
    [
        ("seed=8", "seed", ("7", "8")),
        ("sequence_length=128", "sequence_length", ("256", "128")),
        ("packing.overflow=drop", "packing.overflow", ("truncate", "drop")),
        ("packing.lookahead=128", "packing.lookahead", ("256", "128")),
        ("mix.sources.units.weight=2", "mix.sources.units.weight", ("1 in the run", "2 here")),
        ("mix.sources.units.train_on=everything", "mix.sources.units, by a digest of its contents", ()),
        ("mix.sources.units.shuffle=none", "mix.sources.units.shuffle", ("none",)),
    ],
)
def test_a_config_of_another_stream_is_refused_with_the_key_and_both_values(
    tmp_path: Path, override: str, key: str, values: tuple[str, ...]
) -> None:
    config = small_config(tmp_path)
    train(config, overrides=["train.steps=1"], quiet=True)
    with pytest.raises(RunError, match="another stream") as error:
        train(config, overrides=[override], quiet=True)
    line = next(line for line in str(error.value).splitlines() if key in line)
    assert all(value in line for value in values), line
    assert train(config, overrides=[override], fresh=True, quiet=True).moved_to == tmp_path / "run.1"


def test_what_the_caller_gives_is_used(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    del config["mix"]["sources"]["units"]["format"]
    train(config, transforms={"units": two_tokens}, metrics=[Metric("size", length, [Max()])], quiet=True)
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [2, 4]
    assert records[-1]["metrics"]["data_units/size"] == 2


def test_a_model_learns_and_the_record_has_its_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = small_config(tmp_path, sequence_length=192)
    result = train(config, overrides=["train.model=tiny", "train.steps=6", "train.lr=3e-3", "train.warmup=1"])
    assert result.first_loss is not None
    assert result.last_loss is not None
    assert result.last_loss < result.first_loss
    printed = capsys.readouterr().out
    for expected in ("arithmetic", "1 no_assistant_turn", "└── packer", "train/loss", "done: 6 steps"):
        assert expected in printed


def test_a_run_needs_steps(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.steps: missing"):
        train(small_config(tmp_path), overrides=["train.steps=null"], quiet=True)
