"""The demo's files: the same on every machine, in three formats, and never written over something else."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from streamsft.config import load_config
from streamsft.demodata.corpora import write_corpora
from streamsft.demodata.files import DemoFiles, write_demo
from streamsft.errors import ConfigError


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> DemoFiles:
    return write_demo(tmp_path_factory.mktemp("demo") / "demo", rows=60)


def test_corpora_are_the_same_bytes_each_time(tmp_path: Path) -> None:
    first, second = (write_corpora(tmp_path / name, rows=30) for name in ("a", "b"))
    assert {n: f.read_bytes() for n, f in first.items()} == {n: f.read_bytes() for n, f in second.items()}
    other = write_corpora(tmp_path / "c", rows=30, seed=8)
    assert all(other[name].read_bytes() != file.read_bytes() for name, file in first.items())


def test_corpora_come_in_three_formats(tmp_path: Path) -> None:
    files = write_corpora(tmp_path, rows=30)
    first = json.loads(files["arithmetic"].read_text().splitlines()[0])
    assert first.keys() == {"question", "answer"}
    units = json.loads(files["units"].read_text())
    assert len(units) == 30
    assert units[0].keys() == {"instruction", "input", "output"}
    strings = [json.loads(line) for line in gzip.decompress(files["strings"].read_bytes()).splitlines()]
    assert sum("tool_calls" in message for row in strings for message in row["messages"]) == 29


def test_the_config_of_a_demo_is_valid_and_follows_the_folder(demo: DemoFiles, tmp_path: Path) -> None:
    config = load_config(demo.config)
    assert config.train.run_dir == str(demo.run_dir.resolve())
    moved = demo.folder.rename(tmp_path / "moved")
    try:
        assert load_config(moved / "config.yaml").tokenizer == str(moved.resolve() / "tokenizer")
    finally:
        moved.rename(demo.folder)
    assert json.loads((demo.folder / "schema.json").read_text())["title"] == "Config"


def test_the_tokenizer_of_a_demo_loads_with_its_template(demo: DemoFiles) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(demo.tokenizer)
    text = tokenizer.apply_chat_template([{"role": "user", "content": "1 + 1?"}], tokenize=False)
    assert text == "<|im_start|>user\n1 + 1?<|im_end|>\n"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert len(tokenizer) <= 512


def test_a_demo_that_is_there_is_kept_and_anything_else_is_left_alone(demo: DemoFiles, tmp_path: Path) -> None:
    demo.config.write_text(demo.config.read_text().replace("steps: 150", "steps: 3"))
    write_demo(demo.folder)
    assert load_config(demo.config).train.steps == 3
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ConfigError, match=r"thesis\.tex is here"):
        write_demo(tmp_path)
    with pytest.raises(ConfigError, match="a file of that name"):
        write_demo(tmp_path / "thesis.tex")


def test_a_half_written_demo_is_written_again(tmp_path: Path) -> None:
    files = write_demo(tmp_path / "demo", rows=60)
    files.config.unlink()
    files.corpora["units"].write_text("[")
    assert len(json.loads(write_demo(files.folder, rows=60).corpora["units"].read_text())) == 60
