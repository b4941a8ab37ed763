"""The training loss: summed over the supervised tokens, divided once, by their count over everything.

A step's loss is (sum of token losses) / (number of supervised tokens), both over all micro-batches and all
ranks; so it does not depend on how the packs were split. The loop back-propagates sums and divides the summed
gradients by the global count.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that everyone knows it by
from torch.nn.parallel import DistributedDataParallel

from streamsft.errors import ConfigError
from streamsft.sources.tokennames import PAIR
from streamsft.stream.collate import IGNORE_INDEX, Batch

__all__ = ["refuse_pairs", "token_loss_sum", "token_losses"]


def token_loss_sum(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Return the summed cross-entropy of the supervised tokens of `batch`, a scalar that can be differentiated.

    The model's output layer is run over supervised positions only: with a vocabulary of 129,000 the logits
    of a full pack would be most of the memory. What the model does to its logits afterwards (scaling, soft
    caps) still applies. Models without an output layer of their own give all logits, of which the
    supervised ones are taken. A model that is wrapped for data parallelism is called as it is.

    Raises:
        ConfigError: the batch has preference pairs, both answers of which would be trained on.
    """
    refuse_pairs(batch)
    logits, targets = _supervised(model, batch)
    return F.cross_entropy(logits, targets, reduction="sum")


def refuse_pairs(batch: Batch) -> None:
    """Refuse preference pairs where all supervised tokens would be trained on alike.

    Raises:
        ConfigError: there are some.
    """
    if PAIR in batch.carried and len(batch.pairs):
        raise ConfigError(
            "the batch has preference pairs, and cross-entropy would train on both answers alike; train them with "
            "loss: dpo, or with a loss of your own on `answer_log_probs`"
        )


def token_losses(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Return the cross-entropy of each supervised token of `batch`, in order; float[n] as precise as the logits.

    They are found as `token_loss_sum` finds their sum.
    """
    logits, targets = _supervised(model, batch)
    return F.cross_entropy(logits, targets, reduction="none")


def _supervised(model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits [n, vocabulary], at least float32, and the targets int64[n] of the supervised tokens."""
    targets = batch.shifted_labels()
    supervised = targets != IGNORE_INDEX
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    inputs = _model_inputs(inner, batch)
    head = _output_layer(inner)
    if head is None:
        logits = _logits(model(**inputs))[supervised]
    else:
        with _only(head, supervised):
            logits = _logits(model(**inputs))[0]
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    return logits, targets[supervised]


@contextmanager
def _only(head: torch.nn.Module, chosen: torch.Tensor) -> Iterator[None]:
    """Hand `head` the hidden states at `chosen` (bool [packs, length]) alone, as one row [1, n, hidden]."""
    handle = head.register_forward_pre_hook(lambda _, arguments: (arguments[0][chosen].unsqueeze(0), *arguments[1:]))
    try:
        yield
    finally:
        handle.remove()


def _output_layer(model: torch.nn.Module) -> torch.nn.Module | None:
    find = getattr(model, "get_output_embeddings", None)
    head = find() if callable(find) else None
    return head if isinstance(head, torch.nn.Module) else None


def _logits(output: Any) -> torch.Tensor:
    logits = output if isinstance(output, torch.Tensor) else output.logits
    assert isinstance(logits, torch.Tensor)
    return logits


def _model_inputs(model: torch.nn.Module, batch: Batch) -> dict[str, Any]:
    """Return the model's arguments, without labels (the loss is ours) and with the mask in the model's form."""
    config = getattr(model, "config", None)
    eager = getattr(config, "_attn_implementation", None) == "eager"
    inputs: dict[str, Any] = dict(batch.model_inputs(next(model.parameters()).dtype if eager else torch.bool))
    del inputs["labels"]
    return inputs if config is None else {**inputs, "use_cache": False}
