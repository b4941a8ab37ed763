"""What reaches the loss, and that documents of one pack do not see each other."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from streamsft.stream.collate import Batch
from streamsft.stream.interleave import Interleave
from streamsft.stream.loader import Loader
from streamsft.stream.packer import Packer
from streamsft.training import loss
from streamsft.training.loss import token_loss_sum
from tests.fakes import ListSource
from tests.training.runs import LENGTH, VOCABULARY, make_loader, small_model

Rows = list[tuple[list[int], list[int]]]


def batch_of(rows: Rows, length: int, packs: int = 1) -> Batch:
    """The first step over `rows`, packed in an order of the loader's own."""
    packer = Packer(Interleave([ListSource("rows", rows)]), length, lookahead=len(rows))
    return next(iter(Loader(packer, global_batch_size=packs, background=False)))


@pytest.fixture
def batch() -> Batch:
    return next(iter(make_loader(background=False)))


@pytest.fixture(params=["sdpa", "eager"])
def model(request: pytest.FixtureRequest) -> torch.nn.Module:
    model = small_model().double()
    model.set_attn_implementation(request.param)
    return model


def precision(model: torch.nn.Module) -> float:
    """How far float64 logits may differ: the eager attention of transformers takes its softmax in float32."""
    return 1e-6 if model.config._attn_implementation == "eager" else 1e-12


def packed_logits(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    eager = model.config._attn_implementation == "eager"
    inputs = batch.model_inputs(torch.float64 if eager else torch.bool)
    del inputs["labels"]
    with torch.no_grad():
        logits: torch.Tensor = model(**inputs).logits
    return logits


def test_the_logits_of_a_document_in_a_pack_equal_its_logits_alone(model: torch.nn.Module, batch: Batch) -> None:
    logits = packed_logits(model, batch)
    assert int(batch.document_ids.max()) >= 2
    for pack in range(len(batch)):
        for document in range(1, int(batch.document_ids[pack].max()) + 1):
            here = batch.document_ids[pack] == document
            with torch.no_grad():
                alone = model(input_ids=batch.input_ids[pack][here][None]).logits[0]
            torch.testing.assert_close(logits[pack][here], alone, rtol=0, atol=precision(model))


def test_one_documents_tokens_change_no_bit_of_anothers_logits(model: torch.nn.Module, batch: Batch) -> None:
    changed = batch.input_ids.clone()
    changed[batch.document_ids == 1] = 5
    other = replace(batch, input_ids=changed)
    before, after = packed_logits(model, batch), packed_logits(model, other)
    rest = batch.document_ids > 1
    assert torch.equal(before[rest], after[rest])
    assert not torch.equal(before, after)
    assert torch.isfinite(before).all()


def test_the_summed_loss_of_a_pack_is_the_sum_over_its_documents_alone(model: torch.nn.Module, batch: Batch) -> None:
    total = 0.0
    for pack in range(len(batch)):
        for document in range(1, int(batch.document_ids[pack].max()) + 1):
            here = batch.document_ids[pack] == document
            labels = batch.labels[pack][here]
            logits = model(input_ids=batch.input_ids[pack][here][None]).logits[0]
            total += F.cross_entropy(logits[:-1], labels[1:], reduction="sum", ignore_index=-100).item()
    assert token_loss_sum(model, batch).item() == pytest.approx(total, abs=1000 * precision(model))


def test_loss_and_gradients_equal_those_of_all_logits(model: torch.nn.Module, batch: Batch) -> None:
    token_loss_sum(model, batch).backward()
    ours = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    eager = model.config._attn_implementation == "eager"
    inputs = batch.model_inputs(torch.float64 if eager else torch.bool)
    labels = inputs.pop("labels")
    logits = model(**inputs).logits
    F.cross_entropy(
        logits[:, :-1].reshape(-1, VOCABULARY), labels[:, 1:].reshape(-1), reduction="sum", ignore_index=-100
    ).backward()
    for mine, parameter in zip(ours, model.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad, rtol=0, atol=1e-11)


def test_only_supervised_positions_reach_the_output_layer(batch: Batch) -> None:
    model = small_model()
    seen: list[torch.Size] = []
    model.lm_head.register_forward_hook(lambda _, __, output: seen.append(output.shape))
    token_loss_sum(model, batch)
    assert seen == [torch.Size([1, batch.supervised_tokens, VOCABULARY])]
    assert not model.lm_head._forward_pre_hooks


def test_what_a_model_does_to_its_logits_still_applies(batch: Batch) -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        final_logit_softcapping=0.5,
        max_position_embeddings=LENGTH,
    )
    torch.manual_seed(0)
    model = Gemma2ForCausalLM(config).double()
    logits = packed_logits(model, batch)
    assert float(logits.abs().max()) <= 0.5
    expected = F.cross_entropy(
        logits[:, :-1].reshape(-1, VOCABULARY), batch.labels[:, 1:].reshape(-1), reduction="sum", ignore_index=-100
    )
    assert token_loss_sum(model, batch).item() == pytest.approx(expected.item(), abs=1e-9)


class Echo(torch.nn.Module):
    """Predicts the token that it is given; shows what the loss is asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
        return SimpleNamespace(logits=self.scale * F.one_hot(input_ids, VOCABULARY).float())


CASES: list[tuple[str, Rows, list[tuple[int, int]]]] = [
    ("single turn", [([1, 2, 3, 4, 5, 6], [0, 0, 0, 1, 1, 1])], [(3, 4), (4, 5), (5, 6)]),
    ("several turns", [([1, 2, 3, 4, 5, 6], [0, 1, 0, 0, 1, 1])], [(1, 2), (4, 5), (5, 6)]),
    ("packed", [([1, 2, 3], [1, 1, 1]), ([4, 5, 6], [1, 1, 1])], [(1, 2), (2, 3), (4, 5), (5, 6)]),
]


@pytest.mark.parametrize(("rows", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_exactly_the_supervised_tokens_are_predicted_each_from_the_one_before(
    rows: Rows, expected: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []

    def probe(logits: torch.Tensor, targets: torch.Tensor, reduction: str) -> torch.Tensor:
        asked.extend(zip(logits.argmax(-1).tolist(), targets.tolist(), strict=True))
        return logits.sum()

    monkeypatch.setattr(loss.F, "cross_entropy", probe)
    token_loss_sum(Echo(), batch_of(rows, 6))
    assert sorted(asked) == expected


def test_a_pack_without_room_to_spare_and_one_with_padding_have_finite_losses() -> None:
    for length in (6, 11):
        value = token_loss_sum(small_model(), batch_of([([1, 2, 3, 4, 5, 6], [0, 0, 0, 1, 1, 1])], length))
        assert torch.isfinite(value)
