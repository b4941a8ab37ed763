"""`transformers.Trainer` on a stream: exact resumes, right gradients, refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import streamsft as ss
from streamsft.errors import ConfigError, RunError, StateError
from streamsft.integrations.trainer import StreamTrainer
from streamsft.training.loss import token_loss_sum
from streamsft.types import Shard
from tests.integrations.runs import BrokenError, Losses, make_trainer, parameters
from tests.training.runs import make_loader, small_model


def broken_at(trainer: StreamTrainer, step: int) -> StreamTrainer:
    """Make `trainer` fail in its step `step`."""
    real = trainer.training_step

    def failing(*args: Any, **kwargs: Any) -> Any:
        if trainer.state.global_step + 1 == step:
            raise BrokenError
        return real(*args, **kwargs)

    trainer.training_step = failing  # type: ignore[method-assign]
    return trainer


def test_a_run_that_is_broken_off_twice_goes_on_to_the_same_losses_and_weights(tmp_path: Path) -> None:
    whole = make_trainer(tmp_path / "whole", callbacks=[kept := Losses()])
    whole.train()
    losses: dict[int, float] = {}
    for step in (4, 6, None):
        trainer = make_trainer(tmp_path / "legs", callbacks=[leg := Losses()])
        if step is None:
            trainer.train(resume_from_checkpoint=True)
        else:
            with pytest.raises(BrokenError):
                broken_at(trainer, step).train(resume_from_checkpoint=trainer.last_checkpoint())
        losses |= leg.losses
    assert losses == kept.losses
    assert all(map(torch.equal, parameters(trainer.model), parameters(whole.model)))
    last = [json.loads((tmp_path / name / "checkpoint-6" / "stream.json").read_text()) for name in ("whole", "legs")]
    assert last[0]["loader"] == last[1]["loader"]
    assert leg.metrics[6]["data/samples"] == kept.metrics[6]["data/samples"] > 0
    assert "data/samples" not in json.dumps(trainer.state.log_history)


def test_the_gradient_is_that_of_all_tokens_whatever_the_micro_batches(tmp_path: Path) -> None:
    batch = next(iter(make_loader()))
    model = small_model()
    (token_loss_sum(model, batch) / batch.supervised_tokens).backward()
    expected = [p.grad for p in model.parameters()]
    for size in (1, 3, 4):
        trainer = make_trainer(tmp_path, 1, size=size, settings={"optim": "sgd", "max_grad_norm": 0.0, "save_steps": 9})
        before = parameters(trainer.model)
        trainer.train()
        after = parameters(trainer.model)
        assert trainer.args.gradient_accumulation_steps == -(-4 // size)
        for old, new, gradient in zip(before, after, expected, strict=True):
            assert gradient is not None
            assert torch.allclose((old - new) / 1e-2, gradient, atol=1e-5)


def test_a_step_without_supervised_tokens_is_no_nan(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, 1)
    empty = {name: torch.full((1, 4), -100 if name == "labels" else 1) for name in ("input_ids", "labels")}
    _, count = trainer.get_batch_samples(iter([empty]), 1, trainer.args.device)
    assert float(count) == 1


def test_a_finished_run_trains_no_step_more(tmp_path: Path) -> None:
    make_trainer(tmp_path, 2).train()
    again = make_trainer(tmp_path, 2)
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == again._steps.step == 2


def test_a_checkpoint_that_was_not_finished_is_passed_over(tmp_path: Path) -> None:
    make_trainer(tmp_path, 4).train()
    (tmp_path / "checkpoint-4" / "trainer_state.json").write_text('{"epoch"')
    trainer = make_trainer(tmp_path, 4)
    assert trainer.last_checkpoint() == str(tmp_path / "checkpoint-2")
    (tmp_path / "checkpoint-2" / "stream.json").unlink()
    assert trainer.last_checkpoint() is None
    with pytest.raises(RunError, match="holds no whole checkpoint"):
        trainer.train(resume_from_checkpoint=True)
    with pytest.raises(StateError, match=r"checkpoint-2 holds no stream\.json"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    shutil.copy(tmp_path / "checkpoint-4" / "trainer_state.json", tmp_path / "checkpoint-2" / "stream.json")
    with pytest.raises(StateError, match="cannot be read"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_the_checkpoint_of_another_stream_is_refused(tmp_path: Path) -> None:
    make_trainer(tmp_path, 2).train()
    with pytest.raises(StateError, match="seed"):
        make_trainer(tmp_path, 4, loader=make_loader(seed=8)).train(resume_from_checkpoint=True)


@pytest.mark.parametrize(
    ("settings", "kwargs", "message"),
    [
        ({"gradient_accumulation_steps": 3}, {}, "gradient_accumulation_steps is 3, but the 4 packs"),
        ({"dataloader_num_workers": 2}, {}, "dataloader_num_workers is 2; leave it out: give workers= to the Loader"),
        ({}, {"train_dataset": [1]}, "train_dataset is given, but the loader makes the batches"),
        ({}, {"loader": make_loader}, r"dp is Shard\(1, 2\), but this is data-parallel rank 0 of 1"),
        ({}, {"model": torch.nn.Linear(1, 1)}, "Linear has attention None"),
    ],
)
def test_what_contradicts_the_loader_is_refused(
    tmp_path: Path, settings: dict[str, Any], kwargs: dict[str, Any], message: str
) -> None:
    if "loader" in kwargs:
        loader = make_loader()
        kwargs = {"loader": ss.Loader(loader.packer, global_batch_size=4, dp=Shard(1, 2))}
    with pytest.raises(ConfigError, match=message):
        make_trainer(tmp_path, settings=settings, **kwargs)


def test_a_loader_that_was_iterated_is_refused(tmp_path: Path) -> None:
    iter(loader := make_loader())
    with pytest.raises(ConfigError, match=r"new\.load_state_dict\(loader\.state_dict\(\)\)"):
        make_trainer(tmp_path, loader=loader)


def test_a_stream_needs_a_number_of_steps(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_steps is not set"):
        make_trainer(tmp_path, -1)


def test_a_loss_that_counts_no_tokens_is_refused(tmp_path: Path) -> None:
    model = small_model()
    model.accepts_loss_kwargs = False  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="its loss takes no num_items_in_batch"):
        make_trainer(tmp_path, model=model)

    def own(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        wanted = labels.roll(-1, 1).flatten()
        return functional.cross_entropy(outputs.logits.flatten(0, 1), wanted, reduction="sum") / num_items_in_batch

    make_trainer(tmp_path, 1, model=model, compute_loss_func=own).train()
