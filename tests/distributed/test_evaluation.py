"""Evaluation on real ranks: the same samples and the same loss whatever their number, and nobody waits for ever."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from streamsft.comm import Comm, LocalComm
from streamsft.stream.evaluation import EvalLoader
from streamsft.training.evaluating import evaluate
from streamsft.types import Shard
from tests.distributed.launch import launch
from tests.mixes import random_lengths, random_rows

SIZES = {"many": 61, "three": 3}
Result = dict[tuple[bool, str], tuple[dict[str, float], list[tuple[str, int]]]]


class Neighbours(torch.nn.Module):
    """Predicts a token from the one before it in its document, so that packing must not change anything."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.table = torch.nn.Parameter(torch.randn(997, 64, generator=generator))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **_: Any) -> torch.Tensor:
        hidden = self.table[input_ids % 997]
        seen = attention_mask[:, 0].float()
        hidden = torch.tanh(hidden + seen @ hidden / seen.sum(-1, keepdim=True))
        logits = torch.zeros(*input_ids.shape, 64_000)
        logits[..., :997] = hidden @ self.table.T
        return logits


def evaluated(comm: Comm) -> Result:
    """For each set, packed and not, the record, and the rows that this rank had."""
    torch.set_num_threads(1)
    found: Result = {}
    for packed in (True, False):
        for name, count in SIZES.items():
            source = random_rows(name, 1, random_lengths(2, count, median=12, longest=40))
            loader = EvalLoader(source, 32, batch_size=2, packed=packed, dp=Shard(comm.rank, comm.size))
            rows = [(source, row) for batch in loader for pack in batch.rows for source, row, _ in pack]
            found[packed, name] = evaluate(Neighbours(), {name: loader}, comm=comm), rows
    return found


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_samples_and_loss_are_those_of_one_process(ranks: int) -> None:
    alone, together = evaluated(LocalComm()), launch(ranks, evaluated)
    for name in SIZES:
        losses = []
        for packed in (True, False):
            record, rows = alone[packed, name]
            assert Counter(row for rank in together for row in rank[packed, name][1]) == Counter(rows)
            assert max(Counter(rows).values()) == 1
            for rank in together:
                assert rank[packed, name][0] == pytest.approx(record, abs=1e-6)
                assert rank[packed, name][0] == together[0][packed, name][0]
            losses.append(record["eval/loss"])
        assert losses[0] == pytest.approx(losses[1], abs=1e-6)
