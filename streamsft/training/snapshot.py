"""What a checkpoint holds, gathered from all ranks and given back to them.

::

    model/          the weights; of a transformers model as `save_pretrained` writes them
    optimizer.pt    the optimizer's state
    state/          in place of both, of a run with divided weights: see `streamsft.training.shardfiles`; model/ then
                    has the configuration of a transformers model alone
    rng.pt          per rank the states of the random generators of torch, numpy and Python
    loader.json     the loader's state, of all ranks
    mix.json        see `streamsft.training.edits`
    metrics.json    totals and pending deltas of the metrics, of all ranks
    trainer.json    counters of the loop

Tensors are loaded with ``weights_only=True``, or from safetensors; nothing is unpickled. The learning rate
is a function of the step, so there is no scheduler state.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch

from streamsft.comm import Comm, agreeing, gather_bytes
from streamsft.errors import RunError
from streamsft.metrics.aggregator import Aggregator
from streamsft.order.keys import derive_key
from streamsft.stream.loader import Loader
from streamsft.training.audit import Audit
from streamsft.training.checkpoint import Checkpoints
from streamsft.training.edits import MIX_FILE, saved_mixes
from streamsft.training.model import save_config, save_weights
from streamsft.training.preference import weights_digest
from streamsft.training.sharding import distributed_state
from streamsft.training.stored import STATE_FOLDER, StoredCheckpoint

if TYPE_CHECKING:
    from streamsft.training.sharded import ShardedSaver

__all__ = ["Parts", "open_saver", "restore", "save", "seed_generators"]


@final
@dataclass(kw_only=True)
class Parts:
    """The moving parts of a run, whose states make up a checkpoint.

    Attributes:
        loader: gives the batches.
        aggregator: gathers the metrics.
        model: None when the data alone is run.
        optimizer: of the model's parameters; None without a model.
        mix: what the mix is built from, as JSON.
        mix_before: the same of the mix before an edit, which windows may be open of.
        skipped_steps: steps so far that had no supervised token on any rank.
        reference: the frozen model that the loss compares with; None where there is none.
    """

    loader: Loader
    aggregator: Aggregator
    model: torch.nn.Module | None
    optimizer: torch.optim.Optimizer | None
    mix: Mapping[str, Any] | None = None
    mix_before: Mapping[str, Any] | None = None
    skipped_steps: int = 0
    reference: torch.nn.Module | None = None

    @cached_property
    def reference_digest(self) -> str | None:
        """Digest of the weights of `reference`."""
        return None if self.reference is None else weights_digest(self.reference)


def open_saver(comm: Comm, *, background: bool) -> ShardedSaver:
    """What writes the weights of a run that are divided over the ranks of `comm`."""
    from streamsft.training.sharded import ShardedSaver  # takes a second to import

    return ShardedSaver(comm, background=background)


def save(
    parts: Parts,
    *,
    step: int,
    kind: str,
    keep: int,
    run_dir: Path,
    audit: Audit | None,
    comm: Comm,
    saver: ShardedSaver | None = None,
) -> None:
    """Write the checkpoint of `step`; collective. Either it is there when this returns, or all ranks raise.

    With a `saver` the weights are written in parts, and those that write in the background return before the
    checkpoint is there.

    Raises:
        RunError: it could not be written; the older ones are as they were.
    """
    fill = _filling(parts, step, comm, divided=saver is not None)
    checkpoints, fingerprint = Checkpoints(run_dir), parts.loader.fingerprint
    partial = checkpoints.partial(step)
    if saver is not None:
        saver.wait()
    with agreeing(comm):
        if audit is not None:
            audit.sync()
        if comm.rank == 0:
            if saver is None:
                checkpoints.write(step, fill, fingerprint=fingerprint, model=kind)
            else:
                checkpoints.prepare(step, fill)
    if saver is None or parts.model is None or parts.optimizer is None:
        with agreeing(comm):
            if comm.rank == 0:
                checkpoints.publish(partial, step, keep=keep)
        return

    def finish(written: Mapping[str, str]) -> None:
        digests = {f"{STATE_FOLDER}/{name}": digest for name, digest in written.items()}
        checkpoints.seal(partial, step, fingerprint=fingerprint, model=kind, digests=digests)
        checkpoints.publish(partial, step, keep=keep)

    mine = partial if comm.rank == 0 else None
    saver.save(
        partial / STATE_FOLDER,
        parts.model,
        parts.optimizer,
        done=finish,
        failed=lambda error: checkpoints.unwritten(step, error, mine),
    )


def _filling(parts: Parts, step: int, comm: Comm, *, divided: bool) -> Callable[[Path], None]:
    """What writes the files of a checkpoint into a folder, all but weights that are `divided`; collective."""
    state = parts.loader.gather_state(comm)
    contents = {
        "loader.json": state,
        MIX_FILE: saved_mixes(state, parts.mix, parts.mix_before),
        "metrics.json": parts.aggregator.gather_state(),
        "trainer.json": {
            "step": step,
            "skipped_steps": parts.skipped_steps,
            "reference": parts.reference_digest,
        },
    }
    generators = gather_bytes(comm, _packed(_generator_states()))

    def fill(folder: Path) -> None:
        for name, content in contents.items():
            (folder / name).write_text(json.dumps(content), encoding="utf-8")
        torch.save([torch.frombuffer(bytearray(state), dtype=torch.uint8) for state in generators], folder / "rng.pt")
        if parts.model is None or parts.optimizer is None:
            return
        if divided:
            save_config(parts.model, folder / "model")
            (folder / STATE_FOLDER).mkdir()
        else:
            save_weights(parts.model, folder / "model")
            torch.save(parts.optimizer.state_dict(), folder / "optimizer.pt")

    return fill


def restore(parts: Parts, stored: StoredCheckpoint, *, seed: int, comm: Comm) -> None:
    """Give every part but the loader, and the weights that are not in parts, the state that `stored` holds; collective.

    A run of the same number of ranks gets its random generators back; on another number they start anew from
    `seed`, the step and the rank.

    Raises:
        RunError: a file is damaged, or belongs to another model or optimizer.
    """
    with agreeing(comm):
        parts.aggregator.load_state(stored.json("metrics.json"))
        trainer = stored.json("trainer.json")
        parts.skipped_steps = trainer["skipped_steps"]
        _check_reference(stored, trainer.get("reference"), parts.reference_digest)
        states = _tensors(stored, "rng.pt")
    if parts.model is not None and parts.optimizer is not None:
        if stored.in_parts:
            from streamsft.training.sharded import load_sharded

            load_sharded(stored, parts.model, parts.optimizer, comm)
        else:
            _load_optimizer(parts.optimizer, stored, comm)
    with agreeing(comm):
        if len(states) == comm.size:
            _set_generators(torch.load(io.BytesIO(states[comm.rank].numpy()), weights_only=True))
        else:
            seed_generators(seed, step=stored.step, rank=comm.rank)


def _load_optimizer(optimizer: torch.optim.Optimizer, stored: StoredCheckpoint, comm: Comm) -> None:
    name = "optimizer.pt"
    with agreeing(comm):
        whole = _tensors(stored, name)
    state = distributed_state(optimizer, whole)
    with agreeing(comm):
        try:
            optimizer.load_state_dict(state)
        except ValueError as error:
            raise RunError(
                f"{stored.path / name} does not fit the model's parameters: {error}; start over with --fresh"
            ) from error


def _check_reference(stored: StoredCheckpoint, before: str | None, now: str | None) -> None:
    if before == now:
        return
    if before is None or now is None:
        old, new = ("cross_entropy", "dpo") if before is None else ("dpo", "cross_entropy")
        raise RunError(
            f"{stored.path}: the run trains with loss: {old}, now it is {new}; set train.loss back, or move the old "
            "run aside with --fresh"
        )
    raise RunError(
        f"{stored.path}: the model that the run began with, which loss: dpo compares with, had other weights (digest "
        f"{before}, now {now}); give the same train.model, seed and tokenizer, or move the old run aside with --fresh"
    )


def seed_generators(seed: int, *, step: int, rank: int) -> None:
    """Start the process's random generators from `seed`, the step and the rank."""
    key = derive_key(seed, "train", step, rank)
    torch.manual_seed(key)
    np.random.seed(key % (1 << 32))
    random.seed(key)


def _generator_states() -> dict[str, Any]:
    """Return the states as tensors and plain numbers, which load without unpickling objects."""
    numbers = np.random.get_state(legacy=False)
    version, words, gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "numpy": torch.from_numpy(numbers["state"]["key"].astype(np.int64)),
        "numpy_rest": [numbers["state"]["pos"], numbers["has_gauss"], numbers["gauss"]],
        "python": torch.tensor(words),
        "python_rest": [version, gauss],
    }


def _set_generators(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    position, has_gauss, gauss = state["numpy_rest"]
    np.random.set_state(("MT19937", state["numpy"].numpy().astype(np.uint32), position, has_gauss, gauss))
    version, gauss = state["python_rest"]
    random.setstate((version, tuple(state["python"].tolist()), gauss))


def _packed(state: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _tensors(stored: StoredCheckpoint, name: str) -> Any:
    try:
        return torch.load(stored.path / name, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged archive fails in many ways
        raise stored.damaged(name, error) from error
