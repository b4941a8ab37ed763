"""The loss on preference pairs, and the model that it compares with."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F  # noqa: N812 - the name that everyone knows it by
import xxhash

from streamsft.comm import Comm, agreeing
from streamsft.errors import DataError
from streamsft.sources.tokennames import PAIR
from streamsft.stream.collate import IGNORE_INDEX, Batch
from streamsft.training.loss import token_losses
from streamsft.training.model import pick_device, prepare_model
from streamsft.training.parallel import broadcast_weights

__all__ = ["answer_log_probs", "dpo_loss", "frozen_reference", "weights_digest"]


def answer_log_probs(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Return the summed log-probabilities of the supervised tokens of each answer of a batch of preference pairs.

    Args:
        model: as in `streamsft.training.loss.token_losses`.
        batch: packs of pairs, and of nothing else.

    Returns:
        float[pairs, 2], the chosen answer's first, in the order of `Batch.pairs`.

    Raises:
        DataError: the batch has none.
    """
    if PAIR not in batch.carried:
        raise DataError("the batch holds no preference pairs; its sources need format: preference")
    losses = token_losses(model, batch)
    starts = torch.from_numpy(batch.pairs.starts(batch.labels.shape[1]).reshape(-1)).to(losses.device)
    labelled = (batch.labels.reshape(-1) != IGNORE_INDEX).nonzero().squeeze(1)
    answer = torch.searchsorted(starts, labelled, right=True) - 1
    return losses.new_zeros(len(starts)).index_add(0, answer, -losses).view(-1, 2)


def dpo_loss(rewards: torch.Tensor) -> torch.Tensor:
    """Return the loss of each pair, float[pairs], from the rewards of its answers, float[pairs, 2].

    A reward is beta times the log-probability by the model less that by the reference.
    """
    return -F.logsigmoid(rewards[:, 0] - rewards[:, 1])


def frozen_reference(
    model: torch.nn.Module | str, *, vocabulary: int | None, sequence_length: int, seed: int, comm: Comm
) -> torch.nn.Module:
    """Return a copy of `model` as a run begins with it, for evaluation, without gradients; collective.

    Args:
        model: as in `prepare_model`; a module must not have been trained yet.
        vocabulary: as there, like the others.
        sequence_length: slots per pack.
        seed: of the initial weights of ``tiny``.
        comm: the ranks, which all get the weights of rank 0.
    """
    with agreeing(comm):
        given = copy.deepcopy(model) if isinstance(model, torch.nn.Module) else model
        reference = prepare_model(given, vocabulary=vocabulary, sequence_length=sequence_length, seed=seed)
        assert reference is not None, "there is a model to compare with"
        reference.to(pick_device()).eval().requires_grad_(False)
    broadcast_weights(reference, comm)
    return reference


def weights_digest(model: torch.nn.Module) -> str:
    """Return a digest of all weights and buffers by name, 32 hexadecimal digits."""
    found = xxhash.xxh3_128()
    for name, tensor in model.state_dict().items():
        found.update(name.encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
