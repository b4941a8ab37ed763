"""TRL's SFTTrainer on a stream: its own preparation is left out, its loss and its checkpoints stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from streamsft.errors import ConfigError
from streamsft.integrations.trainer import StreamTrainerMixin
from streamsft.training.loss import token_loss_sum
from tests.integrations.runs import LR, parameters
from tests.training.runs import make_loader, small_model


class StreamSFTTrainer(StreamTrainerMixin, SFTTrainer):  # type: ignore[misc]
    """As the documents have it."""


def make(folder: Path, steps: int, **settings: Any) -> StreamSFTTrainer:
    words = Tokenizer(models.WordLevel({"<pad>": 0, "a": 1}, unk_token="<pad>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<pad>")
    quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "bf16": False, "save_steps": 1}
    plain = {"optim": "sgd", "max_grad_norm": 0.0, "learning_rate": LR, "lr_scheduler_type": "constant"}
    args = SFTConfig(str(folder), max_steps=steps, per_device_train_batch_size=3, **quiet | plain | settings)
    return StreamSFTTrainer(small_model(), args, loader=make_loader(), processing_class=tokenizer)


def test_the_gradient_is_that_of_all_tokens_and_a_resume_goes_on(tmp_path: Path) -> None:
    batch, model = next(iter(make_loader())), small_model()
    (token_loss_sum(model, batch) / batch.supervised_tokens).backward()
    trainer = make(tmp_path / "legs", 1)
    before = parameters(trainer.model)
    trainer.train()
    for old, new, given in zip(before, parameters(trainer.model), model.parameters(), strict=True):
        assert given.grad is not None
        assert torch.allclose((old - new) / LR, given.grad, atol=1e-5)
    whole, leg = make(tmp_path / "whole", 2), make(tmp_path / "legs", 2)
    whole.train()
    leg.train(resume_from_checkpoint=True)
    assert all(map(torch.equal, parameters(leg.model), parameters(whole.model)))


def test_its_own_packing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="packing is True; leave it out: the loader packs"):
        make(tmp_path, 1, packing=True)
