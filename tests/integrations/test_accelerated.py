"""A loop with Accelerate on a stream: exact resumes, right gradients, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from accelerate import Accelerator

from streamsft.errors import ConfigError, StateError
from streamsft.integrations.accelerated import AcceleratedStream
from streamsft.training.loss import token_loss_sum
from tests.integrations.runs import LR, accelerated, parameters
from tests.training.runs import make_loader, small_model


def test_legs_equal_a_whole_run(tmp_path: Path) -> None:
    whole, losses, _, resumed = accelerated(tmp_path / "whole")
    assert resumed == 0
    found: dict[int, float] = {}
    for upto, size in ((3, 3), (5, 3), (6, 3)):
        model, leg, stream, resumed = accelerated(tmp_path / "legs", upto, size=size)
        assert resumed == {3: 0, 5: 2, 6: 4}[upto]
        found |= leg
    assert found == losses
    assert all(map(torch.equal, parameters(model), parameters(whole)))
    assert stream.record()["data/packs"] == 24
    assert sorted(path.name for path in (tmp_path / "legs").iterdir()) == [f"step-0000000{n}" for n in (2, 4, 6)]


def test_the_gradient_is_that_of_all_tokens_whatever_the_micro_batches(tmp_path: Path) -> None:
    batch = next(iter(make_loader()))
    model = small_model()
    (token_loss_sum(model, batch) / batch.supervised_tokens).backward()
    for size in (1, 3, 4):
        after, *_ = accelerated(tmp_path, 1, size=size, optimizer=lambda of: torch.optim.SGD(of.parameters(), lr=LR))
        for old, new, given in zip(small_model().parameters(), after.parameters(), model.parameters(), strict=True):
            assert given.grad is not None
            assert torch.allclose((old - new) / LR, given.grad, atol=1e-5)


def test_a_step_is_saved_when_it_is_finished(tmp_path: Path) -> None:
    stream = AcceleratedStream(Accelerator(cpu=True), make_loader(), micro_batch_size=3)
    next(iter(stream))
    with pytest.raises(StateError, match="step 1 is not finished"):
        stream.save(tmp_path)


def test_a_checkpoint_without_the_stream_is_refused(tmp_path: Path) -> None:
    Accelerator(cpu=True).save_state(str(tmp_path))
    accelerator = Accelerator(cpu=True)
    AcceleratedStream(accelerator, make_loader())
    with pytest.raises(StateError, match=r"stream\.json cannot be read"):
        accelerator.load_state(str(tmp_path))


def test_a_state_is_loaded_into_what_was_prepared_and_a_stream_that_was_there_before(tmp_path: Path) -> None:
    accelerated(tmp_path)
    accelerator = Accelerator(cpu=True)
    stream = AcceleratedStream(accelerator, make_loader(), micro_batch_size=3)
    with pytest.raises(StateError, match=r"no model yet to go on with; call accelerator\.prepare"):
        stream.resume(tmp_path)
    assert stream.step == 0
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(small_model())
    accelerator.step = 4  # as `load_state` leaves it
    with pytest.raises(ConfigError, match="stands at micro-batch 4; make the stream before"):
        AcceleratedStream(accelerator, make_loader())


def test_another_number_of_accumulation_steps_is_refused() -> None:
    with pytest.raises(ConfigError, match="gradient_accumulation_steps is 3, but the 4 packs"):
        AcceleratedStream(Accelerator(cpu=True, gradient_accumulation_steps=3), make_loader(), micro_batch_size=2)


def test_a_loader_that_was_iterated_is_refused() -> None:
    next(iter(loader := make_loader()))
    with pytest.raises(ConfigError, match="Loader: it was iterated before, up to step 1, and this loop would leave"):
        AcceleratedStream(Accelerator(cpu=True), loader)
    new = make_loader()
    new.load_state_dict(loader.state_dict())
    assert AcceleratedStream(Accelerator(cpu=True), new).step == 1
