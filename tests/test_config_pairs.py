"""What a config may say where preference pairs are trained on."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from streamsft.build import build_mix
from streamsft.commands.init import init
from streamsft.commands.preview_row import preview_row
from streamsft.commands.train import train
from streamsft.config import load_config
from streamsft.errors import ConfigError
from streamsft.sources.pairs import SideBySide
from streamsft.training.settings import TrainResult
from tests.pairs import pair_store
from tests.pipelines import small_config
from tests.training.runs import ListSink

CONFIGS = Path(__file__).parents[1] / "configs"
DPO = {"loss": "dpo", "steps": 4, "run_dir": "run"}


def config(tmp_path: Path, source: dict[str, Any], **sections: Any) -> dict[str, Any]:
    given = {"path": "pairs.jsonl", "format": "preference", **source}
    return small_config(tmp_path, mix={"sources": {"p": given}}, **{"train": DPO, **sections})


@pytest.mark.parametrize(
    ("source", "sections", "place", "message"),
    [
        ({"streaming": True, "weight": 1}, {}, "mix.sources.p.streaming", "not streamed"),
        ({"overflow": "split"}, {}, "mix.sources.p.overflow", "not cut"),
        ({"overflow": "truncate"}, {}, "mix.sources.p.overflow", "not cut"),
        ({"train_on": "everything"}, {}, "mix.sources.p.train_on", "not the prompt"),
        ({"format": "messages"}, {}, "mix.sources.p.format", "messages has none"),
        ({}, {"train": {**DPO, "loss": "cross_entropy"}}, "mix.sources.p.format", "set train.loss: dpo"),
        ({}, {"train": {"steps": 4, "beta": 0.2, "model": "none"}}, "train.beta", "it goes with train.loss: dpo"),
        ({}, {"train": {**DPO, "beta": 0.0}}, "train.beta", "greater than 0"),
        ({}, {"packing": {"pairs": "side_by_side", "align": 8}}, "packing.align", "not aligned"),
        ({}, {"eval": {"sets": {"e": {"path": "x.jsonl", "format": "preference"}}}}, "eval.sets.e.format", "evaluated"),
    ],
)
def test_what_does_not_go_together_is_told_with_its_place(
    source: dict[str, Any], sections: dict[str, Any], place: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(config(tmp_path, source, **sections))
    assert place in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize("sections", [{}, {"train": {"steps": 4, "model": "none"}}, {"packing": {"align": 8}}])
def test_what_goes_together_is_taken(sections: dict[str, Any], tmp_path: Path) -> None:
    load_config(config(tmp_path, {"overflow": "drop"}, **sections))


def test_a_new_config_for_pairs_trains_on_them(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    shutil.copy(CONFIGS / "data" / "sums.jsonl", tmp_path / "data")
    console = Console(file=io.StringIO())
    tokenizer = small_config(tmp_path)["tokenizer"]
    init(tmp_path / "data", tokenizer=tokenizer, output=tmp_path / "c.yaml", check=False, console=console)
    made = load_config(tmp_path / "c.yaml")
    assert made.train.loss == "dpo"


def test_one_row_is_shown_with_both_its_sides(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=200)
    tokenizer = small_config(tmp_path)["tokenizer"]
    assert (
        preview_row(CONFIGS / "preference.yaml", "sums:0", overrides=[f"tokenizer={tokenizer}"], console=console)
        is None
    )
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "rendered as preference chosen" in shown
    assert "rendered as preference rejected" in shown


def test_packing_says_whether_a_prompt_is_shared(tmp_path: Path) -> None:
    store = pair_store(5, name="p")
    shared = build_mix(load_config(config(tmp_path, {})), {"p": store})
    apart = build_mix(load_config(config(tmp_path, {}, packing={"pairs": "side_by_side"})), {"p": store})
    (leaf,), (other,) = (mix.mixture(None).leaves for mix in (shared, apart))
    assert leaf.source is store
    assert isinstance(other.source, SideBySide)


@pytest.mark.parametrize("layout", ["shared", "side_by_side"])
def test_the_margin_of_the_shipped_config_rises(layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMSFT_CACHE", str(tmp_path / "cache"))
    sink = ListSink()
    monkeypatch.setattr("streamsft.commands.train.build_sinks", lambda *_, **__: [sink])
    overrides = [f"train.run_dir={tmp_path / 'run'}", "train.steps=6", f"packing.pairs={layout}", "metrics.log_every=3"]
    overrides += [f"tokenizer={small_config(tmp_path)['tokenizer']}"]
    result: TrainResult = train(CONFIGS / "preference.yaml", overrides=overrides, quiet=True)
    assert result.steps == 6
    margins = [record["train/margin"] for _, record in sink.records]
    assert margins[-1] > margins[0] > 0
    assert sink.records[-1][1]["train/accuracy"] > 0.9
