"""The loop of docs/ray.md trains, and goes on from the checkpoint that it reports.

`benchmarks/ray_train.py` runs it on two workers of a cluster, killing them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import streamsft as ss
from tests.test_docs import ROOT, blocks
from tests.training.runs import rows

pytest.importorskip("ray", reason="ray is not installed")


class KilledError(Exception):
    """What ends a loop in the middle here."""


class Ray:
    """Of Ray Train what the loop asks for: a place for checkpoints, of which the newest is given back."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.reported: list[dict[str, Any]] = []

    def get_checkpoint(self) -> Any:
        from ray.train import Checkpoint

        return Checkpoint.from_directory(self._folder) if self._folder.exists() else None

    def report(self, metrics: dict[str, Any], *, checkpoint: Any) -> None:
        self.reported.append(metrics)
        shutil.rmtree(self._folder, ignore_errors=True)
        with checkpoint.as_directory() as folder:
            shutil.copytree(folder, self._folder)


def documented(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the Python block of the page defines, and what it gives the trainer, without fitting it."""
    from ray.train.torch import TorchTrainer

    given: dict[str, Any] = {}

    def make(self: Any, loop: Any, **kwargs: Any) -> None:
        given.update(kwargs, loop=loop)

    monkeypatch.setattr(TorchTrainer, "__init__", make)
    result = SimpleNamespace(metrics={"step": 0, "loss": 0.0})
    monkeypatch.setattr(TorchTrainer, "fit", lambda self: result)
    (block,) = [block for block in blocks(ROOT / "docs" / "ray.md") if block.language == "python"]
    namespace: dict[str, Any] = {"__name__": "documented"}
    exec(compile("\n" * (block.line - 1) + block.text, "docs/ray.md", "exec"), namespace)
    assert given["loop"] is namespace["train"]
    assert given["run_config"].failure_config.max_failures == 3
    return {**namespace, **given}


def test_the_loop_goes_on_from_what_it_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = documented(monkeypatch)
    assert capsys.readouterr().out == "0 0.0\n"
    store = ss.TokenStore.from_rows(rows(150, 0), name="chat")
    drawn: list[tuple[int, Sequence[Any]]] = []
    killed_at: list[int] = []

    class Watched(ss.Loader):
        def __iter__(self) -> Iterator[ss.Batch]:
            for batch in super().__iter__():
                if killed_at and batch.step == killed_at[0]:
                    raise KilledError(killed_at.pop())
                drawn.append((batch.step, batch.rows))
                yield batch

    class Watching:
        """The library, with these in place of its own."""

        TorchComm, Loader, TokenStore = ss.LocalComm, Watched, SimpleNamespace(open=lambda _: store)

        def __getattr__(self, name: str) -> Any:
            return getattr(ss, name)

    monkeypatch.setitem(page["train"].__globals__, "ss", Watching())
    monkeypatch.setitem(page["train"].__globals__, "prepare_model", lambda model: model)
    settings = {"store": "a folder", "steps": 7, "save_every": 2}

    def run(name: str) -> Ray:
        ray = Ray(tmp_path / name)
        for function in ("get_checkpoint", "report"):
            monkeypatch.setattr(f"ray.train.{function}", getattr(ray, function))
        page["train"](settings)
        return ray

    whole = run("whole")
    assert [metrics["step"] for metrics in whole.reported] == [2, 4, 6, 7]
    undisturbed = dict(drawn)
    drawn.clear()
    killed_at[:] = [6]
    with pytest.raises(KilledError):
        run("broken")
    assert [step for step, _ in drawn] == [1, 2, 3, 4, 5]
    broken = run("broken")
    assert [step for step, _ in drawn[5:]] == [5, 6, 7]
    assert all(undisturbed[step] == rows for step, rows in drawn)
    assert broken.reported == whole.reported[2:]
