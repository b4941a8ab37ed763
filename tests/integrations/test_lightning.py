"""Lightning on a stream: exact resumes whatever it fetched ahead, right gradients, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback

from streamsft.errors import ConfigError, StateError
from streamsft.integrations.lightning import StreamDataModule
from streamsft.training.loss import token_loss_sum
from tests.integrations.runs import LR, BrokenError, Module, fit, optimizer_of, parameters
from tests.training.runs import make_loader, small_model


class SaveAlways(Callback):
    """Saves behind every micro-batch, and when training fails."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        self.count += 1
        trainer.save_checkpoint(self.folder / f"micro-{self.count}.ckpt")

    def on_exception(self, trainer: Any, *args: Any) -> None:
        trainer.save_checkpoint(self.folder / "failed.ckpt")


def test_a_run_goes_on_from_any_checkpoint_to_the_same_losses_and_weights(tmp_path: Path) -> None:
    whole, _ = fit(tmp_path / "whole", callbacks=[saving := SaveAlways(tmp_path / "whole")], size=2)
    assert saving.count == 12
    for name, done in (("step=2", 2), ("step=4", 4), ("micro-5", 2), ("micro-7", 3)):
        leg, data = fit(tmp_path / "legs", resume=str(tmp_path / "whole" / f"{name}.ckpt"), size=2)
        assert leg.losses == {step: loss for step, loss in whole.losses.items() if step > done}
        assert all(map(torch.equal, parameters(leg), parameters(whole)))
        assert data.record()["data/packs"] == 24


@pytest.mark.parametrize("size", [2, 4])
def test_a_checkpoint_made_as_a_step_fails_lacks_that_step(tmp_path: Path, size: int) -> None:
    whole, _ = fit(tmp_path / "whole", 4, size=size)
    with pytest.raises(BrokenError):
        fit(tmp_path / "legs", 4, size=size, fail_at=3, callbacks=[SaveAlways(tmp_path / "legs")])
    leg, _ = fit(tmp_path / "legs", 4, size=size, resume=str(tmp_path / "legs" / "failed.ckpt"))
    assert leg.losses == {step: whole.losses[step] for step in (3, 4)}
    assert all(map(torch.equal, parameters(leg), parameters(whole)))


def test_the_gradient_is_that_of_all_tokens_whatever_the_micro_batches(tmp_path: Path) -> None:
    batch = next(iter(make_loader()))
    model = small_model()
    (token_loss_sum(model, batch) / batch.supervised_tokens).backward()
    for size in (1, 3, 4):
        after, _ = fit(tmp_path, 1, size=size, optimizer=lambda of: torch.optim.SGD(of.parameters(), lr=LR))
        for old, new, given in zip(small_model().parameters(), after.parameters(), model.parameters(), strict=True):
            assert given.grad is not None
            assert torch.allclose((old - new) / LR, given.grad, atol=1e-5)


def test_a_checkpoint_without_the_stream_is_refused(tmp_path: Path) -> None:
    fit(tmp_path, 2)
    stored = torch.load(tmp_path / "step=2.ckpt", weights_only=True)
    del stored["StreamDataModule"]
    torch.save(stored, tmp_path / "without.ckpt")
    with pytest.raises(StateError, match="the checkpoint of step 2 holds no state of a StreamDataModule"):
        fit(tmp_path, 4, resume=str(tmp_path / "without.ckpt"))


def test_another_trainer_goes_on_with_the_stream_in_steps_of_the_same_micro_batches(tmp_path: Path) -> None:
    _, data = fit(tmp_path, 2, size=1)
    fit(tmp_path, 3, size=1, data=data)
    assert data.steps.step == 5
    assert data.record()["data/packs"] == 20
    with pytest.raises(ConfigError, match="max_steps is not set"):
        fit(tmp_path, -1, data=data)


def test_a_loader_in_place_of_the_data_module_is_refused(tmp_path: Path) -> None:
    trainer = pl.Trainer(max_steps=2, accelerator="cpu", logger=False, enable_progress_bar=False)
    with pytest.raises(ConfigError, match=r"give fit\(module, datamodule=streamsft\.StreamDataModule\(loader\)\)"):
        trainer.fit(Module(optimizer_of, None), make_loader())


def test_a_loader_that_was_iterated_is_refused(tmp_path: Path) -> None:
    next(iter(loader := make_loader()))
    with pytest.raises(ConfigError, match="Loader: it was iterated before, up to step 1, and this loop would leave"):
        fit(tmp_path, loader=loader)


def test_what_contradicts_the_loader_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="accumulate_grad_batches is 3, but the 4 packs"):
        fit(tmp_path, accumulate_grad_batches=3)
    with pytest.raises(ConfigError, match="limit_train_batches is 4, but a stream has no epochs"):
        fit(tmp_path, limit_train_batches=4)
    with pytest.raises(ConfigError, match="max_steps is not set"):
        fit(tmp_path, -1)
    for name in ("fast_dev_run", "overfit_batches"):
        with pytest.raises(ConfigError, match=f"Trainer: {name} cuts epochs"):
            fit(tmp_path, **{name: 1})
    with pytest.raises(StateError, match=r"no stream before Trainer\.fit"):
        StreamDataModule(make_loader()).state_dict()
