"""The loss of a model on samples that it is not trained on: each of them once, on any number of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

import numpy as np
import torch

from streamsft.comm import Comm, agree, current
from streamsft.errors import ConfigError, RunError
from streamsft.metrics.record import evaluation_group
from streamsft.stream.evaluation import EvalLoader
from streamsft.training.loss import token_losses
from streamsft.training.model import vocabulary_of
from streamsft.types import Floats, check_name

__all__ = ["Evaluation", "evaluate"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What a run evaluates, and when: every `every` steps, and behind its last one.

    Attributes:
        sets: name → this rank's part of the samples.
        every: optimizer steps from one evaluation to the next; None evaluates behind the last step alone.
    """

    sets: Mapping[str, EvalLoader]
    every: int | None = None

    def __post_init__(self) -> None:
        if self.every is not None and self.every < 1:
            raise ConfigError(f"evaluation: every {self.every} steps; give at least 1")

    def due(self, step: int, last: bool) -> bool:
        """Whether there is an evaluation behind a step, which may be the run's last."""
        return last or (self.every is not None and step % self.every == 0)


def evaluate(model: torch.nn.Module, sets: Mapping[str, EvalLoader], *, comm: Comm | None = None) -> dict[str, float]:
    """The loss of `model` on each set and on all of them together, by supervised tokens. Collective.

    The result is the same on every rank, and on any number of ranks to what the order of adding float64 numbers
    makes: a mean over all supervised tokens, not of means. Random generators and the training stream are left as they
    are, and the modules are in training or evaluation mode as before.

    Args:
        model: as in `streamsft.training.loop.train`; on the device that it is to run on.
        sets: name → this rank's part of the samples.
        comm: the ranks; the default process group or this process alone.

    Returns:
        ``eval_<set>/loss`` (nats per supervised token), ``eval_<set>/supervised_tokens`` and ``eval_<set>/samples``
        of each set, and the same below ``eval/`` of all of them.

    Raises:
        ConfigError: there is no set, a name has other characters than those of sources, or a loader is of another
            rank.
        RunError: a token id is outside the model's vocabulary.
        StreamsftError: samples cannot be read. What one rank raises, all raise.
    """
    comm = comm if comm is not None else current()
    _check(sets, comm)
    sums = np.zeros((len(sets), 3))
    failure: Exception | None = None
    try:
        with _evaluating(model):
            for row, loader in zip(sums, sets.values(), strict=True):
                row += _sums(model, loader)
    except Exception as error:  # told to all ranks, none of which is to wait for another
        failure = error
    if comm.size > 1:
        everyone = comm.all_gather(np.append(sums.reshape(-1), failure is not None))
        if everyone[:, -1].any():
            agree(comm, failure)
        sums = everyone[:, :-1].sum(axis=0).reshape(sums.shape)
    elif failure is not None:
        raise failure
    record: dict[str, float] = {}
    for name, (loss, tokens, samples) in [*zip(sets, sums, strict=True), ("", sums.sum(axis=0))]:
        key = evaluation_group(name)
        record[f"{key}/loss"] = float(loss / tokens)
        record[f"{key}/supervised_tokens"] = int(tokens)
        record[f"{key}/samples"] = int(samples)
    return record


def _check(sets: Mapping[str, EvalLoader], comm: Comm) -> None:
    if not sets:
        raise ConfigError("evaluation: there is no set; give at least one")
    for name, loader in sets.items():
        check_name(name, "evaluation set")
        if (loader.dp.index, loader.dp.count) != (comm.rank, comm.size):
            raise ConfigError(
                f"evaluation set {name}: its loader has {loader.dp}, and this is rank {comm.rank} of {comm.size}: give "
                f"EvalLoader dp=Shard({comm.rank}, {comm.size})"
            )


def _sums(model: torch.nn.Module, loader: EvalLoader) -> Floats:
    """Sum of losses, supervised tokens and samples of this rank's part of a set, float64[3].

    A batch of padding goes through the model too: with sharded weights all ranks make each forward pass together.
    """
    device, known = next(model.parameters()).device, vocabulary_of(model)
    total = torch.zeros((), dtype=torch.float64, device=device)
    tokens = samples = 0
    for batch in loader:
        if known is not None and (largest := int(batch.input_ids.max())) >= known:
            raise RunError(
                f"evaluation: token id {largest}, but the model knows {known} ids; the set's tokens are of another "
                "tokenizer"
            )
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            losses = token_losses(model, batch.to(device, non_blocking=True))
        total += losses.double().sum()
        tokens += len(losses)
        samples += int(batch.documents.table.first.sum())
    return np.array([float(total), tokens, samples])


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Have the modules in evaluation mode, without gradients, and put each back."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True
