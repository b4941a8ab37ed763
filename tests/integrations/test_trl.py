"""TRL's SFTTrainer on a stream: its own preparation is left out, its loss and its checkpoints stay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, TrainingArguments
from trl import SFTConfig, SFTTrainer

from streamsft.errors import ConfigError
from streamsft.integrations.trainer import StreamTrainerMixin
from streamsft.training.loss import token_loss_sum
from tests.integrations.runs import LR, parameters
from tests.training.runs import LENGTH, make_loader, small_model


class StreamSFTTrainer(StreamTrainerMixin, SFTTrainer):  # type: ignore[misc]
    """As the documents have it."""


def make(folder: Path, steps: int, given: dict[str, Any] | None = None, **settings: Any) -> StreamSFTTrainer:
    words = Tokenizer(models.WordLevel({"<pad>": 0, "a": 1}, unk_token="<pad>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<pad>")
    quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "bf16": False, "save_steps": 1}
    plain = {"optim": "sgd", "max_grad_norm": 0.0, "learning_rate": LR, "lr_scheduler_type": "constant"}
    args = SFTConfig(str(folder), max_steps=steps, per_device_train_batch_size=3, **quiet | plain | settings)
    return StreamSFTTrainer(small_model(), args, loader=make_loader(), processing_class=tokenizer, **given or {})


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


def test_it_counts_the_tokens_trained_on_over_all_micro_batches_and_resumes(tmp_path: Path) -> None:
    batches = [batch for batch, _ in zip(make_loader(), range(3), strict=False)]
    expected = [sum(int((batch.document_ids > 0).sum()) for batch in batches[:step]) for step in (1, 2, 3)]
    make(tmp_path, 2, {"metrics": False}, logging_steps=1).train()
    trainer = make(tmp_path, 3, {"metrics": False}, logging_steps=1)
    trainer.train(resume_from_checkpoint=True)
    counted = [record["num_tokens"] for record in trainer.state.log_history if "num_tokens" in record]
    assert counted[:3] == expected
    file = tmp_path / "checkpoint-3" / "stream.json"
    stored = json.loads(file.read_text())
    assert stored.pop("tokens") == expected[-1]
    file.write_text(json.dumps(stored))
    trainer = make(tmp_path, 4, {"metrics": False}, logging_steps=1)
    trainer.train(resume_from_checkpoint=True)
    assert "num_tokens" not in trainer.state.log_history[-1]  # what cannot be known is not said


def test_tokenized_rows_are_evaluated_and_others_are_refused_at_once(tmp_path: Path) -> None:
    tokens = Dataset.from_dict({"input_ids": [[1, 2, 3], [4, 5]], "labels": [[-100, 2, 3], [-100, 5]]})
    trainer = make(tmp_path, 1, {"eval_dataset": tokens})
    assert trainer.evaluate()["eval_loss"] > 0
    text = Dataset.from_dict({"text": ["a b", "b"]})
    for refused in (text, {"held": tokens, "out": text}):
        with pytest.raises(ConfigError, match=r"a row of (eval_dataset|out) has the columns text, but it is evaluated"):
            make(tmp_path, 1, {"eval_dataset": refused})
        with pytest.raises(ConfigError, match=r"give rows with input_ids and labels \(-100 for what"):
            trainer.evaluate(refused)
    with pytest.raises(ConfigError, match="a row of eval_dataset is a Batch"):
        make(tmp_path, 1, {"eval_dataset": make_loader()})


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        ("packing", True, "leave it out: the loader packs"),
        ("packing_strategy", "wrapped", "leave it out: the loader packs"),
        ("eval_packing", False, "leave it out: the loader packs"),
        ("assistant_only_loss", True, "leave it out: the loader's loss masks say what is trained on"),
        ("completion_only_loss", False, "leave it out: the loader's loss masks say what is trained on"),
        ("chat_template_path", "chat.jinja", "give the template to the tokenizer that makes them"),
        ("shuffle_dataset", True, "leave it out: the mix shuffles"),
        ("max_length", 512, "but the loader's packs have 32 slots; leave it out, and give sequence_length"),
        ("pad_to_multiple_of", 24, "but the loader's packs have 32 slots; leave it out, and give a sequence_length"),
        ("include_num_input_tokens_seen", "non_padding", "take data/tokens of the stream's metrics"),
        ("train_sampling_strategy", "group_by_length", "leave it out: the mix says the order"),
    ],
)
def test_options_for_what_the_stream_does_are_refused(tmp_path: Path, name: str, value: Any, fix: str) -> None:
    with pytest.raises(ConfigError, match=rf"SFTConfig: {name} is {value!r}(, |; ).*{fix}"):
        make(tmp_path, 1, **{name: value})
    with pytest.raises(ConfigError, match="SFTConfig: dataset_kwargs asks for a dataset to be prepared"):
        make(tmp_path, 1, dataset_kwargs={"skip_prepare_dataset": False})


def test_lengths_of_the_packs_are_no_contradiction(tmp_path: Path) -> None:
    make(tmp_path, 1, max_length=LENGTH, pad_to_multiple_of=8, dataset_kwargs={"skip_prepare_dataset": True})
    make(tmp_path, 1, max_length=None)


def test_the_mixin_stands_in_front_of_a_trainer(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"SFTTrainer stands before .* write class Late\(StreamTrainerMixin, SFTTrain"
    ):
        type("Late", (SFTTrainer, StreamTrainerMixin), {})
    with pytest.raises(ConfigError, match=r"TRL's SFTTrainer with TrainingArguments .* give trl\.SFTConfig"):
        StreamSFTTrainer(None, TrainingArguments(str(tmp_path), max_steps=1), loader=make_loader())
    alone = type("Alone", (StreamTrainerMixin,), {})
    with pytest.raises(ConfigError, match="Alone: StreamTrainerMixin is no Trainer by itself"):
        alone(None, None, loader=make_loader())
    assert issubclass(type("Further", (StreamSFTTrainer,), {}), SFTTrainer)
