"""The loop in one process: cadence, resuming, stopping, refusals, and what cannot be trained on."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from streamsft.errors import ConfigError, RunError
from streamsft.metrics.sinks import JsonlSink
from streamsft.stream.interleave import Interleave
from streamsft.stream.loader import Loader
from streamsft.stream.packer import Packer
from streamsft.training import snapshot
from streamsft.training.model import tiny_model
from streamsft.training.settings import TrainResult
from tests.fakes import ListSource
from tests.training.runs import (
    LENGTH,
    TIMED,
    VOCABULARY,
    ListSink,
    audit,
    flip,
    make_loader,
    packs_by_step,
    resealed,
    run,
    small_model,
    weights,
)


class Interrupting(ListSink):
    """Does something when the record of a step comes."""

    def __init__(self, step: int, error: Exception | None = None, number: int = 0) -> None:
        super().__init__()
        self.step, self.error, self.number = step, error, number

    def write(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        super().write(step, time, metrics)
        if step == self.step and self.error is not None:
            raise self.error
        if step == self.step and self.number:
            os.kill(os.getpid(), self.number)


def plain(sink: ListSink) -> list[tuple[int, dict[str, float]]]:
    return [(step, {k: v for k, v in r.items() if not k.endswith(TIMED)}) for step, r in sink.records]


def test_one_record_per_log_step_holds_loss_rate_and_data(tmp_path: Path) -> None:
    sink = ListSink()
    result = run(tmp_path, 9, "small", sink=sink, log_every=2, warmup=3)
    assert [step for step, _ in sink.records] == [2, 4, 6, 8, 9]
    for _, record in sink.records:
        assert {"train/loss", "train/lr", "train/grad_norm", "train/skipped_steps", "data_s0/samples"} <= set(record)
    assert sink.records[0][1]["train/lr"] == pytest.approx(1e-2 * 2 / 3)
    assert result == TrainResult(
        steps=9,
        run_dir=tmp_path,
        asked=9,
        first_loss=sink.records[0][1]["train/loss"],
        last_loss=sink.records[-1][1]["train/loss"],
    )
    assert result.last_loss is not None
    assert result.first_loss is not None
    assert result.last_loss < result.first_loss - 0.2
    assert sink.closed == 1
    assert "done: 9 steps" in result.message
    assert result.exit_code == 0


def test_the_audit_has_what_the_loader_gives(tmp_path: Path) -> None:
    run(tmp_path, 5)
    lines = [json.loads(line) for line in audit(tmp_path)]
    for line, batch in zip(lines, make_loader(), strict=False):
        assert (line["step"], line["rank"], line["dp_size"]) == (batch.step, 0, 1)
        assert [p["rows"] for p in line["packs"]] == [[list(row) for row in pack] for pack in batch.rows]
    assert len(lines) == 5


@pytest.mark.parametrize("cut", range(1, 10))
def test_broken_off_after_any_step_it_goes_on_as_if_it_had_not_been(tmp_path: Path, cut: int) -> None:
    whole, broken = ListSink(), Interrupting(cut, KeyError("cut"))
    run(tmp_path / "whole", 9, sink=whole, log_every=1)
    with pytest.raises(KeyError, match="cut"):
        run(tmp_path / "broken", 9, sink=broken, log_every=1)
    broken.step = 0
    result = run(tmp_path / "broken", 9, sink=broken, log_every=1)
    assert result.resumed_from == (cut - 1) // 4 * 4
    assert audit(tmp_path / "broken") == audit(tmp_path / "whole")
    assert plain(broken) == plain(whole)


class Breaking(torch.nn.Module):
    """The small model behind a plain module, with dropout; fails in its forward pass number `at`."""

    def __init__(self, at: int = 0) -> None:
        super().__init__()
        self.inner = small_model()
        self.at = at

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        self.at -= 1
        if self.at == 0:
            raise KeyError("here")
        logits: torch.Tensor = self.inner(**inputs).logits
        return torch.nn.functional.dropout(logits, 0.1)


def tensors(run_dir: Path, name: str) -> list[torch.Tensor]:
    stored = torch.load(run_dir / "checkpoints" / "step-00000009" / name, weights_only=True)
    states = stored["state"].values() if "state" in stored else [stored]
    return [tensor for state in states for tensor in state.values()]


@pytest.mark.parametrize("cut", [3, 5, 8])
def test_after_several_resumes_weights_and_optimizer_have_the_same_bits(tmp_path: Path, cut: int) -> None:
    whole, legs = ListSink(), ListSink()
    run(tmp_path / "whole", 9, Breaking(), sink=whole)
    for at in (cut, 1):
        with pytest.raises(KeyError):
            run(tmp_path / "legs", 9, Breaking(at), sink=legs)
    run(tmp_path / "legs", 9, Breaking(), sink=legs)
    assert audit(tmp_path / "legs") == audit(tmp_path / "whole")
    assert plain(legs) == plain(whole)
    for name in ("model/weights.pt", "optimizer.pt"):
        pairs = zip(tensors(tmp_path / "legs", name), tensors(tmp_path / "whole", name), strict=True)
        assert all(torch.equal(mine, other) for mine, other in pairs)


def test_batch_size_cadences_and_thread_may_change_on_resume(tmp_path: Path) -> None:
    run(tmp_path / "whole", 8)
    run(tmp_path / "legs", 3)
    run(tmp_path / "legs", 5, save_every=1, log_every=3, keep=1, loader=make_loader(background=False))
    run(tmp_path / "legs", 8, micro_batch_size=1, loader=make_loader(workers=1))
    assert audit(tmp_path / "legs") == audit(tmp_path / "whole")
    run(tmp_path / "legs", 10, loader=make_loader(batch=8))
    packs = [pack for step in packs_by_step(tmp_path / "legs").values() for pack in step]
    run(tmp_path / "whole", 12)
    assert packs == [pack for step in packs_by_step(tmp_path / "whole").values() for pack in step]


def test_a_run_that_has_all_its_steps_does_nothing(tmp_path: Path) -> None:
    run(tmp_path, 6)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "checkpoints").rglob("*")}
    for steps in (6, 3):
        result = run(tmp_path, steps)
        assert (result.steps, result.resumed_from, result.stopped_by) == (6, 6, "steps")
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "checkpoints").rglob("*")} == before
    assert len(audit(tmp_path)) == 6
    assert len((tmp_path / "legs.jsonl").read_text().splitlines()) == 1, "it is no resume"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_at_a_step_border_and_the_run_goes_on_from_there(tmp_path: Path, number: int) -> None:
    handler = signal.getsignal(number)
    sink = Interrupting(3, number=number)
    result = run(tmp_path / "run", 40, sink=sink, log_every=1)
    assert (result.stopped_by, result.steps) == (signal.Signals(number).name, 4)
    assert result.exit_code == 128 + number
    assert "saved at step 4" in result.message
    assert signal.getsignal(number) is handler
    assert run(tmp_path / "run", 9, sink=sink, log_every=1).resumed_from == 4
    run(tmp_path / "whole", 9)
    assert audit(tmp_path / "run") == audit(tmp_path / "whole")


def test_a_hole_in_the_audit_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(tmp_path / "run", 4)
    run(tmp_path / "run", 6, audit=False)
    assert "lacks" not in caplog.text
    run(tmp_path / "run", 8)
    assert "ends at step 4, so the audit lacks steps 5 to 6" in caplog.text


def test_fresh_begins_again_beside_the_old_run(tmp_path: Path) -> None:
    run(tmp_path / "run", 6)
    old = audit(tmp_path / "run")
    result = run(tmp_path / "run", 3, fresh=True, sink=lambda: [JsonlSink(tmp_path / "run" / "metrics.jsonl")])
    assert result.moved_to == tmp_path / "run.1"
    assert audit(tmp_path / "run") == old[:3]
    assert audit(tmp_path / "run.1") == old
    assert [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").open()] == [2, 3]


def test_another_seed_or_weight_is_refused_with_both_values(tmp_path: Path) -> None:
    run(tmp_path, 2)
    with pytest.raises(RunError, match=r"(?s)seed: 7 .* 8 .*--fresh"):
        run(tmp_path, 4, loader=make_loader(seed=8))
    with pytest.raises(RunError, match=r"(?s)sources.s0.weight, .*: 0.6+\d* .* 0.75 .*s1.weight, .*: 0.3+\d* .* 0.25"):
        run(tmp_path, 4, loader=make_loader(weights=(3, 1)))
    assert len(audit(tmp_path)) == 2


def test_a_loader_that_was_iterated_is_refused(tmp_path: Path) -> None:
    next(iter(loader := make_loader()))
    with pytest.raises(ConfigError, match=r"up to step 1, and this loop would leave out .*new\.load_state_dict"):
        run(tmp_path, 4, loader=loader)


def test_another_kind_or_shape_of_model_is_refused(tmp_path: Path) -> None:
    run(tmp_path, 2, "tiny")
    for model, now in (("none", "none"), (small_model(), "transformers"), (Breaking(), "module")):
        with pytest.raises(RunError, match=f"model of kind 'tiny', now it is '{now}'"):
            run(tmp_path, 4, model)
    small_model().save_pretrained(tmp_path / "model")
    run(tmp_path / "other", 2, str(tmp_path / "model"))
    tiny_model(VOCABULARY, sequence_length=LENGTH, hidden=64).save_pretrained(tmp_path / "wide")
    with pytest.raises(RunError, match="hidden_size: 32 in the run, 64 now"):
        run(tmp_path / "other", 4, str(tmp_path / "wide"))
    (tmp_path / "model").rename(tmp_path / "moved")
    assert run(tmp_path / "other", 4, str(tmp_path / "moved")).resumed_from == 2
    assert run(tmp_path / "other", 5, str(tmp_path / "gone")).resumed_from == 4


def test_a_model_that_is_not_there_or_too_small_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"train.model: .*nowhere: no such folder"):
        run(tmp_path / "a", 2, str(tmp_path / "nowhere"))
    with pytest.raises(RunError, match="knows 20 token ids, the data has 300"):
        run(tmp_path / "b", 2, tiny_model(20, sequence_length=LENGTH, hidden=32))


def unsupervised_loader(supervised: int) -> Loader:
    """Each row fills a pack; about one in `supervised` rows has labels."""
    rows = [([i, *range(2, 9)], [0] * 7 + [int(i % supervised == 0)]) for i in range(12)]
    taken_at_its_word = type("OfThePackage", (ListSource,), {"__module__": "streamsft.sources.rows"})
    source = taken_at_its_word("rows", rows)
    source.supervised[:] = 1  # so that the packer takes them all
    source.first_supervised[:] = 7
    return Loader(Packer(Interleave([source]), 8, lookahead=0), global_batch_size=1, background=False)


def test_a_step_without_supervised_tokens_changes_no_weight_and_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = ListSink()
    result = run(tmp_path, 12, "small", loader=unsupervised_loader(3), sink=sink, log_every=1, save_every=1, keep=12)
    without = [not batch.supervised_tokens for batch, _ in zip(unsupervised_loader(3), range(12), strict=False)]
    assert 0 < without.count(True) < 12
    assert result.skipped_steps == without.count(True)
    assert len([r for r in caplog.records if "no supervised token" in r.message]) == 1
    assert sink.records[-1][1]["train/skipped_steps"] == result.skipped_steps
    assert ["train/loss" not in r for _, r in sink.records] == without
    assert all(math.isfinite(v) for _, r in sink.records for v in r.values())
    saved = [path.read_bytes() for path in sorted((tmp_path / "checkpoints").glob("step-*/model/model.safetensors"))]
    assert [left == right for left, right in pairwise(saved)] == without[1:]


def test_a_gradient_that_is_not_finite_ends_the_run_before_it_spoils_the_weights(tmp_path: Path) -> None:
    run(tmp_path, 4, "small")
    before = weights(tmp_path)
    poisoned = small_model()
    poisoned.lm_head.register_forward_hook(lambda _, __, output: output * float("nan"))
    run(tmp_path / "b", 4, small_model())
    with pytest.raises(RunError, match=r"step 5: the gradient is not finite.*lower train.lr"):
        run(tmp_path / "b", 8, poisoned)
    assert weights(tmp_path) == before


def test_a_checkpoint_that_cannot_be_written_leaves_the_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path, 4, "small")
    before = weights(tmp_path)

    def full(*_: object) -> None:
        raise RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed")

    with monkeypatch.context() as patch:
        patch.setattr(snapshot, "save_weights", full)
        with pytest.raises(RunError, match=r"step 8 .*took no more bytes .*nothing of it was published"):
            run(tmp_path, 12, "small")
    assert weights(tmp_path) == before
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["latest", "step-00000004"]
    assert run(tmp_path, 12, "small").resumed_from == 4
    assert len(audit(tmp_path)) == 12


def test_a_damaged_checkpoint_says_what_to_remove(tmp_path: Path) -> None:
    run(tmp_path, 8, "small")
    path = tmp_path / "checkpoints" / "step-00000008" / "optimizer.pt"
    path.write_bytes(b"x" * path.stat().st_size)
    resealed(path.parent)
    with pytest.raises(RunError, match=r"step-00000008/optimizer.pt cannot be read(?s:.*)remove .*step-00000008 to go"):
        run(tmp_path, 12, "small")


def digits(path: Path) -> None:
    """Change the last digit of a file."""
    text = path.read_text()
    at = max(text.rfind(digit) for digit in "0123456789")
    path.write_text(text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :])


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    run(folder, 8, "small")
    return folder


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *((name, digits) for name in ("loader.json", "trainer.json", "metrics.json")),
        *((name, flip) for name in ("loader.json", "mix.json", "rng.pt", "optimizer.pt", "model/model.safetensors")),
    ],
)
def test_a_file_that_changed_is_named_with_the_older_checkpoint(
    tmp_path: Path, two_checkpoints: Path, name: str, damage: Callable[[Path], None]
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(two_checkpoints, run_dir)
    path = run_dir / "checkpoints" / "step-00000008"
    damage(path / name)
    before = sorted(run_dir.rglob("*"))
    with pytest.raises(RunError, match=f"damaged: {name} changed since (?s:.*)remove {path} to go on from step-0*4$"):
        run(run_dir, 12, "small", keep=1)
    assert sorted(run_dir.rglob("*")) == before
    if name == "loader.json":
        shutil.rmtree(path)
        assert run(run_dir, 8, "small").resumed_from == 4


def test_without_a_readable_record_the_run_goes_on_from_its_checkpoint(tmp_path: Path, two_checkpoints: Path) -> None:
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    for run_dir in (cut, whole):
        shutil.copytree(two_checkpoints, run_dir)
    record = cut / "run.json"
    content = record.read_bytes()
    record.write_bytes(content[: len(content) // 2])
    with pytest.raises(RunError, match=r"run.json is unreadable: .*; remove it, and .*; or start over with --fresh"):
        run(cut, 12, "small")
    record.unlink()
    assert run(cut, 12, "small").resumed_from == 8
    run(whole, 12, "small")
    assert (audit(cut), weights(cut), record.read_bytes()) == (audit(whole), weights(whole), content)


def test_a_pickle_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    import pickle

    run(tmp_path, 4)
    path = tmp_path / "checkpoints" / "step-00000004" / "rng.pt"
    (tmp_path / "seen").unlink(missing_ok=True)

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return (os.mkdir, (str(tmp_path / "seen"),))

    torch.save([Evil()], path, pickle_module=pickle)
    resealed(path.parent)
    with pytest.raises(RunError, match="cannot be read"):
        run(tmp_path, 8)
    assert not (tmp_path / "seen").exists()
