"""What a step trains for: a loss that is summed over its samples and divided once, by their number over everything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, Protocol, final

import torch

from streamsft.errors import ConfigError, DataError
from streamsft.sources.pairs import holds_pairs
from streamsft.stream.collate import Batch
from streamsft.training.loss import token_loss_sum
from streamsft.training.preference import answer_log_probs, dpo_loss

__all__ = ["CrossEntropy", "Dpo", "Objective", "Sums", "check_pairs"]


class Sums(NamedTuple):
    """What is summed over a batch."""

    loss: torch.Tensor
    """A scalar that can be differentiated."""
    further: Mapping[str, torch.Tensor]
    """Further sums over the same, to be logged as means; scalars without a gradient."""


class Objective(Protocol):
    """A loss as the stepper needs it."""

    def count(self, batch: Batch) -> int:
        """What the sums of `batch` are to be divided by."""

    def sums(self, model: torch.nn.Module, batch: Batch) -> Sums:
        """The sums over `batch`, which has a label."""


@final
class CrossEntropy:
    """The loss of the supervised tokens."""

    def count(self, batch: Batch) -> int:
        """Supervised tokens."""
        return batch.supervised_tokens

    def sums(self, model: torch.nn.Module, batch: Batch) -> Sums:
        """See `token_loss_sum`."""
        return Sums(token_loss_sum(model, batch), {})


@final
class Dpo:
    """Direct preference optimization (Rafailov et al., 2023): of each pair, the chosen answer is to become likelier
    against the rejected one than it is for a reference model.

    Args:
        reference: the model at the start, frozen.
        beta: how much a difference in log-probability counts.
    """

    def __init__(self, reference: torch.nn.Module, beta: float) -> None:
        self.reference = reference
        self.beta = beta

    def count(self, batch: Batch) -> int:
        """Preference pairs.

        Raises:
            DataError: a document is none; names its source and row.
        """
        if len(batch.pairs) < len(batch.documents.table.pack):
            pairs = set(zip(batch.pairs.pack.tolist(), batch.pairs.slot.tolist(), strict=True))
            table = batch.documents.table
            places = zip(table.pack.tolist(), table.slot.tolist(), strict=True)
            at = next(at for at, place in enumerate(places) if place not in pairs)
            raise DataError(
                f"step {batch.step}: source {batch.sources[table.source[at]]!r}, row {table.row[at]} is no preference "
                "pair, and loss: dpo compares pairs; leave the source out, or train with loss: cross_entropy"
            )
        return len(batch.pairs)

    def sums(self, model: torch.nn.Module, batch: Batch) -> Sums:
        """The loss, and by name what is logged of the pairs.

        ``train/chosen_reward`` and ``train/rejected_reward`` are beta times the log-ratio of model and reference,
        ``train/margin`` is their difference, ``train/accuracy`` the share of pairs in which it is above 0.
        """
        with torch.no_grad():
            reference = answer_log_probs(self.reference, batch)
        rewards = self.beta * (answer_log_probs(model, batch) - reference)
        margins = (rewards[:, 0] - rewards[:, 1]).detach()
        further = {
            "train/margin": margins.sum(),
            "train/accuracy": (margins > 0).sum(),
            "train/chosen_reward": rewards[:, 0].detach().sum(),
            "train/rejected_reward": rewards[:, 1].detach().sum(),
        }
        return Sums(dpo_loss(rewards).sum(), further)


def check_pairs(sources: Iterable[Any], loss: Literal["cross_entropy", "dpo"]) -> None:
    """Refuse preference pairs where the loss is not for pairs, and other samples where it is.

    Raises:
        ConfigError: there are some; names the source.
    """
    for source in sources:
        if holds_pairs(source) == (loss == "dpo"):
            continue
        if loss == "dpo":
            raise ConfigError(
                f"source {source.name}: its rows are no preference pairs, whose answers loss: dpo compares; leave it "
                "out, or train with loss: cross_entropy"
            )
        raise ConfigError(
            f"source {source.name}: its rows are preference pairs, both answers of which loss: cross_entropy would "
            "train on alike; train with loss: dpo, or make the chosen answers a source of another format"
        )
