"""Editing the mix of a run: sources that stay go on row for row, and what is not an edit is still refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from streamsft.commands.train import train
from streamsft.errors import RunError, StateError, StreamsftError
from tests.pipelines import demo_files, small_config

Row = tuple[str, int, int]


def rows(run: Path) -> list[Row]:
    """(source, row, pass) of what a run consumed, in order."""
    lines = [json.loads(line) for line in (run / "audit" / "rank-0.jsonl").read_text().splitlines()]
    return [tuple(row) for line in lines for pack in line["packs"] for row in pack["rows"]]


def of(source: str, consumed: list[Row]) -> list[tuple[int, int]]:
    return [(row, index) for name, row, index in consumed if name == source]


def check_passes(consumed: list[Row], source: str, count: int) -> None:
    """Passes of `source` have each of its `count` rows once; of the last three some may be in open windows still."""
    seen = of(source, consumed)
    assert len(set(seen)) == len(seen)
    for index in range(max(index for _, index in seen) - 2):
        assert sum(1 for _, other in seen if other == index) == count


def config(folder: Path, steps: int, **sources: Any) -> dict[str, Any]:
    """A mix of two of the demo's corpora and others; windows of 60 draws, some 5 steps each."""
    made = small_config(folder, packing={"lookahead": 60}, loader={"global_batch_size": 2}, metrics={"log_every": 1})
    made["train"] |= {"steps": steps, "save_every": 100}
    files = demo_files().corpora
    mix = {name: {"path": str(files[name]), "weight": 1} for name in ("arithmetic", "units")}
    made["mix"]["sources"] = {**mix, **sources}
    return made


def strings(**more: Any) -> dict[str, Any]:
    return {"path": str(demo_files().corpora["strings"]), "weight": 1, **more}


@pytest.mark.parametrize("streaming", [False, True], ids=["stored", "streamed"])
def test_sources_that_stay_go_on_row_for_row_and_the_history_is_kept(tmp_path: Path, streaming: bool) -> None:
    loader = {"global_batch_size": 2, "lanes_per_step": 2, "lane_groups": 1}
    stream = {"streaming": True, "shuffle_window": 7} if streaming else {}
    before = config(tmp_path, 4, strings=strings(**stream))
    after = config(tmp_path, 60)
    after["mix"]["sources"]["units"]["weight"] = 3
    after["mix"]["sources"]["more"] = {**strings(), **stream}
    for each in (before, after):
        each["loader"] = loader
        each["mix"]["sources"]["arithmetic"] |= stream
    train(before, quiet=True)
    with pytest.raises(RunError, match="--accept-changes"):
        train(after, quiet=True)
    assert train(after, overrides=["train.steps=6"], accept_changes=True, quiet=True).resumed_from == 4
    result = train(after, quiet=True)  # windows of the old mix are open, or were; the checkpoint knows
    assert (result.resumed_from, result.steps) == (6, 60)
    consumed = rows(tmp_path / "run")
    if not streaming:
        check_passes(consumed, "arithmetic", 59)
    check_passes(consumed, "units", 60)
    check_passes(consumed, "more", 59)
    assert of("strings", consumed)
    assert not of("strings", consumed[len(consumed) // 2 :])
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    (edit,) = record["edits"]
    assert (edit["step"], edit["added"], edit["removed"]) == (4, ["more"], ["strings"])
    assert edit["shares"]["units"] == [pytest.approx(1 / 3), pytest.approx(0.6)]
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["metrics"]
    assert last["data/samples"] == len(consumed)
    for name in ("strings", "more", "units"):
        assert last[f"data_{name}/samples"] == len(of(name, consumed))
    assert last["data_strings/share_asked"] == 0


def test_up_to_the_windows_border_the_steps_are_those_of_the_mix_before(tmp_path: Path) -> None:
    train(config(tmp_path / "a", 30), quiet=True)
    train(config(tmp_path / "b", 3), quiet=True)
    train(config(tmp_path / "b", 30, strings=strings(weight=0.5)), accept_changes=True, quiet=True)
    whole, edited = rows(tmp_path / "a" / "run"), rows(tmp_path / "b" / "run")
    assert whole[:60] == edited[:60]
    assert of("strings", edited[60:120])
    for name in ("arithmetic", "units"):
        first = of(name, edited[:60])
        assert sorted(first) == sorted(of(name, whole[:60]))
        assert not set(first) & set(of(name, edited[60:]))


def test_a_source_whose_file_changed_is_finished_from_its_store(tmp_path: Path) -> None:
    file = shutil.copy(demo_files().corpora["strings"], tmp_path)
    first = config(tmp_path, 4, strings=strings(path=file))
    train(first, quiet=True)
    shutil.copy(demo_files().corpora["arithmetic"], tmp_path / "other.jsonl")
    Path(file).unlink()
    changed = config(tmp_path, 30, strings=strings(path=str(tmp_path / "other.jsonl")))
    train(changed, accept_changes=True, quiet=True)
    (edit,) = json.loads((tmp_path / "run" / "run.json").read_text())["edits"]
    assert (edit["added"], edit["removed"], edit["changed"]) == ([], [], ["strings"])
    consumed = rows(tmp_path / "run")
    check_passes(consumed, "units", 60)
    assert of("strings", consumed[: len(consumed) // 4])


def test_a_source_of_the_mix_before_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    file = shutil.copy(demo_files().corpora["strings"], tmp_path)
    first = config(tmp_path, 4, strings=strings(path=file, streaming=True))
    first["loader"] |= {"lanes_per_step": 1, "lane_groups": 1}
    train(first, quiet=True)
    Path(file).unlink()
    second = config(tmp_path, 8)
    second["loader"] |= {"lanes_per_step": 1, "lane_groups": 1}
    with pytest.raises(StreamsftError, match="source strings"):
        train(second, accept_changes=True, quiet=True)


def test_more_than_the_mix_cannot_be_edited_and_not_twice_in_a_window(tmp_path: Path) -> None:
    first = config(tmp_path, 2)
    train(first, quiet=True)
    with pytest.raises(RunError, match="only sources and weights") as error:
        train(first, overrides=["seed=8", "train.steps=9"], accept_changes=True, quiet=True)
    assert "seed: 7 in the state, 8 here" in str(error.value)
    heavier = ["mix.sources.units.weight=2"]
    train(first, overrides=[*heavier, "train.steps=3"], accept_changes=True, quiet=True)
    with pytest.raises(StateError, match="not in force on lane 0 yet"):
        train(first, overrides=["mix.sources.units.weight=5", "train.steps=7"], accept_changes=True, quiet=True)
    train(first, overrides=[*heavier, "train.steps=20"], quiet=True)
    train(first, overrides=["mix.sources.units.weight=5", "train.steps=22"], accept_changes=True, quiet=True)
    edits = json.loads((tmp_path / "run" / "run.json").read_text())["edits"]
    assert [edit["step"] for edit in edits] == [2, 20]


def two_tokens(row: dict[str, Any]) -> dict[str, Any]:
    return {"input_ids": [len(str(row)), 5, 6], "loss_mask": [False, True, True]}


def test_a_function_of_a_removed_source_can_still_be_given(tmp_path: Path) -> None:
    stream = {"streaming": True}
    first = config(tmp_path, 3, strings=strings(**stream))
    second = config(tmp_path, 12)
    for each in (first, second):
        each["loader"] |= {"lanes_per_step": 1, "lane_groups": 1}
    train(first, transforms={"strings": two_tokens}, quiet=True)
    with pytest.raises(StreamsftError, match="source strings: a function made its rows into tokens before the edit"):
        train(second, accept_changes=True, quiet=True)
    train(second, transforms={"strings": two_tokens}, accept_changes=True, quiet=True)
    check_passes(rows(tmp_path / "run"), "units", 60)
