"""Evaluation from a config: held rows and files, on a cadence, over resumes; what is wrong is told beforehand."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import streamsft as ss
from streamsft.build_eval import build_evaluation
from streamsft.encoders import Encoders
from streamsft.errors import ConfigError, DataError
from streamsft.pages.runs import read_run
from streamsft.pages.trends import whole_charts
from tests.pipelines import demo_files, small_config


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def config(folder: Path, **evaluation: Any) -> dict[str, Any]:
    made = small_config(folder, sequence_length=128, metrics={"log_every": 4})
    made["mix"]["sources"]["arithmetic"]["holdout"] = 0.1
    made["eval"] = {
        "every": 3,
        "sets": {"held": "arithmetic.holdout", "units": {"path": str(demo_files().corpora["units"])}},
        **evaluation,
    }
    made["train"] |= {"model": "tiny", "steps": 5, "save_every": 3}
    return made


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]


def evaluated(folder: Path) -> dict[int, dict[str, float]]:
    found = {}
    for record in records(folder):
        if numbers := {key: value for key, value in record["metrics"].items() if key.startswith("eval")}:
            assert record["step"] not in found, "a step has two records"
            found[record["step"]] = numbers
    return found


def test_a_run_evaluates_its_sets_and_a_resumed_one_none_twice(tmp_path: Path) -> None:
    made, console = config(tmp_path), Console(file=io.StringIO(), width=200)
    ss.train(made, console=console)
    assert list(evaluated(tmp_path)) == [3, 5]
    assert [record["step"] for record in records(tmp_path)] == [3, 4, 5]
    ss.train(made, overrides=["train.steps=7"], quiet=True)
    assert list(evaluated(tmp_path)) == [3, 5, 6, 7]
    held = ss.held_out(made, "arithmetic")
    for numbers in evaluated(tmp_path).values():
        assert numbers["eval_held/samples"] == len(held)
        assert numbers["eval_held/supervised_tokens"] == held.supervised.sum()
        parts = [
            (numbers[f"eval_{name}/loss"], numbers[f"eval_{name}/supervised_tokens"]) for name in ("held", "units")
        ]
        mean = sum(loss * tokens for loss, tokens in parts) / sum(tokens for _, tokens in parts)
        assert numbers["eval/loss"] == pytest.approx(mean, abs=1e-12)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "step 3   eval_held/loss" in shown
    assert "eval/samples" not in shown
    page = read_run(tmp_path / "run")
    assert page.steps == [4, 5, 7], "charts of the data have no gap where only the loss was evaluated"
    loss = next(chart for chart in whole_charts([page]) if chart.id == "loss")
    assert {trace["name"]: trace["x"] for trace in loss.traces} == {
        "train": [4, 5, 7], "eval/loss": [3, 5, 6, 7], "eval_held/loss": [3, 5, 6, 7], "eval_units/loss": [3, 5, 6, 7]
    }  # fmt: skip


def test_rows_and_packs_have_the_same_loss_and_training_is_not_changed(tmp_path: Path) -> None:
    losses, audits = [], []
    for name, evaluation in {"packed": {}, "rows": {"packed": False, "batch_size": 3}, "none": {"sets": {}}}.items():
        (tmp_path / name).mkdir()
        made = config(tmp_path / name, **evaluation)
        made["cache"]["dir"] = str(tmp_path / "cache")
        made["train"]["steps"] = 3
        ss.train(made, quiet=True)
        losses += [numbers["eval/loss"] for numbers in evaluated(tmp_path / name).values()]
        audits.append((tmp_path / name / "run" / "audit" / "rank-0.jsonl").read_text())
    assert len(losses) == 2
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    assert audits[0] == audits[1] == audits[2]


def test_held_rows_that_are_too_long_are_cut_as_those_that_are_trained_on(tmp_path: Path) -> None:
    pages = tmp_path / "pages.jsonl"
    pages.write_text("".join(json.dumps({"text": f"{row} " * 200}) + "\n" for row in range(20)))
    made = config(tmp_path, sets={"pages": "pages.holdout"})
    made["mix"]["sources"]["pages"] = {"path": str(pages), "format": "text", "holdout": 3, "weight": 1}
    loaded = ss.load_config(made)
    held = ss.held_out(loaded, "pages")
    evaluation = build_evaluation(loaded, {"pages": held}, Encoders(loaded))
    assert evaluation is not None
    tokens = sum(int(batch.documents.table.length.sum()) for batch in evaluation.sets["pages"])
    assert tokens == held.lengths.sum() > 3 * 128


def test_without_a_model_nothing_is_evaluated(tmp_path: Path) -> None:
    made = config(tmp_path)
    made["train"]["model"] = "none"
    ss.train(made, quiet=True)
    assert not evaluated(tmp_path)


def test_what_is_wrong_with_a_set_is_told_before_a_row_is_tokenized(tmp_path: Path) -> None:
    made = config(tmp_path, sets={"gone": {"path": str(tmp_path / "gone.jsonl")}})
    for command in (ss.train, ss.validate):
        with pytest.raises((DataError, ConfigError), match=r"eval\.sets\.gone"):
            command(made)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("evaluation", "expected"),
    [
        ({"every": 5}, "eval.sets: missing"),
        ({"sets": {"a": "units.holdout"}}, "eval.sets.a: 'units.holdout' is not what a source of the mix holds "
                                           "out; those are arithmetic.holdout"),
        ({"sets": {"a": {"path": "x", "weight": 2}}}, "eval.sets.a.weight: unknown key; 'weight' belongs to mix"),
        ({"sets": {"a": {"file": "x"}}}, "eval.sets.a.file: unknown key; here it is called 'path'"),
        ({"sets": {"a": {"path": "x", "hub": "y"}}}, "eval.sets.a: a source names one of path, store, hub"),
        ({"sets": {"a b": {"path": "x"}}}, "evaluation set name 'a b': use letters"),
        ({"sets": {}, "eval_steps": 3}, "eval.eval_steps: unknown key; here it is 'eval.every'"),
        ({"sets": {}, "every": 0}, "eval.every: should be greater than or equal to 1, got 0"),
    ],
)  # fmt: skip
def test_mistakes_are_told_with_their_path(tmp_path: Path, evaluation: dict[str, Any], expected: str) -> None:
    made = small_config(tmp_path, eval=evaluation)
    made["mix"]["sources"]["arithmetic"]["holdout"] = 0.1
    with pytest.raises(ConfigError) as error:
        ss.load_config(made)
    assert expected in str(error.value)
