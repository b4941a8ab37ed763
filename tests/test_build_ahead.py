"""What can be refused before a row is tokenized is: nothing has been read into the cache by then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamsft.build_ahead import check_ahead, check_sizes
from streamsft.comm import LocalComm
from streamsft.commands.train import train
from streamsft.config import load_config
from streamsft.encoders import Encoders
from streamsft.errors import ConfigError, MetricError, RunError, StreamsftError
from streamsft.metrics.metric import Metric
from streamsft.metrics.reducers import Mean
from streamsft.text.tokenizing import tokenize
from streamsft.training.rundir import RunDirectory
from streamsft.types import Sample, Shard
from tests.pipelines import demo_files, small_config
from tests.training.runs import resealed


def length(sample: Sample) -> float:
    return float(len(sample))


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test when anything is tokenized."""

    def refuse(*_: Any, **__: Any) -> Any:
        pytest.fail("a source was tokenized before the run was refused")

    monkeypatch.setattr("streamsft.build_sources.tokenize", refuse)


def begun(folder: Path, **sections: Any) -> dict[str, Any]:
    config = small_config(folder, **sections)
    train(config, overrides=["train.steps=1"], quiet=True)
    return config


@pytest.mark.parametrize(
    ("overrides", "kind", "message"),
    [
        (
            ["loader.lanes_per_step=3"],
            ConfigError,
            "loader.lanes_per_step 3 does not divide loader.global_batch_size 4",
        ),
        (["train.model=./no/model"], RunError, r"train\.model: \./no/model: no such folder"),
        (["tokenizer=./no/tokenizer"], StreamsftError, r"tokenizer: \./no/tokenizer: no such folder"),
        (["mix.sources.units.streaming=true", "loader.workers=3"], ConfigError, "loader.workers 3 does not divide"),
    ],
)
@pytest.mark.usefixtures("untouched")
def test_a_config_that_cannot_be_run_is_refused_first(
    tmp_path: Path, overrides: list[str], kind: type[StreamsftError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        train(small_config(tmp_path), overrides=overrides, quiet=True)
    assert not (tmp_path / "run").exists(), "a refusal leaves nothing behind"


@pytest.mark.usefixtures("untouched")
def test_a_format_that_cannot_be_told_is_refused_before_the_other_sources_are_tokenized(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    for name in ("x", "y"):
        (tmp_path / f"{name}.jsonl").write_text('{"a": 1}\n')
        config["mix"]["sources"][name] = {"path": str(tmp_path / f"{name}.jsonl"), "weight": 1}
    with pytest.raises(StreamsftError, match=r"(?s)2 sources cannot be read:.*source x: .*source y: "):
        train(config, quiet=True)


@pytest.mark.usefixtures("untouched")
def test_metrics_of_one_name_are_refused_first(tmp_path: Path) -> None:
    metric = Metric("length", length, [Mean()])
    with pytest.raises(MetricError, match="twice"):
        train(small_config(tmp_path), metrics=[metric, metric], quiet=True)
    with pytest.raises(MetricError, match="give a list of metrics"):
        train(small_config(tmp_path), metrics=metric, quiet=True)  # type: ignore[arg-type]


def test_a_run_directory_in_use_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, untouched: None
) -> None:
    monkeypatch.setattr("streamsft.training.rundir.fcntl.lockf", _held)
    monkeypatch.setattr("streamsft.training.rundir._LOCK_WAIT_S", 0.0)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").touch()
    with pytest.raises(RunError, match="is in use by another process"):
        train(small_config(tmp_path), quiet=True)
    with pytest.raises(RunError, match="is in use"):
        RunDirectory(tmp_path / "run")


def _held(*_: Any) -> None:
    raise BlockingIOError(11, "Resource temporarily unavailable")


@pytest.mark.usefixtures("untouched")
def test_a_file_in_the_place_of_the_run_directory_is_refused_first(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(RunError, match=f"{tmp_path}/run is a file"):
        train(small_config(tmp_path), quiet=True)


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("seed=8", "seed: 7 in the state, 8 here"),
        ("sequence_length=128", "sequence_length: 256 in the state, 128 here"),
        ("packing.lookahead=64", "packing.lookahead: 256 in the state, 64 here"),
        ("packing.overflow=drop", "packing.overflow: 'truncate' in the state, 'drop' here"),
        ("mix.unit=tokens", "mix.unit: 'samples' in the state, 'tokens' here"),
        (
            "loader.lane_groups=2",
            "loader.lanes_per_step and lane_groups: [1, 1] in the state, [1, 2] here; give those of the state",
        ),
        ("mix.sources.units.weight=3", "mix.sources.units.weight: 1 in the run, 3 here"),
        ("mix.sources.units.weight={0: 1, 9: 2}", 'mix.sources.units.weight: 1 in the run, {"0": 1.0, "9": 2.0} here'),
        ("mix.sources.units.shuffle=none", "mix.sources.units.shuffle: 'rows' in the state, 'none' here"),
        ("train.model=tiny", "the run trains a model of kind 'none', now it is 'tiny'"),
    ],
)
def test_a_run_of_another_stream_is_refused_first_by_the_keys_of_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, override: str, line: str
) -> None:
    config = begun(tmp_path)
    monkeypatch.setattr("streamsft.build_sources.tokenize", lambda *_, **__: pytest.fail("tokenized"))
    with pytest.raises(RunError) as error:
        train(config, overrides=[override], quiet=True)
    shown = [text.strip() for text in str(error.value).splitlines()]
    assert any(text == line or line in text for text in shown), shown
    if "holds a run of another stream" in shown[0]:
        assert [text for text in shown[1:-1] if "weight" in text] in ([], [line]), "the others follow from it"


def test_groups_of_the_mix_are_named_by_their_path(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    sources = config["mix"]["sources"]
    inner = {name: sources.pop(name) for name in ("units", "strings")}
    sources["talk"] = {"weight": 1, "sources": inner}
    train(config, overrides=["train.steps=1"], quiet=True)
    inner["units"]["weight"] = 3
    with pytest.raises(RunError, match=r"  mix\.sources\.talk\.sources\.units\.weight: 1 in the run, 3 here\n"):
        train(config, quiet=True)
    inner["units"]["weight"] = 1
    sources["talk"]["weight"] = 2
    with pytest.raises(RunError, match=r"differ:\n  mix\.sources\.talk\.weight: 1 in the run, 2 here\nchange"):
        train(config, quiet=True)
    sources["talk"]["weight"] = 1
    inner["more"] = {"path": str(demo_files().corpora["arithmetic"]), "weight": 1}
    with pytest.raises(RunError, match=r"mix\.sources\.talk\.sources\.more: here, not in the state\nchange"):
        train(config, quiet=True)


def test_what_follows_from_rows_alone_is_not_guessed(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    for source in config["mix"]["sources"].values():
        del source["weight"]
    train(config, overrides=["train.steps=1"], quiet=True)
    assert train(config, overrides=["train.steps=2"], quiet=True).resumed_from == 1
    lines = demo_files().corpora["arithmetic"].read_text().splitlines()
    (tmp_path / "fewer.jsonl").write_text("\n".join(lines[:30]))
    config["mix"]["sources"]["arithmetic"]["path"] = str(tmp_path / "fewer.jsonl")
    loaded = load_config(config)
    check_ahead(loaded, Encoders(loaded), LocalComm(), transforms={})
    with pytest.raises(RunError, match=r"mix\.sources\.arithmetic, by a digest of its contents: '\w+' in the state"):
        train(config, quiet=True)


def test_a_run_that_may_go_on_passes_and_is_left_as_it_is(tmp_path: Path) -> None:
    config = begun(tmp_path, metrics={"log_every": 1, "sinks": ["tensorboard"]})
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    loaded = load_config(config)
    check_ahead(loaded, Encoders(loaded), LocalComm(), transforms={}, metrics=[Metric("size", length, [Mean()])])
    check_ahead(load_config(config, ["seed=9"]), Encoders(loaded), LocalComm(), transforms={}, fresh=True)
    changed = load_config(config, ["mix.sources.units.weight=9"])
    check_ahead(changed, Encoders(loaded), LocalComm(), transforms={}, accept_changes=True)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before


def test_sizes_have_the_defaults_of_the_loader(tmp_path: Path) -> None:
    config = load_config(small_config(tmp_path))
    assert check_sizes(config, Shard(1, 2)).lanes == 1
    with pytest.raises(ConfigError, match="dp size 3 does not divide"):
        check_sizes(config, Shard(0, 3))
    streamed = load_config(config, ["mix.sources.units.streaming=true"])
    assert (check_sizes(streamed).lanes_per_step, check_sizes(streamed).lane_groups) == (4, 4)


def test_the_record_in_words_survives_a_missing_or_damaged_one(tmp_path: Path) -> None:
    config = begun(tmp_path)
    mix = next((tmp_path / "run" / "checkpoints").glob("step-*/mix.json"))
    mix.write_text("{}")
    resealed(mix.parent)
    with pytest.raises(
        RunError, match=r"mix\.sources\.units\.weight, as a share of all draws: 0\.25 in the state, 0\.5"
    ):
        train(config, overrides=["mix.sources.units.weight=3"], quiet=True)


def test_tokenizing_is_what_the_fixture_watches() -> None:
    assert tokenize.__module__ == "streamsft.text.tokenizing"
