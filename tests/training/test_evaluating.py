"""Evaluation: the same loss on any number of ranks, and a run that it leaves as it is."""

from __future__ import annotations

import copy
import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from streamsft.comm import Comm, LocalComm, ThreadComm
from streamsft.errors import ConfigError, DataError, RunError
from streamsft.metrics.sinks import JsonlSink
from streamsft.sources.store import TokenStore
from streamsft.stream.evaluation import EvalLoader
from streamsft.training.evaluating import Evaluation, evaluate
from streamsft.training.loss import token_loss_sum, token_losses
from streamsft.types import Shard
from tests.fakes import ListSource
from tests.training.runs import LENGTH, VOCABULARY, ListSink, audit, make_loader, rows, run, small_model, weights


def sets(comm: Comm, *, packed: bool = True, batch_size: int = 4) -> dict[str, EvalLoader]:
    """A set of 57 rows, and one of 3."""
    return {
        name: EvalLoader(
            TokenStore.from_rows(rows(count, 9), name=name),
            LENGTH,
            packed=packed,
            batch_size=batch_size,
            dp=Shard(comm.rank, comm.size),
        )
        for name, count in (("many", 57), ("few", 3))
    }


def alone(model: torch.nn.Module, count: int) -> tuple[float, int]:
    """The loss of each row by itself, without padding, added up; and the number of labels."""
    total, labels = 0.0, 0
    for row in rows(count, 9):
        ids = torch.tensor(row["input_ids"].astype(int))[None]
        logits = model(input_ids=ids).logits[0, :-1].double()
        losses = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none")
        mask = torch.tensor(row["loss_mask"][1:])
        total, labels = total + float(losses[mask].sum()), labels + int(mask.sum())
    return total, labels


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "rows"])
def test_the_loss_is_that_of_each_row_alone_by_tokens_on_any_number_of_ranks(packed: bool) -> None:
    model = small_model()
    with torch.no_grad():
        many, few = alone(model, 57), alone(model, 3)
    expected = [many, few, (many[0] + few[0], many[1] + few[1])]
    found = []
    for ranks in (1, 3):
        results = ThreadComm.run(
            ranks, lambda comm: evaluate(copy.deepcopy(model), sets(comm, packed=packed), comm=comm)
        )
        assert all(result == results[0] for result in results)
        found.append(results[0])
    for record in found:
        for key, (loss, tokens) in zip(("eval_many", "eval_few", "eval"), expected, strict=True):
            assert record[f"{key}/loss"] == pytest.approx(loss / tokens, abs=1e-6)
            assert record[f"{key}/supervised_tokens"] == tokens
        assert [record[f"{key}/samples"] for key in ("eval_many", "eval_few", "eval")] == [57, 3, 60]
        assert record["eval/loss"] == pytest.approx(found[0]["eval/loss"], abs=1e-12)


def test_losses_of_tokens_add_up_to_the_sum_that_is_trained_on() -> None:
    batch = next(iter(make_loader()))
    model = small_model()
    losses = token_losses(model, batch).detach()
    assert losses.shape == (batch.supervised_tokens,)
    assert float(losses.double().sum()) == pytest.approx(token_loss_sum(model, batch).item(), rel=1e-5)


class Faulty(ListSource):
    """A source one of whose rows cannot be read."""

    def read(self, index: Any) -> Any:
        if 2 in index.tolist():
            raise DataError("row 2 is gone")
        return super().read(index)


def test_what_one_rank_cannot_read_ends_all_of_them() -> None:
    source = Faulty("bad", [([1, 2], [0, 1])] * 3)

    def rank(comm: Comm) -> str:
        loader = EvalLoader(source, 2, batch_size=1, packed=False, dp=Shard(comm.rank, comm.size))
        with pytest.raises(DataError, match="row 2 is gone") as error:
            evaluate(small_model(), {"bad": loader}, comm=comm)
        return str(error.value)

    assert ThreadComm.run(3, rank) == ["rank 2: row 2 is gone", "rank 2: row 2 is gone", "row 2 is gone"]


def test_modules_and_random_generators_are_left_as_they_were() -> None:
    model = small_model()
    model.train()
    frozen = next(module for module in model.modules() if not list(module.children()))
    frozen.eval()
    before, modes = torch.get_rng_state(), [module.training for module in model.modules()]
    evaluate(model, sets(LocalComm()))
    assert torch.equal(torch.get_rng_state(), before)
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_cannot_be_evaluated_is_refused() -> None:
    model = small_model()
    with pytest.raises(ConfigError, match="there is no set"):
        evaluate(model, {})
    with pytest.raises(ConfigError, match="evaluation set name 'a b'"):
        evaluate(model, {"a b": sets(LocalComm())["few"]})
    loader = EvalLoader(TokenStore.from_rows(rows(3, 9), name="few"), LENGTH, dp=Shard(1, 2))
    with pytest.raises(ConfigError, match=r"few: its loader has .* this is rank 0 of 1: give EvalLoader dp=Shard"):
        evaluate(model, {"few": loader})
    beyond = ListSource("far", [([VOCABULARY, 1], [0, 1])])
    with pytest.raises(RunError, match=f"token id {VOCABULARY}, but the model knows {VOCABULARY} ids"):
        evaluate(model, {"far": EvalLoader(beyond, LENGTH)})
    with pytest.raises(ConfigError, match="every 0 steps"):
        Evaluation(sets=sets(LocalComm()), every=0)


def evaluated(sink: ListSink) -> list[int]:
    return [step for step, record in sink.records if "eval/loss" in record]


def test_a_run_evaluates_on_its_cadence_and_at_its_end_and_trains_as_without(tmp_path: Path) -> None:
    plain, with_sets = ListSink(), ListSink()
    run(tmp_path / "plain", 8, "small", sink=plain)
    run(tmp_path / "sets", 8, "small", sink=with_sets, evaluation=Evaluation(sets=sets(LocalComm()), every=3))
    assert evaluated(with_sets) == [3, 6, 8]
    steps = [step for step, _ in with_sets.records]
    assert steps == [2, 3, 4, 6, 8], "one record for each step"
    alone_at_3 = dict(with_sets.records)[3]
    assert set(alone_at_3) == {
        f"{key}/{what}"
        for key in ("eval", "eval_many", "eval_few")
        for what in ("loss", "supervised_tokens", "samples")
    }
    assert dict(with_sets.records)[8]["eval/loss"] < alone_at_3["eval/loss"]
    assert audit(tmp_path / "sets") == audit(tmp_path / "plain")
    assert weights(tmp_path / "sets") == weights(tmp_path / "plain")
    losses = [(step, record["train/loss"]) for step, record in with_sets.records if "train/loss" in record]
    assert losses == [(step, record["train/loss"]) for step, record in plain.records]


def test_a_resumed_run_has_each_evaluation_once_with_the_numbers_of_one_that_was_not_broken_off(tmp_path: Path) -> None:
    whole, broken = ListSink(), Breaking(6)
    evaluation = Evaluation(sets=sets(LocalComm()), every=2)
    run(tmp_path / "whole", 9, "small", sink=whole, evaluation=evaluation, log_every=4)
    with pytest.raises(KeyError, match="gone"):
        run(tmp_path / "broken", 9, "small", sink=broken, evaluation=evaluation, log_every=4)
    assert evaluated(broken) == [2, 4, 6]
    broken.step = 0
    result = run(tmp_path / "broken", 9, "small", sink=broken, evaluation=evaluation, log_every=4)
    assert result.resumed_from == 4
    assert evaluated(broken) == evaluated(whole) == [2, 4, 6, 8, 9]
    assert losses(broken) == losses(whole)
    again = run(tmp_path / "broken", 9, "small", sink=broken, evaluation=evaluation, log_every=4)
    assert again.nothing_to_do
    assert losses(broken) == losses(whole)


def losses(sink: ListSink) -> list[tuple[int, dict[str, float]]]:
    return [
        (step, {k: v for k, v in r.items() if k.startswith("eval")}) for step, r in sink.records if "eval/loss" in r
    ]


class Breaking(ListSink):
    """Is gone when the record of a step has come."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def write(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        super().write(step, time, metrics)
        if step == self.step:
            raise KeyError("gone")


def test_records_of_evaluations_are_lines_like_others(tmp_path: Path) -> None:
    few = {"few": sets(LocalComm())["few"]}
    file = tmp_path / "run" / "metrics.jsonl"
    run(tmp_path / "run", 3, "small", sink=lambda: [JsonlSink(file)], evaluation=Evaluation(sets=few), log_every=3)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["step"] for line in lines] == [3]
    assert {"eval_few/loss", "eval/loss", "train/loss"} <= set(lines[0]["metrics"])


class NaN(torch.nn.Module):
    """A model without sense."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        factor = torch.ones(()) if self.training else torch.tensor(math.nan)
        return (self.weight * factor + torch.zeros(VOCABULARY)).expand(*input_ids.shape, VOCABULARY)


def test_a_loss_that_is_not_finite_is_told_and_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sink = ListSink()
    with caplog.at_level(logging.WARNING):
        run(tmp_path, 2, NaN(), sink=sink, evaluation=Evaluation(sets=sets(LocalComm())))
    assert math.isnan(dict(sink.records)[2]["eval/loss"])
    assert "step 2: the loss of the evaluation is nan" in caplog.text


def test_an_evaluation_of_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no model to evaluate"):
        run(tmp_path, 2, "none", evaluation=Evaluation(sets=sets(LocalComm())))
