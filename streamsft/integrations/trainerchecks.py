"""What among the arguments of a Trainer contradicts a stream, or would be without effect on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from streamsft.errors import ConfigError
from streamsft.stream.loader import Loader

__all__ = ["check_arguments", "check_evaluated", "check_given", "check_kind", "check_normalisation", "prepares"]

_PACKS, _RENDERED = "the loader packs", "the tokens of the loader are made already"
_MASKED = "the loader's loss masks say what is trained on (train_on of a source)"
_AT_DEFAULT = {
    "dataloader_num_workers": "give workers= to the Loader",
    "auto_find_batch_size": "the micro-batches of a step are fixed",
    "train_sampling_strategy": "the mix says the order",
    "data_seed": "give seed= to the Interleave",
    "packing": _PACKS,
    "packing_strategy": _PACKS,
    "eval_packing": _PACKS,
    "padding_free": _PACKS,
    "shuffle_dataset": "the mix shuffles",
    "truncation_mode": "give overflow= to the Packer",
    "assistant_only_loss": _MASKED,
    "completion_only_loss": _MASKED,
    "dataset_text_field": _RENDERED,
    "dataset_num_proc": _RENDERED,
    "chat_template_path": f"{_RENDERED}; give the template to the tokenizer that makes them",
}
"""Arguments of `TrainingArguments` and of TRL's `SFTConfig` that are to be as they are by default."""


def check_kind(trainer: type, args: Any) -> None:
    """Refuse a trainer of TRL's that would make data of its own, as all but `SFTTrainer` with an `SFTConfig` do.

    Raises:
        ConfigError: it is one.
    """
    theirs = [base.__name__ for base in trainer.__mro__ if base.__module__.partition(".")[0] == "trl"]
    if theirs and not prepares(args):
        raise ConfigError(
            f"{trainer.__name__}: TRL's {theirs[0]} with {type(args).__name__} would prepare data of its own; derive "
            "from SFTTrainer and give trl.SFTConfig, or from StreamTrainer"
        )


def check_arguments(args: Any, loader: Loader) -> None:
    """Refuse arguments of `TrainingArguments`, or of a subclass, that `loader` knows nothing of.

    Raises:
        ConfigError: with the argument's name.
    """
    kind, fields = type(args).__name__, {field.name: field for field in dataclasses.fields(args)}
    for name, fix in _AT_DEFAULT.items():
        if name in fields and getattr(args, name) != fields[name].default:
            raise ConfigError(f"{kind}: {name} is {getattr(args, name)!r}; leave it out: {fix}")
    _check_lengths(args, fields, loader.packer.packing.sequence_length)
    if prepares(args) and not (args.dataset_kwargs or {}).get("skip_prepare_dataset", True):
        raise ConfigError(f"{kind}: dataset_kwargs asks for a dataset to be prepared; leave it out: {_RENDERED}")
    if args.include_num_input_tokens_seen == "non_padding":
        raise ConfigError(
            f"{kind}: include_num_input_tokens_seen is 'non_padding', which would be guessed from token ids; leave it "
            "out, and take data/tokens of the stream's metrics"
        )
    if args.world_size > 1 and not args.average_tokens_across_devices:
        raise ConfigError(
            f"{kind}: average_tokens_across_devices is False, so ranks with few supervised tokens would weigh as much "
            "as others; leave it True"
        )
    if args.n_gpu > 1:
        raise ConfigError(f"one process has {args.n_gpu} GPUs; start a process for each, with torchrun")


def _check_lengths(args: Any, fields: Mapping[str, Any], slots: int) -> None:
    """Lengths that the packs of `slots` slots have are fine, and so are the defaults."""
    kind, longest = type(args).__name__, getattr(args, "max_length", None)
    multiple = getattr(args, "pad_to_multiple_of", None)
    if longest is not None and longest not in (slots, fields["max_length"].default):
        raise ConfigError(
            f"{kind}: max_length is {longest}, but the loader's packs have {slots} slots; leave it out, and give "
            "sequence_length to the Packer"
        )
    if isinstance(multiple, int) and slots % multiple:
        raise ConfigError(
            f"{kind}: pad_to_multiple_of is {multiple}, but the loader's packs have {slots} slots; leave it out, and "
            "give a sequence_length that is a multiple of it to the Packer"
        )


def check_given(given: Mapping[str, Any], args: Any) -> None:
    """Refuse keyword arguments of a Trainer that would be without effect, or fail late.

    Raises:
        ConfigError: with the argument's name.
    """
    evaluated = given.get("eval_dataset")
    for name in ("train_dataset", "formatting_func", *(() if evaluated is not None else ("data_collator",))):
        if given.get(name) is not None:
            raise ConfigError(f"StreamTrainer: {name} is given, but the loader makes the batches; leave it out")
    if prepares(args) and given.get("data_collator") is None:
        check_evaluated(evaluated)


def prepares(args: Any) -> bool:
    """Whether a Trainer with such arguments prepares its datasets, as TRL's does."""
    return hasattr(args, "dataset_kwargs")


def check_evaluated(evaluated: Any) -> None:
    """Refuse what a Trainer whose preparation of data is left out could not evaluate: rows that are not tokenized.

    Args:
        evaluated: an ``eval_dataset``, several by name, the name of one, or None.

    Raises:
        ConfigError: with what its first row has.
    """
    if evaluated is None or isinstance(evaluated, str):
        return
    for name, dataset in evaluated.items() if isinstance(evaluated, Mapping) else [("eval_dataset", evaluated)]:
        row = next(iter(dataset), None)
        if isinstance(row, Mapping) and {"input_ids", "labels"} <= row.keys():
            continue
        found = (
            f"has the columns {', '.join(map(str, row))}" if isinstance(row, Mapping) else f"is a {type(row).__name__}"
        )
        raise ConfigError(
            f"StreamTrainer: a row of {name} {found}, but it is evaluated as it is, without the preparation of "
            "training data, which is left out; give rows with input_ids and labels (-100 for what does not count), "
            "or evaluate held-out rows with streamsft.evaluate"
        )


def check_normalisation(trainer: Any) -> None:
    """Refuse a loss that would weigh all micro-batches alike.

    Raises:
        ConfigError: it does not take the number of tokens.
    """
    if not (trainer.model_accepts_loss_kwargs or trainer.compute_loss_func):
        raise ConfigError(
            f"{type(trainer.model).__name__}: its loss takes no num_items_in_batch, so micro-batches would weigh alike "
            "however few of their tokens are supervised; give compute_loss_func=…, which takes it"
        )
