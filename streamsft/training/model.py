"""The models that the reference loop trains, and how their weights are stored.

::

    tiny    a small Llama with random weights, for demos and tests
    none    no model: the data alone is run
    PATH    a directory or hub id, loaded by `transformers.AutoModelForCausalLM`
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from streamsft.errors import RunError
from streamsft.sources.hublocation import Location, locate
from streamsft.sources.paths import nearest
from streamsft.training.stored import StoredCheckpoint

__all__ = [
    "check_model",
    "model_kind",
    "pick_device",
    "prepare_model",
    "save_config",
    "save_weights",
    "tiny_model",
    "vocabulary_of",
]

_log = logging.getLogger(__name__)

_WEIGHTS = "weights.pt"


def pick_device() -> torch.device:
    """Return the current GPU of this process (`streamsft.comm.connect` sets it), or the CPU where there is none."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def model_kind(model: torch.nn.Module | str) -> str:
    """Return how a checkpoint names `model`: ``none``, ``tiny``, ``transformers`` or ``module``."""
    if isinstance(model, str):
        return model if model in ("none", "tiny") else "transformers"
    return "transformers" if hasattr(model, "save_pretrained") else "module"


def check_model(model: torch.nn.Module | str, *, stored: StoredCheckpoint | None) -> None:
    """Refuse what can be seen to be no model of the run, before anything is loaded.

    Args:
        model: as in `prepare_model`.
        stored: the checkpoint that the run goes on from.

    Raises:
        RunError: there is no such folder, or the checkpoint is of another kind.
    """
    kind = model_kind(model)
    if stored is not None and stored.model != kind:
        raise RunError(
            f"{stored.path}: the run trains a model of kind {stored.model!r}, now it is {kind!r}; set train.model "
            "back, choose another train.run_dir, or move the old run aside with --fresh"
        )
    if isinstance(model, str) and kind == "transformers" and stored is None:
        _locate(model)


def prepare_model(
    model: torch.nn.Module | str,
    *,
    vocabulary: int | None,
    sequence_length: int,
    seed: int,
    stored: StoredCheckpoint | None = None,
) -> torch.nn.Module | None:
    """Return the model to train, in float32 and on the CPU, or None for ``none``.

    Args:
        model: ``tiny``, ``none``, what `AutoModelForCausalLM.from_pretrained` takes (no code from the hub is run), or
            a module, which is returned.
        vocabulary: number of token ids; ``tiny`` needs it, unless it goes on from weights, which have their own.
        sequence_length: slots per pack.
        seed: of the initial weights of ``tiny``.
        stored: the checkpoint whose weights the model gets; if they are in parts, it gets their shapes alone.

    Raises:
        RunError: there is no such model, it has fewer than `vocabulary` token ids, or it is another one than the
            checkpoint's.
    """
    check_model(model, stored=stored)
    weights = stored.path / "model" if stored is not None else None
    in_parts = stored is not None and stored.in_parts
    if model == "none":
        return None
    if model == "tiny":
        count = vocabulary if weights is None else _stored_vocabulary(weights)
        if count is None:
            raise RunError(
                "train.model: tiny needs the number of token ids, and not every source is a store that has been gone "
                "through; set `tokenizer`, or give vocabulary="
            )
        model = tiny_model(count, sequence_length=sequence_length, seed=seed)
    elif isinstance(model, str):
        if weights is not None:
            _check_same_model(model, weights)
        net = _pretrained(str(weights or model), sequence_length, shape_alone=in_parts)
        weights, model = None, net
    assert isinstance(model, torch.nn.Module)
    if weights is not None and not in_parts:
        load_weights(model, weights)
    known = vocabulary_of(model)
    if vocabulary is not None and known is not None and known < vocabulary:
        raise RunError(
            f"train.model knows {known} token ids, the data has {vocabulary}: they do not belong together; train the "
            "model that the ids are of"
        )
    return model


def tiny_model(
    vocabulary: int, *, sequence_length: int, seed: int = 0, hidden: int = 128, layers: int = 2, heads: int = 4
) -> torch.nn.Module:
    """Return a small Llama in float32, the same weights for the same arguments; the global seed is untouched."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=sequence_length,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: torch.nn.Module = LlamaForCausalLM(config)
    return model


def _pretrained(name: str, sequence_length: int, *, shape_alone: bool = False) -> torch.nn.Module:
    location = _locate(name)
    from transformers import AutoConfig, AutoModelForCausalLM

    model: torch.nn.Module
    try:
        with _quietly():
            if shape_alone:
                config = AutoConfig.from_pretrained(location.name, local_files_only=True)
                make: Any = AutoModelForCausalLM.from_config
                model = make(config, dtype=torch.float32)
            else:
                model = AutoModelForCausalLM.from_pretrained(
                    location.name, dtype=torch.float32, local_files_only=location.offline
                )
    except (OSError, ValueError, ImportError) as error:
        unreached = location.offline and not Path(location.name).is_dir()
        why = f"there is no such folder ({nearest(name)}), and the hub cannot be reached" if unreached else str(error)
        raise RunError(f"train.model: {name}: cannot be loaded: {why}") from error
    window = getattr(model.config, "sliding_window", None)
    if window is not None and window < sequence_length and getattr(model.config, "use_sliding_window", True):
        _log.warning(
            "train.model %s attends within %s tokens; in packs of %s its documents are attended to in full",
            name,
            window,
            sequence_length,
        )
    return model


def _locate(name: str) -> Location:
    return locate(name, key="train.model", files=("config.json",), error=RunError)


def _check_same_model(name: str, stored: Path) -> None:
    """Refuse a model `name` of another shape than the one in `stored`; one that is gone is not missed."""
    try:
        location = _locate(name)
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(location.name, local_files_only=location.offline)
    except (OSError, ValueError):
        return
    old, new = (AutoConfig.from_pretrained(stored).to_dict(), config.to_dict())
    keys = ("model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    found = [f"{key}: {old.get(key)} in the run, {new.get(key)} now" for key in keys if old.get(key) != new.get(key)]
    if found:
        raise RunError(
            f"train.model {name!r} is another model than the run's: {'; '.join(found)}; set it back, or move the old "
            "run aside with --fresh"
        )


def _stored_vocabulary(weights: Path) -> int:
    from transformers import AutoConfig

    try:
        return int(AutoConfig.from_pretrained(weights).vocab_size)
    except (OSError, ValueError) as error:
        raise RunError(f"the weights in {weights} do not fit the model: {error}") from error


def vocabulary_of(model: torch.nn.Module) -> int | None:
    """Return how many token ids `model` knows, None where it does not say."""
    find = getattr(model, "get_input_embeddings", None)
    embeddings = find() if callable(find) else None
    count = getattr(embeddings, "num_embeddings", None)
    return count if isinstance(count, int) else None


def save_weights(model: torch.nn.Module, folder: Path) -> None:
    """Write the weights into the new directory `folder`; a transformers model can be loaded from it by anyone."""
    folder.mkdir()
    save: Any = getattr(model, "save_pretrained", None)
    if save is not None:
        with _quietly():
            save(folder)
    else:
        torch.save(model.state_dict(), folder / _WEIGHTS)


def save_config(model: torch.nn.Module, folder: Path) -> None:
    """Write into the new directory `folder` what a transformers model is made from, without its weights."""
    folder.mkdir()
    for part in ("config", "generation_config"):
        save: Any = getattr(getattr(model, part, None), "save_pretrained", None)
        if save is not None:
            save(folder)


def load_weights(model: torch.nn.Module, folder: Path) -> None:
    """Put the weights that `save_weights` wrote to `folder` into `model`, whose shapes must agree.

    Raises:
        RunError: the stored weights are of another model, or unreadable.
    """
    load: Any = getattr(type(model), "from_pretrained", None)
    try:
        if load is not None:
            with _quietly():
                state = load(folder, dtype=torch.float32).state_dict()
        else:
            state = torch.load(folder / _WEIGHTS, map_location="cpu", weights_only=True)
        model.load_state_dict(state)
    except (OSError, RuntimeError, ValueError) as error:
        raise RunError(f"the weights in {folder} do not fit the model: {error}") from error


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep transformers' progress bars off the screen: checkpoints are frequent."""
    from transformers.utils import logging as theirs

    shown = theirs.is_progress_bar_enabled()
    theirs.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            theirs.enable_progress_bar()  # type: ignore[no-untyped-call]
