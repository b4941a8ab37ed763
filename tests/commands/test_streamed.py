"""Training on a streamed mix in real processes: killed and resumed, on other ranks and workers, with steps left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from streamsft.commands.train import train
from streamsft.errors import ConfigError
from tests.pipelines import small_config
from tests.training.forks import in_fork, in_ranks
from tests.training.runs import packs_by_step

STEPS = 12


def config(folder: Path, *, steps: int = STEPS, workers: int = 0, **train_keys: Any) -> dict[str, Any]:
    """The demo's three corpora, two of them streamed, on 4 x 4 lanes with short windows."""
    made = small_config(folder, packing={"lookahead": 24}, sequence_length=192)
    for name, source in made["mix"]["sources"].items():
        if name != "units":
            source |= {"streaming": True, "shuffle_window": 5}
    made["mix"]["unit"] = "tokens"
    made["mix"]["sources"]["units"]["weight"] = {"0": 1, "10": 3}
    loader = {"global_batch_size": 4, "lanes_per_step": 4, "lane_groups": 4, "workers": workers}
    made["loader"] = loader | ({"start_method": "fork"} if workers else {})
    made["train"] |= {"steps": steps, "save_every": 3, "run_dir": str(folder / "run"), **train_keys}
    return made


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Any]]:
    """The packs of each step of a run of one process that was never interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    train(config(folder, steps=STEPS + 4), quiet=True)
    packs = packs_by_step(folder / "run")
    assert {source for step in packs.values() for pack in step for source, _, _ in pack["rows"]} == {
        "arithmetic",
        "units",
        "strings",
    }
    return packs


def first(count: int, packs: dict[int, list[Any]]) -> dict[int, list[Any]]:
    return {step: packs[step] for step in range(1, count + 1)}


def test_a_streamed_mix_that_is_killed_and_resumed_consumes_what_one_run_consumes(
    tmp_path: Path, whole: dict[int, list[Any]]
) -> None:
    run = tmp_path / "run"
    left: list[int] = []
    for number, workers in ((75, 2), (75, 0), (90, 4)):
        made = config(tmp_path, workers=workers)
        assert in_fork(lambda made=made: train(made, quiet=True), below=run, kill_at=number) == -9
        left.append(max(packs_by_step(run)))
    assert max(left) < STEPS
    assert min(left) > 3
    assert in_fork(lambda: train(config(tmp_path, workers=1), quiet=True)) == 0
    assert packs_by_step(run) == first(STEPS, whole)


def test_ranks_and_workers_that_the_lanes_allow_make_the_same_steps(
    tmp_path: Path, whole: dict[int, list[Any]]
) -> None:
    """1 x 4, then 2 x 2, then 4 x 1 processes, each going on where the last stopped."""
    assert in_fork(lambda: train(config(tmp_path, steps=4, workers=4), quiet=True)) == 0
    assert in_ranks(2, lambda: train(config(tmp_path, steps=8, workers=2), quiet=True)) == [0, 0]
    assert in_ranks(4, lambda: train(config(tmp_path, workers=1), quiet=True)) == [0] * 4
    assert packs_by_step(tmp_path / "run") == first(STEPS, whole)
    with pytest.raises(ConfigError, match=r"loader\.workers 3 does not divide loader\.lane_groups 4"):
        train(config(tmp_path, workers=3), quiet=True)


@pytest.mark.parametrize("workers", [0, 2])
def test_steps_to_skip_leave_exactly_their_data_out(tmp_path: Path, whole: dict[int, list[Any]], workers: int) -> None:
    train(config(tmp_path, steps=5), quiet=True)
    latest = tmp_path / "run" / "checkpoints" / "latest"
    assert latest.read_text() == "step-00000005\n"
    latest.write_text("step-00000003\n")
    skipping = config(tmp_path, steps=8, workers=workers, skip_steps=[[5, 7], [9, 9]])
    train(skipping, quiet=True)
    train(config(tmp_path, skip_steps=[[5, 7], [9, 9]]), quiet=True)  # going on behind them
    data = [1, 2, 3, 4, 8, 10, 11, 12, 13, 14, 15, 16]
    assert packs_by_step(tmp_path / "run") == {step: whole[of] for step, of in enumerate(data, 1)}
    lines = [json.loads(line) for line in (tmp_path / "run" / "audit" / "rank-0.jsonl").read_text().splitlines()]
    assert [line.get("data_step", line["step"]) for line in lines] == data
    assert [line["step"] for line in lines if "data_step" not in line] == [1, 2, 3, 4]
    state = json.loads((tmp_path / "run" / "checkpoints" / "step-00000012" / "loader.json").read_text())
    assert (state["step"], state["data_step"]) == (12, 16)
