"""Checkpoints of divided weights: read by any number of ranks, written beside training, killed at any moment."""

from __future__ import annotations

import errno
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from streamsft.comm import Comm, current
from streamsft.errors import ConfigError, RunError
from streamsft.metrics.sinks import JsonlSink
from streamsft.training.checkpoint import Checkpoints
from streamsft.training.evaluating import Evaluation
from streamsft.training.settings import TrainSettings
from streamsft.training.sharded import ShardedSaver, load_sharded
from streamsft.training.shardfiles import ShardWriter
from streamsft.training.sharding import optimizer_tensors, place_model, weight_tensors
from streamsft.training.stored import StoredCheckpoint
from tests.training.forks import in_fork, in_ranks
from tests.training.runs import audit, flip, make_loader, packs_by_step, run, small_model, weights
from tests.training.test_evaluating import sets
from tests.training.test_sharding import Blocks, whole

STEPS = 12


@pytest.fixture(scope="module", autouse=True)
def _everything_imported() -> None:
    """What is imported before the forks need not be imported in each."""
    make_loader()
    small_model()


def leg(run_dir: Path, steps: int, parallel: str = "fsdp", *, async_save: bool = False) -> None:
    run(
        run_dir,
        steps,
        "small",
        comm=current(),
        sink=lambda: [JsonlSink(run_dir / "metrics.jsonl")],
        parallel=parallel,
        async_save=async_save,
        save_every=3,
        log_every=1,
        keep=2,
        evaluation=Evaluation(sets=sets(current()), every=3),
    )


def losses(run_dir: Path) -> list[float]:
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    return [line["metrics"]["train/loss"] for line in lines]


def evaluations(run_dir: Path) -> list[float]:
    """The losses behind the steps that a run evaluates, whenever it is stopped."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [line["metrics"]["eval/loss"] for line in lines if line["step"] % 3 == 0]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process, never stopped."""
    run_dir = tmp_path_factory.mktemp("whole")
    assert in_fork(lambda: leg(run_dir, STEPS, "ddp")) == 0
    return run_dir


def check_same(run_dir: Path, uninterrupted: Path) -> None:
    assert packs_by_step(run_dir) == packs_by_step(uninterrupted)
    assert losses(run_dir) == pytest.approx(losses(uninterrupted), abs=1e-4)
    assert evaluations(run_dir) == pytest.approx(evaluations(uninterrupted), abs=1e-4)


def test_from_two_ranks_to_four_to_one_and_from_and_to_undivided_weights(tmp_path: Path, uninterrupted: Path) -> None:
    assert in_ranks(2, lambda: leg(tmp_path, 4)) == [0] * 2
    assert in_ranks(4, lambda: leg(tmp_path, 7, async_save=True)) == [0] * 4
    assert in_fork(lambda: leg(tmp_path, 9, async_save=True)) == 0
    assert in_fork(lambda: leg(tmp_path, 10, "ddp")) == 0
    assert in_ranks(2, lambda: leg(tmp_path, STEPS)) == [0] * 2
    check_same(tmp_path, uninterrupted)
    kinds = {step: Checkpoints(tmp_path).of(step).in_parts for step in Checkpoints(tmp_path).steps}
    assert kinds == {10: False, 12: True}
    names = {path.suffix for path in (Checkpoints(tmp_path).of(12).path / "state").iterdir()}
    assert names == {".safetensors", ".json"}  # nothing that is unpickled


def test_killed_twice_while_writing_in_the_background_it_goes_on(tmp_path: Path, uninterrupted: Path) -> None:
    """Killed before the index is there, and when the checkpoint is there but for its name."""
    below = tmp_path / "checkpoints" / ".partial-step-00000006" / "state"
    for kill_at in (3, 9):
        killed = in_ranks(2, lambda: leg(tmp_path, STEPS, async_save=True), below=below, kill_at=kill_at)
        assert killed[0] == -9
        assert killed[1] != 0
        stored = Checkpoints(tmp_path).newest()
        assert stored is not None
        assert stored.step == 3
        assert (below / "index.json").exists() == (kill_at == 9)
    assert in_fork(lambda: leg(tmp_path, STEPS, async_save=True)) == 0
    check_same(tmp_path, uninterrupted)
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["latest", "step-00000009", "step-00000012"]


def test_a_model_from_a_folder_goes_on_with_the_bits_of_an_undivided_run(tmp_path: Path) -> None:
    model = tmp_path / "model"
    small_model().save_pretrained(model)  # type: ignore[operator]
    parts, undivided = tmp_path / "parts", tmp_path / "undivided"
    run(undivided, 5, str(model))
    for steps, parallel in ((2, "fsdp"), (4, "fsdp"), (5, "ddp")):
        run(parts, steps, str(model), parallel=parallel)
    assert weights(parts) == weights(undivided)
    assert audit(parts) == audit(undivided)


def written_while_it_changes(folder: Path, comm: Comm) -> dict[str, torch.Tensor]:
    """Begin to write a model and its optimizer, change all of both, and let the writing go on; what they were."""
    model = Blocks()
    place_model(model, comm, divided=True, new=True)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    tensors = {**weight_tensors(model), **optimizer_tensors(model, optimizer)}
    before = {name: whole(tensor).clone() for name, tensor in tensors.items()}
    changed, write = threading.Event(), ShardWriter.write_data

    def late(writer: ShardWriter, *arguments: Any) -> Any:
        assert changed.wait(60)
        return write(writer, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ShardWriter, "write_data", late)
        with ShardedSaver(comm, background=True) as saver:
            saver.save(folder, model, optimizer, done=lambda _: (folder / "done").touch(), failed=as_run_error)
            for tensor in tensors.values():
                tensor.zero_()
            assert not (folder / "done").exists()
            changed.set()
    assert (folder / "done").exists()
    return before


def test_later_steps_do_not_change_what_is_written(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()

    def rank() -> None:
        before = written_while_it_changes(state, current())
        if current().rank == 0:
            torch.save(before, tmp_path / "before.pt")

    assert in_ranks(2, rank) == [0, 0]
    before = torch.load(tmp_path / "before.pt", weights_only=True)
    model = Blocks()
    optimizer = torch.optim.AdamW(model.parameters())
    load_sharded(stored_at(tmp_path), model, optimizer, current())
    after = {**weight_tensors(model), **optimizer_tensors(model, optimizer)}
    assert after.keys() == before.keys()
    for name, tensor in before.items():
        assert torch.equal(after[name], tensor), name


def as_run_error(error: BaseException) -> RunError:
    return RunError(str(error))


def stored_at(path: Path) -> StoredCheckpoint:
    return StoredCheckpoint(path=path, step=1, fingerprint={}, model="module", digests={})


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    model = Blocks()
    optimizer = torch.optim.AdamW(model.parameters())
    with ShardedSaver(current(), background=False) as saver:
        saver.save(state, model, optimizer, done=lambda _: None, failed=as_run_error)
    other = Blocks()
    other.register_parameter("more", torch.nn.Parameter(torch.ones(2)))
    with pytest.raises(RunError, match=r"do not fit the model: one of them alone has more"):
        load_sharded(stored_at(tmp_path), other, torch.optim.AdamW(other.parameters()), current())
    wider = Blocks()
    wider.out = torch.nn.Linear(5, 302)
    with pytest.raises(RunError, match=r"state do not fit the model, or are damaged: Size mismatch"):
        load_sharded(stored_at(tmp_path), wider, torch.optim.AdamW(wider.parameters()), current())
    (state / "index.json").write_text("{")
    with pytest.raises(RunError, match=r"state/index.json cannot be read"):
        load_sharded(stored_at(tmp_path), model, optimizer, current())


@pytest.mark.parametrize("background", [False, True])
def test_a_disk_that_is_full_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, background: bool
) -> None:
    write, wrote = ShardWriter.write_data, []

    def full(writer: ShardWriter, *arguments: Any) -> Any:
        wrote.append(writer)
        if len(wrote) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(writer, *arguments)

    monkeypatch.setattr(ShardWriter, "write_data", full)
    with pytest.raises(
        RunError, match=r"step 6 could not be written to (?s:.*)No space left(?s:.*)goes on from step 3"
    ):
        leg(tmp_path, 7, async_save=background)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["latest", "step-00000003"]
    leg(tmp_path, 7, async_save=background)
    assert len(audit(tmp_path)) == 7


def test_ranks_alike_refuse_a_part_that_changed(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"

    def train() -> None:
        leg(run_dir, 3)

    assert in_ranks(2, train) == [0, 0]
    path = run_dir / "checkpoints" / "step-00000003"
    flip(path / "state" / "rank-00001.safetensors")

    def refused() -> None:
        with pytest.raises(RunError, match=r"state/rank-00001\.safetensors changed since it was written"):
            leg(run_dir, 6)

    assert in_ranks(2, refused) == [0, 0]


def test_settings_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="async_save is for parallel: fsdp"):
        TrainSettings(steps=1, run_dir=tmp_path, async_save=True)
    with pytest.raises(ConfigError, match="parallel is 'zero'"):
        TrainSettings(steps=1, run_dir=tmp_path, parallel="zero")  # type: ignore[arg-type]
