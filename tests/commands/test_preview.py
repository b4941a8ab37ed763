"""What preview shows: the tree, the mix as asked and as drawn, packs and single rows with their masks."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from streamsft.commands.preview import preview
from streamsft.commands.preview_row import preview_row
from streamsft.commands.tokenize import tokenize
from streamsft.commands.validate import validate
from streamsft.errors import ConfigError, DataError, StreamsftError
from streamsft.metrics.metric import Metric
from streamsft.metrics.reducers import Mean
from streamsft.types import Sample
from tests.pipelines import demo_files, small_config


def plain() -> Console:
    return Console(file=io.StringIO(), width=120, no_color=True, highlight=False)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_preview_shows_the_tree_the_mix_and_packs_with_their_masks(tmp_path: Path) -> None:
    console = plain()
    survey = preview(small_config(tmp_path), packs=2, draws=800, console=console)
    shown = text_of(console)
    assert survey.samples.total() >= 800
    assert survey.samples["arithmetic"] / survey.samples.total() == pytest.approx(0.5, abs=0.02)
    assert 0.9 < survey.efficiency <= 1
    for expected in ("└── packer", "50.00%", f"{survey.efficiency:.2%} of them filled", "pack 0: ", "pack 1: "):
        assert expected in shown
    assert "pack 2: " not in shown
    assert "⟦The result is " in shown
    assert "<|im_start|>user" in shown


def test_preview_colours_supervised_tokens_on_a_terminal(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system="standard")
    preview(small_config(tmp_path), packs=1, draws=10, console=console)
    shown = text_of(console)
    assert "⟦" not in shown
    assert "\x1b[1;32m" in shown


def test_preview_counts_the_fragments_of_a_split_row_once(tmp_path: Path) -> None:
    config = small_config(tmp_path, sequence_length=64, packing={"lookahead": 64, "overflow": "split"})
    survey = preview(config, packs=0, draws=200, console=plain())
    assert survey.samples["strings"] / survey.samples.total() == pytest.approx(0.25, abs=0.05)


def length(sample: Sample) -> float:
    return float(len(sample))


def test_preview_shows_metrics_of_ones_own(tmp_path: Path) -> None:
    console = plain()
    preview(small_config(tmp_path), metrics=[Metric("size", length, [Mean()])], packs=0, draws=100, console=console)
    shown = text_of(console)
    assert "data_units/size " in shown
    assert "data_mix/size " in shown


def test_preview_says_that_weights_which_change_by_step_are_those_of_the_first(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    config["mix"]["sources"]["units"]["weight"] = {0: 1, 10: 3}
    console = plain()
    preview(config, packs=0, draws=50, console=console)
    assert "draws, by the weights of step 1; forecast follows them" in text_of(console)


def test_a_row_is_shown_with_text_spans_tokens_and_mask(tmp_path: Path) -> None:
    console = plain()
    assert preview_row(small_config(tmp_path), "units:3", console=console) is None
    shown = text_of(console)
    for expected in ("units:3, units.json, row 3", '"instruction": ', "rendered as alpaca", "spans, in characters"):
        assert expected in shown
    assert "⟦1 " in shown
    assert "'<|im_end|>'" in shown


@pytest.mark.parametrize(
    ("row", "reason", "expected"),
    [
        ("arithmetic:30", "empty_turn", "rejected: empty_turn"),
        ("strings:20", "no_assistant_turn", "no_assistant_turn: no message was written by the assistant"),
    ],
)
def test_a_rejected_row_is_shown_with_the_reason(tmp_path: Path, row: str, reason: str, expected: str) -> None:
    console = plain()
    assert preview_row(small_config(tmp_path), row, console=console) == reason
    assert expected in text_of(console)


def test_a_malformed_row_is_shown_with_the_reason(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"question": "a", "answer": "b"}\n{"question": NaN}\n')
    config = small_config(tmp_path)
    config["mix"]["sources"] = {"rows": {"path": str(file)}}
    console = plain()
    assert preview_row(config, "rows:1", console=console) == "bad_row"
    assert "rows.jsonl, row 1, line 2" in text_of(console)


def leave_out(row: dict[str, Any]) -> dict[str, Any] | None:
    return {"input_ids": [1, 2], "loss_mask": [0, 1]} if row["input"] else None


def test_a_row_of_a_transform_or_of_a_store_is_shown(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    del config["mix"]["sources"]["units"]["format"]
    console = plain()
    assert preview_row(config, "units:0", transforms={"units": leave_out}, console=console) is None
    assert "2 tokens, 1 supervised" in text_of(console)
    store = tokenize(config, console=plain())["strings"]
    config["mix"]["sources"] = {"ready": {"store": str(store.path)}}
    console = plain()
    preview_row(config, "ready:21", console=console)
    assert "ready:21, strings.jsonl.gz, row 21" in text_of(console)
    with pytest.raises(DataError, match="the store holds no row 20"):
        preview_row(config, "ready:20", console=plain())


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("units", "write it as SOURCE:ROW"),
        ("units:x", "write it as SOURCE:ROW"),
        ("unit:3", "did you mean 'units'"),
        ("units:60", "there is no row 60; its input has 60 rows"),
    ],
)
def test_a_row_that_is_not_there_is_told(tmp_path: Path, row: str, expected: str) -> None:
    with pytest.raises(StreamsftError, match=expected):
        preview_row(small_config(tmp_path), row, console=plain())


def test_tokenize_fills_the_cache_and_says_where(tmp_path: Path) -> None:
    console = plain()
    stores = tokenize(small_config(tmp_path), processes=1, console=console)
    assert {name: len(store) for name, store in stores.items()} == {"arithmetic": 59, "units": 60, "strings": 59}
    shown = text_of(console)
    for store in stores.values():
        assert str(store.path) in shown
    assert "arithmetic: rejected rows are in" in shown
    assert "units: rejected rows are in" not in shown


def test_validate_looks_at_files_formats_and_tokenizer_without_tokenizing(tmp_path: Path) -> None:
    console = plain()
    validate(small_config(tmp_path), console=console)
    assert "strings: 1 file, " in text_of(console)
    assert "the config is valid" in text_of(console)
    assert not (tmp_path / "cache").exists()


def test_validate_tells_all_sources_that_cannot_be_used(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    config["mix"]["sources"]["units"]["path"] = "no/such/units.json"
    config["mix"]["sources"]["strings"] = {"store": str(tmp_path), "weight": 1}
    with pytest.raises(ConfigError, match="2 of 3 sources cannot be used") as error:
        validate(config, console=plain())
    assert "units: no/such/units.json: no such file" in str(error.value)


def test_validate_tells_a_tokenizer_beside_the_sources_and_not_as_one_of_them(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    config["tokenizer"] = str(tmp_path)
    with pytest.raises(ConfigError, match=r"^no run could start\n  tokenizer: ") as error:
        validate(config, console=plain())
    assert "source" not in str(error.value)
    config["mix"]["sources"]["units"]["path"] = "no/such/units.json"
    with pytest.raises(ConfigError, match=r"^1 of 3 sources cannot be used\n  tokenizer: ") as error:
        validate(config, console=plain())
    assert "\n  source units: no/such/units.json: no such file" in str(error.value)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("u.jsonl", b"", "u.jsonl: there are no rows"),
        ("u.jsonl", b"\n  \n\n", "u.jsonl: there are no rows"),
        ("u.json", b"[]", "u.json: there are no rows"),
        ("u.csv", b"question,answer\n", "u.csv: there are no rows"),
        ("u.csv", "question,answer\nwo?,M\xfcnchen\n".encode("latin-1"), "u.csv:2: bad_row: not UTF-8"),
        (
            "u.jsonl",
            '{"question": "wo?", "answer": "K\xf6ln"}'.encode("latin-1"),
            "u.jsonl:1: bad_row: not UTF-8 at byte ",
        ),
        ("u.jsonl", b'\n{"question":\n{"answer"', "u.jsonl:2: bad_row: malformed JSON"),
        ("u.jsonl", b'{"question": null, "answer": "a"}', "u.jsonl:1: missing_column: column 'question' is null"),
    ],
)
def test_validate_refuses_a_source_without_a_row_that_can_be_used(
    tmp_path: Path, name: str, content: bytes, says: str, streaming: bool
) -> None:
    (tmp_path / name).write_bytes(content)
    config = small_config(tmp_path)
    config["mix"]["sources"]["units"] = {"path": str(tmp_path / name), "streaming": streaming, "weight": 1}
    with pytest.raises(ConfigError, match="1 of 3 sources cannot be used") as error:
        validate(config, console=plain())
    assert "\n  source units: " in str(error.value)
    assert says in str(error.value)


def test_validate_takes_a_source_whose_first_rows_alone_are_bad(tmp_path: Path) -> None:
    (tmp_path / "u.jsonl").write_bytes(b'{bad\n{"question": null, "answer": "a"}\n{"question": "q", "answer": "a"}\n')
    config = small_config(tmp_path)
    config["mix"]["sources"]["units"] = {"path": str(tmp_path / "u.jsonl"), "weight": 1}
    validate(config, console=plain())
    (tmp_path / "u.jsonl").write_bytes(b"{bad\n")
    with pytest.raises(ConfigError, match=r"none of the 1 rows looked at can be used; the first: u\.jsonl:1: bad_row"):
        validate(config, transforms={"units": dict}, console=plain())


@pytest.mark.parametrize("command", [validate, tokenize, preview])
def test_every_command_takes_overrides(tmp_path: Path, command: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="stepz: unknown key; did you mean 'steps'"):
        command(small_config(tmp_path), overrides=["train.stepz=3"], console=plain())
    assert demo_files().config.exists()


def test_a_streamed_source_is_previewed_and_its_rows_found_by_their_numbers(tmp_path: Path) -> None:
    config = small_config(tmp_path, mix={"unit": "tokens", "sources": {}}, packing={"lookahead": 64})
    corpora = demo_files().corpora
    copy = shutil.copy(corpora["arithmetic"], tmp_path / "again.jsonl")
    paths = [str(corpora["arithmetic"]), str(copy)]
    config["mix"]["sources"] = {
        "twice": {"path": paths, "streaming": True, "shuffle_window": 9, "weight": 1},
        "units": {"path": str(corpora["units"]), "weight": {"0": 1, "100": 0}},
    }
    console = plain()
    survey = preview(config, packs=1, draws=600, console=console)
    assert survey.tokens["twice"] / survey.tokens.total() == pytest.approx(0.5, abs=0.03)
    assert "twice: streamed, tokenized as it is drawn" in text_of(console)
    numbers = {7: "arithmetic.jsonl, row 7, line 8", (1 << 32) + 7: "again.jsonl, row 7, line 8"}
    for number, place in numbers.items():
        console = plain()
        assert preview_row(config, f"twice:{number}", console=console) is None
        assert place in text_of(console)
    with pytest.raises(DataError, match="there is no row 100"):
        preview_row(config, "twice:100", console=plain())
