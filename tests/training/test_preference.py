"""The DPO loss on packed pairs: equal to a plain one, its margin rises, and its reference outlives a resume."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from streamsft.comm import Comm, LocalComm, ThreadComm, current
from streamsft.errors import ConfigError, DataError, RunError
from streamsft.metrics.aggregator import Aggregator
from streamsft.metrics.sinks import JsonlSink
from streamsft.sources.pairs import SideBySide
from streamsft.sources.store import TokenStore
from streamsft.stream.collate import Batch
from streamsft.stream.interleave import Interleave
from streamsft.stream.loader import Loader
from streamsft.stream.packer import Packer
from streamsft.training.loop import train
from streamsft.training.loss import token_loss_sum
from streamsft.training.objective import Dpo, check_pairs
from streamsft.training.preference import answer_log_probs, weights_digest
from streamsft.training.settings import DPO_METRICS, TrainResult, TrainSettings
from streamsft.types import Shard
from tests.fakes import source
from tests.pairs import answers, pair_store
from tests.training.forks import in_ranks
from tests.training.runs import (
    LENGTH,
    VOCABULARY,
    ListSink,
    audit,
    make_loader,
    packs_by_step,
    small_model,
    weights,
)

STORE = pair_store(120)
CHOSEN: dict[str, Any] = {"loss": "dpo", "save_every": 3, "log_every": 1, "audit": True, "lr": 1e-2}


def pair_loader(layout: str = "shared", *, comm: Comm | None = None, batch: int = 4, **options: Any) -> Loader:
    comm = comm or LocalComm()
    pairs = STORE if layout == "shared" else SideBySide(STORE)
    packer = Packer(Interleave([pairs], seed=3), LENGTH, lookahead=120)
    return Loader(packer, global_batch_size=batch, dp=Shard(comm.rank, comm.size), background=False, **options)


@pytest.fixture(params=["shared", "side by side"])
def batch(request: pytest.FixtureRequest) -> Batch:
    return next(iter(pair_loader(request.param)))


def rows_of(batch: Batch) -> list[int]:
    return [row for pack in batch.rows for _, row, _ in pack]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_logits_of_both_answers_in_a_pack_are_those_of_each_alone(batch: Batch, attention: str) -> None:
    model = small_model().eval()
    model.set_attn_implementation(attention)
    inputs = batch.model_inputs(torch.float32 if attention == "eager" else torch.bool)
    del inputs["labels"]
    with torch.no_grad():
        logits = model(**inputs).logits
    for number, row in enumerate(rows_of(batch)):
        pack, slot, shared, chosen, rejected = (int(column[number]) for column in batch.pairs)
        prompt = np.arange(slot, slot + shared)
        branches = slot + shared + np.arange(chosen), slot + shared + chosen + np.arange(rejected)
        for (ids, _), branch in zip(answers(STORE, row), branches, strict=True):
            with torch.no_grad():
                alone = model(input_ids=torch.from_numpy(ids.astype(np.int64))[None]).logits[0]
            here = logits[pack, np.concatenate([prompt, branch])]
            torch.testing.assert_close(here, alone, rtol=0, atol=1e-5)


def plain_log_prob(model: torch.nn.Module, ids: Any, mask: Any) -> torch.Tensor:
    """The log-probability of an answer, one sequence at a time."""
    tokens = torch.from_numpy(ids.astype(np.int64))
    predicted = model(input_ids=tokens[None]).logits[0].log_softmax(-1)
    return torch.stack([predicted[at - 1, tokens[at]] for at in np.flatnonzero(mask)]).sum()


def test_the_loss_and_its_gradient_are_those_of_a_plain_implementation(batch: Batch) -> None:
    policy, plain, reference = (small_model(seed).double() for seed in (1, 1, 2))
    total = torch.zeros((), dtype=torch.float64)
    margins = []
    for row in rows_of(batch):
        sides = [(plain_log_prob(plain, *side), plain_log_prob(reference, *side)) for side in answers(STORE, row)]
        (chosen, reference_chosen), (rejected, reference_rejected) = sides
        margin = 0.3 * ((chosen - reference_chosen) - (rejected - reference_rejected))
        total = total - F.logsigmoid(margin)
        margins.append(margin.item())
    total.backward()  # type: ignore[no-untyped-call]
    loss, further = Dpo(reference, 0.3).sums(policy, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == pytest.approx(total.item(), abs=1e-10)
    assert further["train/margin"].item() == pytest.approx(sum(margins), abs=1e-10)
    assert further["train/accuracy"].item() == sum(margin > 0 for margin in margins)
    rewards = further["train/chosen_reward"] - further["train/rejected_reward"]
    assert rewards.item() == pytest.approx(sum(margins), abs=1e-10)
    for mine, other in zip(policy.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=0, atol=1e-6)  # the model's norms are in float32


def test_cross_entropy_refuses_pairs(batch: Batch) -> None:
    with pytest.raises(ConfigError, match="both answers alike"):
        token_loss_sum(small_model(), batch)


def test_both_layouts_give_the_same_log_probabilities() -> None:
    model, found = small_model().double(), []
    for layout in ("shared", "side by side"):
        by_row: dict[int, list[float]] = {}
        for step in pair_loader(layout):
            by_row |= dict(zip(rows_of(step), answer_log_probs(model, step).tolist(), strict=True))
            if len(by_row) == len(STORE):
                break
        found.append([by_row[row] for row in range(len(STORE))])
    np.testing.assert_allclose(*found, rtol=0, atol=1e-10)


def run(
    run_dir: Path,
    steps: int,
    *,
    model: Any = None,
    loader: Loader | None = None,
    sink: ListSink | None = None,
    comm: Comm | None = None,
    **settings: Any,
) -> TrainResult:
    comm = comm or LocalComm()
    loader = loader or pair_loader(comm=comm)
    chosen = {**CHOSEN, "save_every": 4, "log_every": 2, **settings}
    return train(
        loader,
        small_model() if model is None else model,
        settings=TrainSettings(steps=steps, run_dir=run_dir, **chosen),
        aggregator=Aggregator(loader.sources, run_metrics=DPO_METRICS, comm=comm),
        sinks=[] if sink is None else [sink],
        comm=comm,
        vocabulary=VOCABULARY,
    )


def test_the_margin_rises(tmp_path: Path) -> None:
    sink = ListSink()
    run(tmp_path, 16, sink=sink, log_every=1)
    first, last = sink.records[0][1], sink.records[-1][1]
    assert first["train/margin"] == first["train/accuracy"] == 0  # the model is its own reference
    assert first["train/loss"] == pytest.approx(np.log(2), abs=1e-6)
    assert last["train/margin"] > 0.2
    assert last["train/accuracy"] > 0.8
    assert last["train/loss"] < 0.6
    assert last["train/margin"] == pytest.approx(last["train/chosen_reward"] - last["train/rejected_reward"], abs=1e-5)


def test_a_resumed_run_compares_with_the_model_of_its_start_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole, legs = ListSink(), ListSink()
    run(tmp_path / "whole", 8, sink=whole)
    for steps in (3, 5, 8):
        run(tmp_path / "legs", steps, sink=legs)
    assert weights(tmp_path / "legs") == weights(tmp_path / "whole")
    assert audit(tmp_path / "legs") == audit(tmp_path / "whole")
    assert legs.records[-1][1]["train/margin"] == whole.records[-1][1]["train/margin"]


def test_another_reference_or_loss_is_refused_on_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, 2)
    with pytest.raises(RunError, match="had other weights"):
        run(tmp_path, 4, model=small_model(seed=9))
    trainer = json.loads((tmp_path / "checkpoints" / "step-00000002" / "trainer.json").read_text())
    assert trainer["reference"] == weights_digest(small_model())
    monkeypatch.setattr("streamsft.training.loop.check_pairs", lambda *_: None)
    with pytest.raises(RunError, match="loss: dpo, now it is cross_entropy"):
        run(tmp_path, 4, loss="cross_entropy")


def test_divided_weights_train_as_undivided_ones_do_and_go_on_from_each_other(tmp_path: Path) -> None:
    alone = ListSink()
    run(tmp_path / "one", 6, sink=alone, log_every=1)
    records = tmp_path / "two" / "metrics.jsonl"

    def legs(steps: int) -> None:
        loader = pair_loader(comm=current())
        train(
            loader,
            small_model(),
            settings=TrainSettings(steps=steps, run_dir=tmp_path / "two", parallel="fsdp", **CHOSEN),
            aggregator=Aggregator(loader.sources, run_metrics=DPO_METRICS, comm=current()),
            sinks=lambda: [JsonlSink(records)],
            vocabulary=VOCABULARY,
        )

    for steps in (3, 6):
        assert in_ranks(2, partial(legs, steps)) == [0, 0]
    assert packs_by_step(tmp_path / "two") == packs_by_step(tmp_path / "one")
    found = [json.loads(line)["metrics"] for line in records.read_text().splitlines()]
    assert len(found) == 6
    for (_, mine), theirs in zip(alone.records, found, strict=True):
        for name in ("train/loss", "train/margin", "train/accuracy", "train/chosen_reward"):
            assert theirs[name] == pytest.approx(mine[name], abs=1e-4), name
    assert found[-1]["train/margin"] > 0.01


def test_ranks_log_the_means_over_all_pairs_and_end_with_the_same_weights(tmp_path: Path) -> None:
    alone, both = ListSink(), ListSink()
    run(tmp_path / "one", 4, sink=alone, micro_batch_size=1)
    models = [small_model(), small_model(seed=5)]  # the first rank's is trained, and is the reference, on both

    def rank(comm: Comm) -> TrainResult:
        sink = None if comm.rank else both
        return run(tmp_path / "two", 4, model=models[comm.rank], comm=comm, sink=sink, micro_batch_size=2)

    ThreadComm.run(2, rank)
    assert packs_by_step(tmp_path / "two") == packs_by_step(tmp_path / "one")
    for (_, mine), (_, theirs) in zip(alone.records, both.records, strict=True):
        for name in DPO_METRICS:
            if name in mine and "wait" not in name and "prefetch" not in name:
                assert theirs[name] == pytest.approx(mine[name], abs=1e-4), name
    assert both.records[-1][1]["train/accuracy"] > 0


def test_pairs_and_other_samples_are_refused_where_the_loss_is_not_for_them(tmp_path: Path) -> None:
    text = source("text", [5, 6])
    with pytest.raises(ConfigError, match="source text: its rows are no preference pairs"):
        check_pairs([STORE, text], "dpo")
    with pytest.raises(ConfigError, match="source pairs: its rows are preference pairs"):
        run(tmp_path, 2, loss="cross_entropy")
    mixed = Packer(Interleave([STORE, TokenStore.from_rows([{"input_ids": [1] * 9, "loss_mask": [1] * 9}])]), LENGTH)
    batches = iter(Loader(mixed, global_batch_size=16, background=False))
    other = next(step for step in batches if len(step.pairs) < len(step.documents.table.pack))
    with pytest.raises(DataError, match="source 'rows', row 0 is no preference pair"):
        Dpo(small_model(), 0.1).count(other)
    with pytest.raises(ConfigError, match="beta is 0"):
        TrainSettings(steps=1, run_dir=tmp_path, beta=0)


def test_batches_without_pairs_have_no_answers() -> None:
    with pytest.raises(DataError, match="the batch holds no preference pairs"):
        answer_log_probs(small_model(), next(iter(make_loader())))
