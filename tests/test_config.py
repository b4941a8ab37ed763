"""The config: every mistake is told with its path and what was probably meant, all at once, before data is touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from streamsft.config import Config, GroupConfig, SourceConfig, load_config, schema
from streamsft.config_yaml import dotted, read_text
from streamsft.errors import ConfigError

GOOD = """\
seed: 7
sequence_length: 1024
tokenizer: path/or/hub-id
mix:
  unit: samples
  sources:
    gsm8k: {path: data/gsm8k/train.jsonl, format: question_answer, weight: 2}
    tools: {path: data/toolformer.json, weight: 1}
    code: {path: data/code.jsonl.gz, format: prompt_completion, columns: {completion: solution}, weight: 1}
    chat:
      weight: 1
      sources:
        fastchat: {path: data/dummy_conversation.json, weight: 1}
        identity: {path: data/identity.json, weight: 0.2}
packing: {lookahead: 1024, overflow: truncate}
loader: {global_batch_size: 8, micro_batch_size: 4, workers: 0}   # in packs
metrics: {log_every: 10, sinks: [tensorboard]}
train: {steps: 200, save_every: 50, run_dir: runs/quickstart, lr: 3.0e-4, audit: true}
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "config.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def refusal(folder: Path, text: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as error:
        load_config(write(folder, text), overrides)
    return str(error.value)


def mix(sources: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"sequence_length": 64, "tokenizer": "t", "mix": {"sources": sources}, **more}


def test_a_whole_config_is_read(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, GOOD))
    assert config.seed == 7
    assert config.train.lr == pytest.approx(3e-4)
    gsm8k, chat = config.mix.sources["gsm8k"], config.mix.sources["chat"]
    assert isinstance(gsm8k, SourceConfig)
    assert gsm8k.path == ["data/gsm8k/train.jsonl"]
    assert isinstance(chat, GroupConfig)
    assert chat.sources["identity"].weight == 0.2


def test_a_config_can_be_given_as_a_mapping_or_as_a_config() -> None:
    config = load_config(mix({"a": {"path": Path("x.jsonl")}}))
    assert load_config(config) is config
    assert load_config(config, ["seed=5"]).seed == 5
    with pytest.raises(ConfigError, match="numbers, text, lists"):
        load_config(mix({"a": {"path": object()}}))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("seed: 7", "seed: 7\nmax_length: 8", "config.yaml:2: max_length: unknown key; here it is 'sequence_length'"),
        ("workers: 0", "num_workers: 0", "loader.num_workers: unknown key; did you mean 'workers'?"),
        ("lr: 3.0e-4", "learning_rate: 3.0e-4", "train.learning_rate: unknown key; here it is 'train.lr'"),
        ("steps: 200", "epochs: 2", "here it is 'train.steps' (training is counted in steps, never in epochs)"),
        ("seed: 7", "seed: 7\nlr: 0.1", "lr: unknown key; 'lr' belongs to train.lr"),
        (
            "log_every: 10",
            "save_every: 10",
            "metrics.save_every: unknown key; 'save_every' belongs to train.save_every",
        ),
        ("unit: samples", "weight: 3", "mix.weight: unknown key; 'weight' belongs to mix.sources.<name>.weight"),
        ("weight: 2", "wieght: 2", "mix.sources.gsm8k.wieght: unknown key; did you mean 'weight'?"),
        ("weight: 0.2", "wieght: 2", "mix.sources.chat.sources.identity.wieght: unknown key; did you mean 'weight'?"),
        ("weight: 2", "probability: 2", "gsm8k.probability: unknown key; here it is called 'weight'"),
        ("unit: samples", "seed: 2", "mix.seed: unknown key; 'seed' belongs to the top level"),
        ("  sources:\n    gsm8k", "  sources:\n    weight: 2\n    gsm8k", "put it at mix.sources.<name>.weight"),
        ("overflow: truncate", "overflow: trunkate", "did you mean 'truncate'?"),
        ("sequence_length: 1024", "sequence_length: 1024.5", "sequence_length: a whole number is needed, got 1024.5"),
        ("steps: 200", "steps: '200'", "train.steps: a whole number is needed, got '200' (text)"),
        ("steps: 200", "steps: true", "train.steps: a whole number is needed, got True (true/false)"),
        ("seed: 7", "seed: -1", "seed: should be greater than or equal to 0, got -1"),
        ("lr: 3.0e-4", "lr: 1e-5", "train.lr: YAML reads 1e-5 as text, not as a number: write 1.0e-5"),
        ("audit: true", "audit: yes", "train.audit: YAML reads yes as a boolean: write true"),
        ("overflow: truncate", "overflow: off", "packing.overflow: YAML reads off as a boolean: write false, or 'off'"),
        ("    tools:", "    no:", "mix.sources.no: the key no is a boolean to YAML: put it in quotes"),
        ("seed: 7", "seed: 010", "seed: YAML reads 010 as a number in another base"),
        ("seed: 7", "seed: 1:30", "seed: YAML reads 1:30 as a number in another base"),
        ("    tools:", "    gsm8k:", "mix.sources.gsm8k: the same key twice (lines 7 and 8)"),
        ("seed: 7", "seed: 7\nseed: 8", "seed: the same key twice (lines 1 and 2)"),
        ("    tools:", "    chat tools:", "name 'chat tools': use letters, digits"),
        ("fastchat:", "gsm8k:", "the name 'gsm8k' is taken by mix.sources.gsm8k"),
        ("    tools:", "    mix:", "the name 'mix' is taken by mix"),
        ("tokenizer: path/or/hub-id", "", "tokenizer: missing: mix.sources.gsm8k is text and needs one"),
        ("path: data/toolformer.json", "hub: a/b, path: x", "names one of path, store, hub; this one has path and hub"),
        ("path: data/toolformer.json, ", "", "names one of path, store, hub; this one is missing"),
        ("path: data/toolformer.json", "path: x, split: train", "'split' goes with 'hub'"),
        ("path: data/toolformer.json", "store: x, format: alpaca", "'format' is about text"),
        ("path: data/toolformer.json", "path: '${NO_SUCH_VARIABLE}'", "variable NO_SUCH_VARIABLE is not set"),
        ("path: data/toolformer.json", "path: []", "mix.sources.tools.path: is empty; give one or more"),
        ("path: data/toolformer.json", "path: ''", "mix.sources.tools.path[0]: is empty"),
        (
            "metrics: {log_every: 10, sinks: [tensorboard]}",
            "metrics: 4",
            "metrics: a mapping of keys to values is needed",
        ),
        ("sequence_length: 1024", "", "sequence_length: missing: this key is needed"),
        ("unit: samples", "unit: packs", "mix.unit: 'packs' is not one of samples, tokens"),
        ("weight: 2", "weight: 2, shuffle_window: 9", "gsm8k.shuffle_window: it goes with streaming: true"),
        ("weight: 2", "weight: 2, shuffle_buffer_size: 9", "unknown key; here it is called 'shuffle_window'"),
        (
            "weight: 2",
            "weight: 2, streaming: true, shuffle: none, shuffle_window: 9",
            "it has no effect beside shuffle: none",
        ),
        ("path: data/toolformer.json", "store: x, streaming: true", "tools.streaming: a store is mapped from disk"),
        ("path: data/toolformer.json", "store: x, holdout: 5", "tools.holdout: a store no longer has the rows"),
        ("weight: 2", "weight: 2, holdout: 1.5", "gsm8k.holdout: should be less than 1, got 1.5"),
        ("weight: 2", "weight: 2, holdout: 0", "gsm8k.holdout: 0 holds nothing out; give a fraction"),
        ("global_batch_size: 8", "batch-size: 8", "did you mean 'global_batch_size' (packs of a step over all"),
        ("weight: 2", "weight: 2, validation_split: 0.1", "unknown key; here it is called 'holdout'"),
        ("audit: true", "audit: true, skip_steps: [[9, 7]]", "train.skip_steps[0]: [9, 7] is not a first and a last"),
        ("audit: true", "audit: true, skip_steps: [3]", "train.skip_steps[0]: 3 is not a first and a last step"),
        ("audit: true", "audit: true, async_save: true", "train.async_save: it goes with parallel: fsdp"),
        ("audit: true", "audit: true, parallel: zero", "train.parallel: 'zero' is not one of ddp, fsdp"),
        ("workers: 0", "lane_groups: 0", "loader.lane_groups: should be greater than or equal to 1"),
    ],
)
def test_a_mistake_is_told_with_its_path_and_the_fix(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in GOOD
    message = refusal(tmp_path, GOOD.replace(old, new, 1))
    assert expected in message
    assert message.startswith(f"{tmp_path}/config.yaml: 1 thing is wrong"), message


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = GOOD.replace("seed: 7", "sede: 7").replace("weight: 2", "wieght: 2").replace("lr: 3.0e-4", "lr: fast")
    lines = refusal(tmp_path, text).splitlines()
    assert "3 things are wrong" in lines[0]
    file = tmp_path / "config.yaml"
    found = [line.split(": ")[:2] for line in lines[1:]]
    assert found == [[f"  {file}:1", "sede"], [f"  {file}:7", "mix.sources.gsm8k.wieght"], [f"  {file}:18", "train.lr"]]


def test_every_mistake_has_its_line_what_is_missing_that_of_what_it_is_missing_in(tmp_path: Path) -> None:
    text = GOOD.replace("sequence_length: 1024\n", "").replace("path: data/toolformer.json, ", "")
    lines = refusal(tmp_path, text, "train.steps=fast", "trin.x=3").splitlines()[1:]
    file = tmp_path / "config.yaml"
    assert [line.split(": ")[0].strip() for line in lines] == [
        f"{file}:1",
        f"{file}:7",
        "override trin.x=3",
        "override train.steps=fast",
    ], lines


def test_paths_expand_variables_and_the_folder_of_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA_FOLDER", "/data")
    monkeypatch.delenv("OTHER", raising=False)
    text = GOOD.replace("data/gsm8k/train.jsonl", "'${DATA_FOLDER}/gsm8k/train.jsonl'")
    text = text.replace("data/toolformer.json", "'${OTHER:-there}/toolformer.json'")
    config = load_config(write(tmp_path, text.replace("runs/quickstart", "'${CONFIG_DIR}/run'")))
    assert config.mix.sources["gsm8k"].path == ["/data/gsm8k/train.jsonl"]  # type: ignore[union-attr]
    assert config.mix.sources["tools"].path == ["there/toolformer.json"]  # type: ignore[union-attr]
    assert config.train.run_dir == f"{tmp_path}/run"


def test_overrides_are_laid_over_the_file_before_it_is_checked(tmp_path: Path) -> None:
    file = write(tmp_path, GOOD.replace("steps: 200", "steps: off"))
    overrides = ["train.steps=5", "train.lr=1e-5", "mix.sources.chat.sources.identity.weight=3", "cache=false"]
    config = load_config(
        file, [*overrides, "mix.sources.tools.path=[a, b]", "train.model=none", "packing.lookahead=null"]
    )
    assert (config.train.steps, config.train.lr, config.cache, config.train.model) == (5, 1e-5, False, "none")
    assert config.mix.sources["tools"].path == ["a", "b"]  # type: ignore[union-attr]
    assert config.mix.sources["chat"].sources["identity"].weight == 3  # type: ignore[union-attr]
    assert config.packing.lookahead is None


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("train.stepz=3", "train.stepz: unknown key; did you mean 'steps'?"),
        ("train.steps", "write it as key.path=value"),
        ("seed.low=3", "seed is 7, it has no keys below it"),
        ("train.audit=off", "write false"),
        ("train.run_dir=s3://bucket/run", "train.run_dir: 's3://bucket/run' is an address; name a folder"),
        ("cache.dir=s3://bucket/cache", "cache.dir: 's3://bucket/cache' is an address; name a folder"),
        ("train.steps=[", "not valid YAML"),
    ],
)
def test_a_wrong_override_is_told(tmp_path: Path, override: str, expected: str) -> None:
    assert expected in refusal(tmp_path, GOOD, override)


def test_an_override_reaches_a_source_with_dots_in_its_name() -> None:
    config = load_config(
        mix({"a.b": {"path": "x", "weight": 1}, "a": {"path": "y", "weight": 1}}), ["mix.sources.a.b.weight=5"]
    )
    assert config.mix.sources["a.b"].weight == 5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("seed: [1", "config.yaml:1:9: not valid YAML"),
        ("train: {run_dir: ${HOME}/run}", "put a value with ${…} in quotes"),
        ("- 1", "a config is a mapping"),
        ("seed: !!python/object/apply:os.getcwd []", "config.yaml"),
        ("a: &x {b: *x}", "an anchor contains itself"),
    ],
)
def test_text_that_is_not_a_config_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in refusal(tmp_path, text)


def test_a_missing_config_names_those_beside_it(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    with pytest.raises(ConfigError, match=r"there is no such config file; .* has config\.yaml"):
        load_config(tmp_path / "confg.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"tokenizer: caf\xe9")
    with pytest.raises(ConfigError, match="not a UTF-8 text file"):
        load_config(tmp_path / "latin.yaml")


def test_anchors_and_merges_share_values_and_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    text = "\ufeff" + GOOD.replace("gsm8k: {", "gsm8k: &first {").replace(
        "tools: {path: data/toolformer.json, weight: 1}", "tools: {<<: *first, weight: 4}"
    )
    config = load_config(write(tmp_path, text), ["mix.sources.tools.path=other.jsonl"])
    gsm8k, tools = config.mix.sources["gsm8k"], config.mix.sources["tools"]
    assert isinstance(gsm8k, SourceConfig)
    assert isinstance(tools, SourceConfig)
    assert (gsm8k.path, gsm8k.weight) == (["data/gsm8k/train.jsonl"], 2)
    assert (tools.path, tools.weight, tools.format) == (["other.jsonl"], 4, "question_answer")


def test_every_key_is_described_in_the_schema() -> None:
    described = schema()
    for model in [*described["$defs"].values(), described]:
        for key, field in model["properties"].items():
            assert "description" in field or "$ref" in field or "oneOf" in field or key in Config.model_fields, key


def test_a_dotted_path_shows_list_positions() -> None:
    assert dotted(("mix", "sources", "a", "path", 0)) == "mix.sources.a.path[0]"


@settings(max_examples=50, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda c: st.lists(c) | st.dictionaries(st.text(), c)
    )
)
def test_any_value_in_place_of_the_mix_is_an_error_or_a_config(value: Any) -> None:
    with pytest.raises(ConfigError):
        load_config({"sequence_length": 8, "tokenizer": "t", "mix": value})


def test_plain_values_are_read_as_yaml_reads_them() -> None:
    text = "a: 1\nb: 1.5\nc: true\nd: null\ne: 2024-01-02\nf: .inf\ng: 0x10\nh: 1_000\ni: '1e-5'\nj: [x, {y: ~}]"
    document = read_text(text)
    assert document.issues == []
    assert document.data == {
        "a": 1, "b": 1.5, "c": True, "d": None, "e": "2024-01-02", "f": float("inf"), "g": 16, "h": 1000, "i": "1e-5",
        "j": ["x", {"y": None}],
    }  # fmt: skip
