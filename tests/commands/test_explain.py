"""A step is explained as its audit line has it, whatever topology it ran on; a row is found where it was given."""

from __future__ import annotations

import io
import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from streamsft.build import build
from streamsft.build_sources import build_sources
from streamsft.cli import app
from streamsft.commands.explain import explain
from streamsft.commands.explain_run import last_step
from streamsft.commands.explained import ExplainedStep
from streamsft.commands.find_row import find_row
from streamsft.commands.train import train
from streamsft.config import load_config
from streamsft.encoders import Encoders
from streamsft.errors import ConfigError, DataError, RunError, StreamsftError
from streamsft.types import Shard
from tests.commands.audits import audit_lines
from tests.pipelines import small_config


def plain() -> Console:
    return Console(file=io.StringIO(), width=140, no_color=True, highlight=False)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def config(folder: Path, **train: Any) -> dict[str, Any]:
    made = small_config(folder, sequence_length=120, packing={"lookahead": 50})
    made["train"] |= {"steps": 60, "save_every": 20, **train}
    return made


def assert_is_audited(step: ExplainedStep, run: Path) -> None:
    lines = audit_lines(run)[step.step]
    audited = [pack for line in lines for pack in line["packs"]]
    assert [{"digest": pack.digest, "rows": pack.rows} for pack in step.packs] == audited
    assert step.data_step == lines[0].get("data_step", step.step)


def test_steps_are_those_of_the_audit(tmp_path: Path) -> None:
    made = config(tmp_path)
    made["loader"]["workers"] = 2
    train(made, quiet=True)
    made["loader"]["workers"] = 0
    for step in (1, 2, 17, 33, 60):
        whole = explain(made, step, ranks=2, console=plain())
        assert_is_audited(whole, tmp_path / "run")
        parts = [explain(made, step, rank=rank, ranks=2, console=plain()).packs for rank in range(2)]
        assert parts[0] + parts[1] == whole.packs
        assert_is_audited(explain(step=step, run=tmp_path / "run", console=plain()), tmp_path / "run")


def test_ranks_are_given_the_packs_that_are_said_to_be_theirs_when_they_are_balanced(tmp_path: Path) -> None:
    made = load_config(config(tmp_path, steps=3), ["loader.balance=attention"])
    encoders = Encoders(made)
    sources = build_sources(made, encoders)
    whole = explain(made, 3, ranks=2, console=plain())
    assert [pack.rank for pack in whole.packs] != [0, 0, 1, 1], "an order that would be the same without"
    for rank in range(2):
        loader = build(made, sources, encoders, dp=Shard(rank, 2)).loader
        batch = list(islice(loader, 3))[-1]
        packs = explain(made, 3, rank=rank, ranks=2, console=plain()).packs
        assert [pack.rows for pack in packs] == [list(map(list, pack)) for pack in batch.rows]
        assert packs == tuple(pack for pack in whole.packs if pack.rank == rank)


@pytest.mark.parametrize("step", [2, 20, 21])
def test_a_run_of_another_stream_is_refused_at_each_of_its_steps(step: int, tmp_path: Path) -> None:
    made = config(tmp_path, steps=21)
    train(made, quiet=True)
    with pytest.raises(StreamsftError, match="sequence_length: 120 in the state, 100 here"):
        explain({**made, "sequence_length": 100}, step, run=tmp_path / "run", console=plain())


def test_documents_lie_where_it_is_said(tmp_path: Path) -> None:
    console = plain()
    step = explain(config(tmp_path), 5, decode=True, console=console)
    shown = text_of(console)
    for pack in step.packs:
        ends = [one.slot + one.length for one in pack.documents]
        assert [one.slot for one in pack.documents] == [0, *ends[:-1]]
        assert ends[-1] <= pack.slots
        assert f"digest {pack.digest}" in shown
        for one in pack.documents:
            assert f"{one.source}:{one.row}" in shown
            assert one.place.startswith(one.source)
            assert f"slots {one.slot}–{one.slot + one.length - 1}" in shown
    assert "⟦" in shown
    assert json.loads(json.dumps(step.to_json()))["packs"][0]["rows"] == step.packs[0].rows


def test_skipped_steps_are_left_out(tmp_path: Path) -> None:
    made = config(tmp_path, skip_steps=[[2, 4], [30, 31]])
    train(made, quiet=True)
    for step in (1, 2, 26, 27, 40, 60):
        assert_is_audited(explain(made, step, console=plain()), tmp_path / "run")
        assert_is_audited(explain(step=step, run=tmp_path / "run", console=plain()), tmp_path / "run")


def test_a_run_whose_mix_was_edited_is_explained_under_the_mix_of_each_step(tmp_path: Path) -> None:
    made = config(tmp_path, steps=22, save_every=11, keep=9)
    train(made, quiet=True)
    made["train"]["steps"] = 50
    made["mix"]["sources"]["arithmetic"]["weight"] = 0.5
    del made["mix"]["sources"]["strings"]
    train(made, accept_changes=True, quiet=True)
    for step in (5, 12, 22, 23, 24, 30, 45, 50):
        assert_is_audited(explain(step=step, run=tmp_path / "run", console=plain()), tmp_path / "run")
    for checkpoint in (tmp_path / "run" / "checkpoints").glob("step-*[12]"):
        for file in checkpoint.iterdir():
            file.unlink()
        checkpoint.rmdir()
    with pytest.raises(RunError, match="the mix of step 5 was edited behind step 22"):
        explain(step=5, run=tmp_path / "run", console=plain())


def test_a_streamed_mix_is_explained_from_the_nearest_checkpoint(tmp_path: Path) -> None:
    made = config(tmp_path, steps=24, save_every=8)
    made["mix"]["sources"]["units"]["streaming"] = True
    train(made, quiet=True)
    for step in (3, 8, 9, 20):
        assert_is_audited(explain(step=step, run=tmp_path / "run", console=plain()), tmp_path / "run")
    assert_is_audited(explain(made, 3, console=plain()), tmp_path / "run")
    with pytest.raises(ConfigError, match="units is read in order"):
        find_row(made, "arithmetic:3", console=plain())


@pytest.mark.parametrize("lanes", [{}, {"lanes_per_step": 2, "lane_groups": 3}])
def test_a_row_is_found_in_the_steps_that_the_audit_has_it_in(lanes: dict[str, int], tmp_path: Path) -> None:
    made = config(tmp_path, skip_steps=[[4, 6]])
    made["loader"] |= lanes
    train(made, quiet=True)
    row = ["arithmetic", 7]
    audited = [
        (lines[0].get("data_step", step), number, triple[2])
        for step, lines in audit_lines(tmp_path / "run").items()
        for number, pack in enumerate(pack for line in lines for pack in line["packs"])
        for triple in pack["rows"]
        if triple[:2] == row
    ]
    console = plain()
    found = find_row(made, "arithmetic:7", console=console)
    assert [one[:3] for one in found] == sorted(audited)
    assert len(found) > 1
    assert "arithmetic:7 in 60 steps" in text_of(console)
    assert find_row(made, "arithmetic:7", steps=1, console=plain()) == [one for one in found if one.step == 1]


def test_rows_and_steps_that_are_not_there_are_refused(tmp_path: Path) -> None:
    made = config(tmp_path)
    for row, expected in (("arithmetic:30", "is not in its store"), ("arithmetic:x", "--find"), ("x:1", "no source")):
        with pytest.raises((ConfigError, DataError), match=expected):
            find_row(made, row, console=plain())
    with pytest.raises(ConfigError, match="counted from 1"):
        explain(made, 0, console=plain())
    with pytest.raises(ConfigError, match="ranks are numbered 0 to 1"):
        explain(made, 1, rank=2, ranks=2, console=plain())
    with pytest.raises(ConfigError, match="does not divide"):
        explain(made, 1, rank=0, ranks=3, console=plain())
    with pytest.raises(RunError, match=r"config.json cannot be read"):
        explain(step=1, run=tmp_path, console=plain())
    with pytest.raises(RunError, match="give a config"):
        explain(step=1, console=plain())


def test_a_step_that_the_run_has_not_made_is_told_apart(tmp_path: Path) -> None:
    made = config(tmp_path, steps=21)
    train(made, quiet=True)
    console = plain()
    ahead = explain(step=25, run=tmp_path / "run", console=console)
    assert (ahead.made, ahead.run_step) == (False, 21)
    assert "step 25 has not been made: " in text_of(console)
    assert "tells of steps up to 21; this is what it will be given" in text_of(console)
    assert {key: ahead.to_json()[key] for key in ("made", "run_step")} == {"made": False, "run_step": 21}
    console = plain()
    assert explain(step=21, run=tmp_path / "run", console=console).made is True
    assert "has not been made" not in text_of(console)
    assert explain(made, 25, console=plain()).to_json()["made"] is None
    train(made, overrides=["train.steps=25"], quiet=True)
    assert_is_audited(ahead, tmp_path / "run")


def test_what_a_killed_run_wrote_last_is_found_behind_a_line_that_was_cut(tmp_path: Path) -> None:
    (tmp_path / "audit").mkdir()
    assert last_step(tmp_path) == 0
    (tmp_path / "metrics.jsonl").write_text('{"step": 3}\n{"step": 7}\n{"step": 9')
    assert last_step(tmp_path) == 7
    long = json.dumps({"step": 8, "packs": ["x" * 200_000]})
    (tmp_path / "audit" / "rank-0.jsonl").write_text(f'{{"step": 7}}\n{long}\n{{"st')
    assert last_step(tmp_path) == 8
    (tmp_path / "metrics.jsonl").write_text("nonsense\n")
    with pytest.raises(RunError, match=r"metrics\.jsonl: the last line is no record"):
        last_step(tmp_path)


def test_places_are_rows_and_not_lines(tmp_path: Path) -> None:
    made = config(tmp_path)
    text = Path(made["mix"]["sources"]["arithmetic"]["path"]).read_text()
    (tmp_path / "gaps.jsonl").write_text("\n\n" + text)
    made["mix"]["sources"]["arithmetic"]["path"] = str(tmp_path / "gaps.jsonl")
    console = plain()
    found = [one for pack in explain(made, 5, console=console).packs for one in pack.documents]
    one = next(one for one in found if one.source == "arithmetic")
    assert one.place.endswith(f"gaps.jsonl:{one.row}")
    assert f"gaps.jsonl, row {one.row}" in "".join(text_of(console).split("\n")).replace("  ", " ")


def test_a_run_that_is_not_there_is_told_once(tmp_path: Path) -> None:
    with pytest.raises(RunError) as raised:
        explain(step=1, run=tmp_path / "nix", console=plain())
    assert str(raised.value) == (
        f"{tmp_path}/nix/config.json cannot be read: No such file or directory; give the directory of a run of "
        "`streamsft train`"
    )


@pytest.mark.parametrize(
    ("options", "unused"),
    [(("--step", "1", "--steps", "3"), "--steps"), (("--find", "units:1", "--rank", "0"), "--rank"),
     (("--find", "units:1", "--ranks", "2"), "--ranks"), (("--find", "units:1", "--decode"), "--decode")],
)  # fmt: skip
def test_an_option_that_would_change_nothing_is_refused(options: tuple[str, ...], unused: str) -> None:
    result = CliRunner().invoke(app, ["explain", "none.yaml", *options])
    assert (result.exit_code, result.output) == (
        2,
        f"error: explain: {unused} is of no use with {options[0]}; leave it out\n",
    )
