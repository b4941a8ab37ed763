"""Every total that a run records equals a count of its audit and stores, over kills, resumes, schedules and edits."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from streamsft.comm import ThreadComm
from streamsft.commands.console import make_console
from streamsft.commands.tokenize import tokenize
from streamsft.commands.train import _train
from streamsft.pages.runs import read_run
from tests.metrics.recount import recount
from tests.pipelines import small_config


def leg(config: dict[str, Any], steps: int, ranks: int, *, accept_changes: bool = False) -> None:
    ThreadComm.run(
        ranks,
        lambda comm: _train(
            config, comm, [f"train.steps={steps}"], {}, (),
            fresh=False, accept_changes=accept_changes, verify=False, quiet=True, console=make_console(),
        ),
    )  # fmt: skip


def killed(run_dir: Path, step: int) -> None:
    """Leave the run as a kill behind its last record does: that has no checkpoint, an earlier one has."""
    (run_dir / "checkpoints" / "latest").write_text(f"step-{step:08d}\n")


def test_totals_equal_a_recount_of_audit_and_stores(tmp_path: Path) -> None:
    config = small_config(tmp_path, sequence_length=96)
    sources = config["mix"]["sources"]
    sources["arithmetic"]["weight"] = {"0": 1, "12": 4}
    talk = {"weight": 2, "sources": {name: sources[name] for name in ("units", "strings")}}
    config["mix"]["sources"] = {"arithmetic": sources["arithmetic"], "talk": talk}
    config["packing"] = {"lookahead": 32}
    config["train"] |= {"save_every": 3}
    run_dir = tmp_path / "run"
    leg(config, 8, ranks=2)
    killed(run_dir, 6)
    leg(config, 11, ranks=1)
    config["mix"]["sources"]["more"] = {**sources["units"], "weight": 2}
    leg(config, 18, ranks=2, accept_changes=True)
    stores = tokenize(config, console=Console(file=io.StringIO()))
    nodes = {"talk": ["units", "strings"], "mix": ["arithmetic", "units", "strings", "more"]}
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    last = records[-1]["metrics"]
    expected = recount(run_dir, stores, nodes, sequence_length=96)
    assert {key: last[key] for key in expected} == expected
    assert last["data_more/samples"] > 0
    assert last["data_strings/truncated"] > 0
    for record in records[1:-1]:
        until = recount(run_dir, stores, nodes, sequence_length=96, after=record["step"])
        assert last["data/tokens"] - record["metrics"]["data/tokens"] == until["data/tokens"]
    run = read_run(run_dir)
    assert sum(run.histograms["data_mix/length"].values()) == expected["data/documents"]
    assert [line["step"] for line in run.legs] == [0, 6, 11]
    assert [line["ranks"] for line in run.legs] == [2, 1, 2]
