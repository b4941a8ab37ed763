"""Ranks that were started for different runs are refused at once; what a node may have of its own is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from streamsft.comm import Comm, ThreadComm
from streamsft.commands.alike import check_alike, check_shared
from streamsft.commands.console import make_console
from streamsft.commands.train import _train
from streamsft.config import load_config
from streamsft.errors import RunError, StreamsftError
from tests.pipelines import small_config


def refused(ranks: int, check: Callable[[Comm], object]) -> list[StreamsftError]:
    """What each rank is told."""

    def told(comm: Comm) -> StreamsftError:
        with pytest.raises(StreamsftError) as caught:
            check(comm)
        return caught.value

    return ThreadComm.run(ranks, told)


def started(config: dict[str, Any], comm: Comm, *overrides: str, fresh: bool = False) -> None:
    _train(
        config, comm, overrides, {}, (), fresh=fresh, accept_changes=False, verify=False, quiet=True,
        console=make_console(),
    )  # fmt: skip


def test_each_key_that_differs_is_named_with_the_values_of_two_ranks_before_anything_is_made(tmp_path: Path) -> None:
    given: Sequence[Sequence[str]] = (
        ["metrics.log_every=5"],
        ["metrics.log_every=5"],
        ["train.save_every=3", "mix.sources.units.weight={0: 1, 9: 2}", "train.lr=0.1", "eval.sets.a.store=/a"],
    )
    config = small_config(tmp_path)
    errors = refused(3, lambda comm: started(config, comm, *given[comm.rank], fresh=comm.rank == 1))
    assert [error.shared for error in errors] == [True] * 3
    head, *lines = str(errors[1]).splitlines()
    assert head.startswith("the ranks were started for different runs; give all nodes the same config")
    assert lines == [
        '  mix.sources.units.weight: 1.0 on rank 0, {"0": 1.0, "9": 2.0} on rank 2',
        "  metrics.log_every: 5 on rank 0, 2 on rank 2",
        '  eval: null on rank 0, {"every": null, "sets": {"a": {"format": null, "columns": … on rank 2',
        "  train.save_every: 2 on rank 0, 3 on rank 2",
        "  train.lr: 0.0003 on rank 0, 0.1 on rank 2",
        "  --fresh: false on rank 0, true on rank 1",
    ]
    assert not list(tmp_path.iterdir())


def test_of_many_differences_some_are_shown(tmp_path: Path) -> None:
    def check(comm: Comm) -> None:
        check_alike(load_config(small_config(tmp_path)), {f"--{n}": comm.rank for n in range(30)}, comm)

    assert str(refused(2, check)[0]).endswith("  --19: 0 on rank 0, 1 on rank 1\n  and 10 more")


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_places_and_what_is_of_one_process_may_differ(tmp_path: Path, parallel: str) -> None:
    def check(comm: Comm) -> None:
        here = tmp_path / str(comm.rank)
        config = small_config(
            tmp_path,
            cache={"dir": str(here)} if comm.rank else False,
            mix={"sources": {
                "a": {"store": f"{here}/a.parquet", "shuffle": "row_groups", "tier": {"dir": str(here), "budget": 9}},
                "b": {"sources": {"c": {"path": str(here)}}},
            }},
            loader={"workers": comm.rank, "timeout": 1 + comm.rank, "micro_batch_size": 1 + comm.rank},
            metrics={"sinks": ["wandb"] if comm.rank else []},
            train={"model": f"/{comm.rank}", "steps": 4, "run_dir": str(here), "parallel": parallel},
        )  # fmt: skip
        check_alike(load_config(config), {}, comm)

    if parallel == "ddp":
        ThreadComm.run(2, check)
    else:  # ranks meet in each forward pass
        assert str(refused(2, check)[0]).endswith(":\n  loader.micro_batch_size: 1 on rank 0, 2 on rank 1")


@pytest.mark.parametrize("there", [True, False])
def test_the_run_directory_is_one_folder_under_any_name(tmp_path: Path, there: bool) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "mount").symlink_to(tmp_path / "disk")
    if there:
        (tmp_path / "disk" / "runs" / "a").mkdir(parents=True)
    names = [tmp_path / "disk" / "runs" / "a", tmp_path / "mount" / "runs" / "a"]
    ThreadComm.run(2, lambda comm: check_shared(names[comm.rank], comm))
    assert len(list((tmp_path / "disk").rglob("*"))) == (2 if there else 0)


@pytest.mark.parametrize("other", ["runs/b", "elsewhere/runs/a", "a"])
def test_a_run_directory_of_each_node_is_refused(tmp_path: Path, other: str) -> None:
    errors = refused(
        2,
        lambda comm: started(small_config(tmp_path), comm, f"train.run_dir={tmp_path / ('runs/a', other)[comm.rank]}"),
    )
    assert isinstance(errors[0], RunError)
    for error, prefix in zip(errors, ("rank 1: ", ""), strict=True):
        assert str(error).startswith(f"{prefix}train.run_dir: {tmp_path / other} on ")
        assert f"is another folder than that of rank 0, {tmp_path / 'runs' / 'a'} on " in str(error)
    assert not [path for path in tmp_path.rglob("*") if "cache" not in path.parts]
