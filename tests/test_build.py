"""From a config to objects: what is drawn is what is built, and what cannot be used is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamsft.build import Built, build, build_aggregator, build_settings, build_sinks
from streamsft.build_sources import build_sources, drawn_sources
from streamsft.comm import LocalComm
from streamsft.config import load_config
from streamsft.encoders import Encoders
from streamsft.errors import ConfigError, DataError, EmptySourceError, StoreError, TokenizerError
from streamsft.metrics.metric import Metric
from streamsft.metrics.reducers import Counts, Mean
from streamsft.metrics.sinks import GuardedSink
from streamsft.sources.store import TokenStore
from streamsft.stream.interleave import Interleave
from streamsft.text.conversation import RowRejected
from streamsft.types import Sample, Shard
from tests.pipelines import demo_files, small_config


def built(config: dict[str, Any], **options: Any) -> Built:
    transforms = options.pop("transforms", {})
    read = load_config(config, without_tokenizer=transforms)
    encoders = Encoders(read)
    return build(read, build_sources(read, encoders, transforms=transforms), encoders, **options)


def fixed(row: dict[str, Any]) -> dict[str, Any] | None:
    if "times" in row["question"]:
        return None
    return {"input_ids": [1, 2, 3], "loss_mask": [0, 1, 1]}


def length(sample: Sample) -> float:
    return float(len(sample))


def size_class(sample: Sample) -> str:
    return "short" if len(sample) < 40 else "long"


def test_a_config_becomes_a_pipeline_whose_batches_come(tmp_path: Path) -> None:
    pipeline = built(small_config(tmp_path))
    batch = next(iter(pipeline.loader))
    assert batch.input_ids.shape == (4, 256)
    assert {source for pack in batch.rows for source, _, _ in pack} == {"arithmetic", "units", "strings"}
    assert {s.name: round(s.weight, 2) for s in pipeline.loader.sources} == {
        "arithmetic": 0.5,
        "strings": 0.25,
        "units": 0.25,
    }
    assert {s.name: s.rejected for s in pipeline.summaries} == {
        "arithmetic": {"empty_turn": 1},
        "units": {},
        "strings": {"no_assistant_turn": 1},
    }


def test_nested_weights_multiply_and_what_has_weight_zero_is_not_opened(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    sources = config["mix"]["sources"]
    never = {"path": "no/such/file.jsonl", "weight": 0}
    config["mix"]["sources"] = {
        "chat": {"weight": 3, "sources": {"units": sources["units"], "strings": sources["strings"], "gone": never}},
        "arithmetic": {**sources["arithmetic"], "weight": 1},
        "empty": {"weight": 0, "sources": {"never": {"path": "nor/this.jsonl"}}},
    }
    assert list(drawn_sources(load_config(config))) == ["units", "strings", "arithmetic"]
    pipeline = built(config)
    assert {s.name: (s.weight, s.groups) for s in pipeline.loader.sources} == {
        "arithmetic": (0.25, ("mix",)),
        "strings": (0.375, ("mix", "chat")),
        "units": (0.375, ("mix", "chat")),
    }
    assert isinstance(pipeline.packer.mix.children[0], Interleave)


def test_without_weights_rows_come_equally_often(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    for source in config["mix"]["sources"].values():
        del source["weight"]
    shares = {s.name: s.weight for s in built(config).loader.sources}
    assert shares == pytest.approx({"arithmetic": 59 / 178, "units": 60 / 178, "strings": 59 / 178})


def test_the_batches_do_not_depend_on_cache_paths_workers_or_background(tmp_path: Path) -> None:
    first = built(small_config(tmp_path))
    moved = shutil.copytree(demo_files().folder, tmp_path / "moved")
    config = small_config(tmp_path, cache=False, loader={"global_batch_size": 4, "background": False, "timeout": 7})
    for source in config["mix"]["sources"].values():
        source["path"] = source["path"].replace(str(demo_files().folder), str(moved))
    second = built({**config, "tokenizer": str(moved / "tokenizer")})
    assert first.loader.fingerprint == second.loader.fingerprint
    assert (first.loader.timeout, second.loader.timeout) == (300, 7)
    for _, one, other in zip(range(5), first.loader, second.loader, strict=False):
        assert one.rows == other.rows
        assert one.input_ids.equal(other.input_ids)


def test_ranks_share_the_packs_of_a_step(tmp_path: Path) -> None:
    whole = next(iter(built(small_config(tmp_path)).loader)).rows
    parts = [next(iter(built(small_config(tmp_path), dp=Shard(rank, 2)).loader)).rows for rank in range(2)]
    assert parts[0] + parts[1] == whole
    with pytest.raises(ConfigError, match="does not divide"):
        built(small_config(tmp_path), dp=Shard(0, 3))


def test_passes_can_keep_the_order_of_the_input(tmp_path: Path) -> None:
    config = small_config(tmp_path, packing={"lookahead": 20})
    config["mix"]["sources"] = {"units": {**config["mix"]["sources"]["units"], "shuffle": "none"}}
    rows: list[int] = []
    for pack in built(config).packer:
        rows += [sample.row for sample in pack.samples]
        if len(rows) >= 40:
            break
    assert sorted(rows[:20]) == list(range(20))
    assert sorted(rows[20:40]) == list(range(20, 40))


def test_a_transform_makes_the_tokens_of_its_source(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    del config["mix"]["sources"]["arithmetic"]["format"]
    store = built(config, transforms={"arithmetic": fixed}).stores["arithmetic"]
    assert store.manifest.rejected.keys() == {"transform"}
    assert store[0].input_ids.tolist() == [1, 2, 3]
    alone = {**config, "mix": {"sources": {"arithmetic": config["mix"]["sources"]["arithmetic"]}}}
    del alone["tokenizer"]
    assert built(alone, transforms={"arithmetic": fixed}).encoders.vocabulary is None


def test_a_transform_that_would_have_no_effect_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no source 'arithmetik'; did you mean 'arithmetic'"):
        built(small_config(tmp_path), transforms={"arithmetik": fixed})
    with pytest.raises(ConfigError, match="format in its config would have no effect"):
        built(small_config(tmp_path), transforms={"arithmetic": fixed})


def test_metrics_of_ones_own_are_measured_and_merged(tmp_path: Path) -> None:
    metrics = [Metric("size", length, [Mean()]), Metric("class", size_class, [Counts(("short", "long"))])]
    pipeline = built(small_config(tmp_path), metrics=metrics)
    aggregator = build_aggregator(pipeline.config, pipeline.loader, metrics, LocalComm())
    batch = next(iter(pipeline.loader))
    aggregator.update(batch.stats)
    record = aggregator.log()
    assert record["data_units/size"] == pytest.approx(record["data_units/length_mean"])
    assert any(key.startswith("data_strings/class") for key in record)


def test_a_store_is_a_source_and_one_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    first = built(small_config(tmp_path)).stores["units"]
    config = small_config(tmp_path)
    config["mix"]["sources"] = {"ready": {"store": str(first.path)}}
    assert built(config).stores["ready"].fingerprint == first.fingerprint
    del config["tokenizer"]
    assert built(config).stores["ready"].fingerprint == first.fingerprint
    other = tmp_path / "other"
    shutil.copytree(demo_files().tokenizer, other)
    text = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(text.replace("<|endoftext|>", "<|endoftexts|>"))
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (other / name).exists():
            (other / name).write_text((other / name).read_text().replace("<|endoftext|>", "<|endoftexts|>"))
    with pytest.raises(StoreError, match="tokenizer"):
        built({**config, "tokenizer": str(other)})


def test_flipped_bytes_of_a_cached_store_are_mended_by_verify(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = load_config(small_config(tmp_path))
    encoders = Encoders(config)
    store = build_sources(config, encoders)["units"]
    assert isinstance(store, TokenStore)
    assert store.path is not None
    file = next(store.path.glob("data-*.arrow"))
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    file.write_bytes(raw)
    again = build_sources(config, encoders, verify=True)["units"]
    assert isinstance(again, TokenStore)
    assert f"source units: its cached store is made again: {file}" in caplog.text
    assert TokenStore.open(store.path, verify=True).fingerprint == store.fingerprint == again.fingerprint


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("", EmptySourceError, "units"),
        ("[]", EmptySourceError, "units"),
        ('[{"instruction": "x", "input": "", "output": ""}]', EmptySourceError, "1 empty_turn"),
        ('[{"instruction": ', DataError, "units"),
    ],
)
def test_a_source_without_a_row_to_draw_is_named(
    tmp_path: Path, text: str, kind: type[Exception], expected: str
) -> None:
    config = small_config(tmp_path)
    file = tmp_path / "units.json"
    file.write_text(text)
    config["mix"]["sources"]["units"]["path"] = str(file)
    with pytest.raises(kind, match=expected) as error:
        built(config)
    assert "units" in str(error.value)


def test_a_missing_path_is_told_with_the_source_and_the_nearest_one(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    path = config["mix"]["sources"]["units"]["path"]
    config["mix"]["sources"]["units"]["path"] = path.replace("units.json", "unit.json")
    with pytest.raises(DataError, match=r"source units: .*unit\.json: no such file.*units\.json"):
        built(config)


def test_all_inputs_that_are_missing_are_told_before_anything_is_tokenized(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    config["mix"]["sources"]["units"]["path"] = "no/units.json"
    config["mix"]["sources"]["strings"] = {"store": "no/store", "weight": 1}
    with pytest.raises(DataError, match="2 sources cannot be read") as error:
        built(config)
    assert "source units: no/units.json" in str(error.value)
    assert "source strings: no/store" in str(error.value)
    assert not (tmp_path / "cache").exists()


def test_a_tokenizer_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="no such folder"):
        built(small_config(tmp_path, tokenizer=str(tmp_path / "nothing")))
    with pytest.raises(TokenizerError, match="the package 'no_such_package_here' is not installed"):
        built(small_config(tmp_path, tokenizer="package:no_such_package_here"))
    bare = shutil.copytree(demo_files().tokenizer, tmp_path / "bare")
    (bare / "chat_template.jinja").unlink()
    with pytest.raises(TokenizerError, match="no chat template"):
        built(small_config(tmp_path, tokenizer=str(bare)))
    template = tmp_path / "template.jinja"
    shutil.copy(demo_files().tokenizer / "chat_template.jinja", template)
    built(small_config(tmp_path, tokenizer=str(bare), text={"chat_template": str(template)}))
    with pytest.raises(ConfigError, match=r"text\.chat_template"):
        built(small_config(tmp_path, tokenizer=str(bare), text={"chat_template": str(tmp_path / "none")}))


def test_training_needs_steps_and_a_run_directory(tmp_path: Path) -> None:
    for key in ("steps", "run_dir"):
        config = small_config(tmp_path)
        del config["train"][key]
        with pytest.raises(ConfigError, match=rf"train\.{key}: missing"):
            build_settings(load_config(config))


def test_settings_of_divided_weights_are_those_of_the_config(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    config["train"] |= {"parallel": "fsdp", "async_save": True}
    settings = build_settings(load_config(config))
    assert (settings.parallel, settings.async_save) == ("fsdp", True)


def test_the_sinks_of_a_run_write_nothing_before_the_first_record(tmp_path: Path) -> None:
    names = ["tensorboard", "wandb", "mlflow", "trackio"]
    for name in names:
        pytest.importorskip(name)
    config = load_config(small_config(tmp_path, metrics={"sinks": [*names, "mlflow"], "project": "p"}))
    sinks = build_sinks(config, quiet=True)
    assert [sink.name for sink in sinks if isinstance(sink, GuardedSink)] == names
    assert len(sinks) == 1 + len(names)
    assert not (tmp_path / "run").exists()
    sinks[0].write(3, 1.5, {"train/loss": 2.0})
    sinks[0].close()
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())
    assert line == {"step": 3, "time": 1.5, "metrics": {"train/loss": 2.0}}


def test_a_row_read_from_a_store_is_the_row_that_was_tokenized(tmp_path: Path) -> None:
    pipeline = built(small_config(tmp_path))
    store = pipeline.stores["arithmetic"]
    chat = pipeline.encoders.of(drawn_sources(pipeline.config)["arithmetic"])
    rows = [json.loads(line) for line in demo_files().corpora["arithmetic"].read_text().splitlines()]
    for index in range(len(store)):
        expected = chat(rows[int(store.row_numbers[index])])
        assert np.array_equal(store[index].input_ids, expected["input_ids"])
        assert np.array_equal(store[index].loss_mask, expected["loss_mask"])
    with pytest.raises(RowRejected):
        chat(rows[30])
    assert isinstance(store, TokenStore)
