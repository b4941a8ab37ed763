"""A forecast says what the audit of the run will say."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from streamsft.commands.forecast import forecast
from streamsft.commands.tokenize import tokenize
from streamsft.commands.train import train
from streamsft.errors import ConfigError
from tests.commands.audits import recount
from tests.pipelines import small_config


def plain() -> Console:
    return Console(file=io.StringIO(), width=120, no_color=True, highlight=False)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def config(folder: Path, steps: int = 60, **sections: Any) -> dict[str, Any]:
    made = small_config(folder, **sections)
    made["train"] |= {"steps": steps, "save_every": steps, **sections.get("train", {})}
    return made


SCHEDULED = {"arithmetic": {0: 1.0, 30: 0.0}, "units": 1.0, "strings": {0: 0.0, 20: 2.0, "hold": True}}


@pytest.mark.parametrize("case", ["plain", "scheduled", "tokens", "lanes", "skipped"])
def test_a_forecast_equals_the_audit_source_by_source(case: str, tmp_path: Path) -> None:
    made = config(tmp_path, sequence_length=120, packing={"lookahead": 50})
    sources = made["mix"]["sources"]
    if case == "scheduled":
        for name, weight in SCHEDULED.items():
            sources[name]["weight"] = weight if isinstance(weight, float) else {str(k): v for k, v in weight.items()}
    elif case == "tokens":
        made["mix"]["unit"] = "tokens"
    elif case == "lanes":
        made["loader"] |= {"lanes_per_step": 2, "lane_groups": 3}
    elif case == "skipped":
        made["train"]["skip_steps"] = [[3, 5], [5, 7], [20, 20]]
    said = forecast(made, console=plain()).stream
    train(made, quiet=True)
    stores = tokenize(made, console=plain())
    seen = recount(tmp_path / "run", stores, 120)
    assert said.exact
    assert {name: one.samples for name, one in said.sources.items()} == dict(seen.samples)
    assert {name: one.tokens for name, one in said.sources.items()} == dict(seen.tokens)
    assert {name: one.supervised for name, one in said.sources.items()} == dict(seen.supervised)
    assert {name: one.cut for name, one in said.sources.items()} == dict(seen.cut)
    assert said.documents == seen.documents
    assert said.packs == 240
    if case != "skipped":  # a row that only skipped steps were given counts as seen in none, but was passed
        assert {name: one.coverage for name, one in said.sources.items()} == {
            name: len(rows) / said.sources[name].rows for name, rows in seen.rows.items()
        }
    last = {name: column[-1] for name, column in said.course.samples.items()}
    assert sum(last.values()) == pytest.approx(sum(seen.samples.values()) + (case == "skipped") * 130, rel=0.2)


def test_a_forecast_tells_and_warns(tmp_path: Path) -> None:
    console = plain()
    made = config(tmp_path, steps=400, sequence_length=110)
    said = forecast(made, tokens_per_second=10.0, max_passes=2, max_cut=1, console=console)
    shown = " ".join(text_of(console).split())
    assert said.seconds == 400 * 4 * 110 / 10
    assert "time to read: 4 h 53 min" in shown
    assert any(warning.startswith("strings is gone through ") for warning in said.warnings)
    assert any("of its tokens to truncation at 110 slots, more than 1 %" in warning for warning in said.warnings)
    for warning in said.warnings:
        assert f"warning: {warning}" in shown
    json = said.to_json()
    assert json["samples"] == sum(one["samples"] for one in json["sources"].values())
    assert json["sources"]["units"]["steps_per_pass"] == pytest.approx(400 / json["sources"]["units"]["passes"])


def test_an_estimate_is_near_the_count(tmp_path: Path) -> None:
    made = config(tmp_path, steps=300)
    counted = forecast(made, console=plain()).stream
    guessed = forecast(made, estimate=True, console=plain()).stream
    assert not guessed.exact
    for name, one in counted.sources.items():
        assert guessed.sources[name].samples == pytest.approx(one.samples, rel=0.05)
        assert guessed.sources[name].tokens == pytest.approx(one.tokens, rel=0.05)
    assert guessed.efficiency == pytest.approx(counted.efficiency, rel=0.05)


def test_a_streamed_mix_is_estimated(tmp_path: Path) -> None:
    made = config(tmp_path, steps=100)
    counted = forecast(made, console=plain()).stream
    made["mix"]["sources"]["units"]["streaming"] = True
    said = forecast(made, console=plain()).stream
    assert not said.exact
    assert said.sources["units"].passes is None
    assert said.sources["units"].samples == pytest.approx(counted.sources["units"].samples, rel=0.1)


@pytest.mark.parametrize("unit", ["samples", "tokens"])
def test_weights_are_found_for_passes(unit: str, tmp_path: Path) -> None:
    made = config(tmp_path, mix={"unit": unit, "sources": _grouped(tmp_path)})
    console = plain()
    said = forecast(made, weights_for="passes=3,units=6", console=console)
    passes = {name: one.passes for name, one in said.stream.sources.items()}
    assert passes == pytest.approx({"arithmetic": 3, "strings": 3, "units": 6}, rel=0.05)
    assert "      others:" in said.weights or any("strings: {weight:" in line for line in said.weights)
    assert text_of(console).splitlines()[: len(said.weights)] == list(said.weights)


def _grouped(folder: Path) -> dict[str, Any]:
    sources = small_config(folder)["mix"]["sources"]
    inner = {name: sources[name] for name in ("units", "strings")}
    return {"arithmetic": sources["arithmetic"], "others": {"weight": 1, "sources": inner}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pases=3", "did you mean 'passes'"),
        ("units=3", "arithmetic, strings without a number"),
        ("passes=0", "is not a name and a number above 0"),
        ("passes", "is not a name and a number above 0"),
    ],
)
def test_passes_that_cannot_be_are_refused(text: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=expected):
        forecast(config(tmp_path), weights_for=text, console=plain())


def test_a_forecast_needs_a_number_of_steps(tmp_path: Path) -> None:
    made = small_config(tmp_path, train={"model": "none"})
    with pytest.raises(ConfigError, match=r"give --steps, or train\.steps"):
        forecast(made, console=plain())
    assert forecast(made, steps=3, console=plain()).stream.packs == 12


def test_a_page_shows_the_numbers_and_the_schedule(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    made = config(tmp_path, sequence_length=120)
    made["mix"]["sources"]["arithmetic"]["weight"] = {"0": 2, "30": 0}
    made["mix"]["sources"]["strings"]["weight"] = 0.01
    said = forecast(made, html=tmp_path / "page.html", console=plain())
    text = (tmp_path / "page.html").read_text()
    assert f"<td>{said.stream.sources['units'].tokens:,}</td>" in text
    for warning in said.warnings:
        assert f"<li>{warning}</li>" in text
    data = json.loads(text.partition('<script type="application/json" id="data">')[2].partition("</script>")[0])
    charts = {chart["id"]: {trace["name"]: trace for trace in chart["traces"]} for chart in data["charts"]}
    assert set(charts) == {"mix", "asked", "passes", "tokens"}
    asked = charts["asked"]["arithmetic"]
    assert asked["y"][asked["x"].index(15)] == pytest.approx(100 / 2.01, rel=1e-4)
    assert asked["y"][-1] == 0
    assert charts["tokens"]["units"]["y"][-1] == pytest.approx(said.stream.sources["units"].tokens, rel=0.1)


def test_steps_and_passes_are_not_asked_for_together(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"--weights-for passes=3 finds the number of steps .* --steps 100 sets another"
    ):
        forecast(config(tmp_path), steps=100, weights_for="passes=3", console=plain())


def test_what_is_logged_of_the_mix_is_logged_once_though_several_are_tried(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = config(tmp_path, packing={"lookahead": 8})
    made["mix"]["sources"]["strings"]["weight"] = 0
    with caplog.at_level(logging.INFO, "streamsft"):
        forecast(made, weights_for="passes=2", console=plain())
    told = [record.getMessage() for record in caplog.records]
    assert sum("strings: weight 0" in message for message in told) == 1
    assert sum("raise packing.lookahead" in message for message in told) == 1
