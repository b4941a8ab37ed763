"""Where a run's stream stood before a step: its nearest checkpoint, and the mixes that it had."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from streamsft.build import build
from streamsft.build_former import former_config
from streamsft.build_sources import Transforms, all_sources, drawn_sources
from streamsft.comm import LocalComm
from streamsft.commands.preparing import prepare_sources
from streamsft.commands.telling import telling
from streamsft.config import Config
from streamsft.encoders import Encoders
from streamsft.errors import RunError
from streamsft.metrics.jsonlines import last_record
from streamsft.shown import cause
from streamsft.stream.loader import Loader
from streamsft.stream.skipping import advance
from streamsft.stream.state import differences, is_before_edit
from streamsft.training.checkpoint import Checkpoints
from streamsft.training.edits import MIX_FILE
from streamsft.training.stored import StoredCheckpoint

__all__ = ["last_step", "loader_before", "run_config"]


def run_config(run: str | Path | None) -> dict[str, Any]:
    """The config that a run last went on with.

    Raises:
        RunError: there is no run, or what it wrote cannot be read.
    """
    if run is None:
        raise RunError("explain: give a config, or a run directory with --run")
    return Config.model_validate(_read(Path(run) / "config.json")).model_dump(exclude_defaults=True)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RunError(
            f"{path} cannot be read: {cause(error)}; give the directory of a run of `streamsft train`"
        ) from error


def loader_before(
    config: Config, step: int, run: Path | None, encoders: Encoders, transforms: Transforms, *, given: bool = True
) -> Loader:
    """A loader of all packs that stands as near before optimizer step `step` as is known without planning.

    With a run, at its nearest checkpoint, under the mix that was in force; without one, at the start.

    Args:
        config: the config.
        step: the step.
        run: the directory of a run of `config`, or of earlier states of its mix.
        encoders: the tokenizer of `config`.
        transforms: source name → function that makes its rows into tokens.
        given: whether the mix of `config` counts for the last steps of the run, rather than what it noted of it.

    Raises:
        RunError: that mix is not known any more, or the run cannot be read.
        StreamsftError: what can be mended otherwise.
    """
    if run is None:
        return _build(config, encoders, transforms)
    noted = _read(run / "run.json")
    edits = [edit["step"] for edit in noted.get("edits", ()) if edit["step"]]
    stored = _nearest(run, step)
    begun = 0 if stored is None else stored.step
    at = sum(edit < begun for edit in edits)
    wanted = sum(edit < step for edit in edits)
    records = _records(run, edits)
    configs = {number: former_config(config, record, transforms) for number, record in records.items()}
    if given or len(edits) not in configs:
        configs[len(edits)] = config
    missing = [number for number in range(at, wanted + 1) if number not in configs]
    if missing:
        raise RunError(
            f"run directory {run}: the mix of step {step} was edited behind step {edits[missing[0]]}, and no "
            "checkpoint from before that is kept: give the config of that time, without --run"
        )
    loader = _build(configs[at], encoders, transforms)
    if stored is None and at == len(edits) and (found := differences(noted["fingerprint"], loader.fingerprint)):
        raise RunError(f"run directory {run}: its stream is not that of the config:\n  " + "\n  ".join(found))
    if stored is not None:
        state = stored.json("loader.json")
        before = stored.json(MIX_FILE)["before"] if any(map(is_before_edit, state["lanes"].values())) else None
        former = None if before is None else former_config(config, before, transforms)
        loader.load_state_dict(state, None if former is None else _build(former, encoders, transforms).packer)
    for number in range(at + 1, wanted + 1):
        with telling(f"planning to the edit behind step {edits[number - 1]:,}") as told:
            advance(loader, edits[number - 1], told)
        edited = _build(configs[number], encoders, transforms)
        edited.load_state_dict(loader.state_dict(), loader.packer)
        loader = edited
    return loader


def last_step(run: Path) -> int:
    """The last step that the files of a run tell of, 0 if of none; it may have made more that it has not logged."""
    files = (run / "metrics.jsonl", *(run / "audit").glob("rank-*.jsonl"))
    records = filter(None, map(last_record, files))
    return max([0, *Checkpoints(run).steps, *(int(record["step"]) for record in records)])


def _nearest(run: Path, step: int) -> StoredCheckpoint | None:
    """The newest checkpoint of steps before `step`."""
    checkpoints = Checkpoints(run)
    steps = [number for number in checkpoints.steps if number < step]
    return checkpoints.of(max(steps)) if steps else None


def _records(run: Path, edits: list[int]) -> dict[int, Mapping[str, Any]]:
    """What is noted of the mixes of a run, by how many edits came before each."""
    checkpoints = Checkpoints(run)
    found: dict[int, Mapping[str, Any]] = {}
    for step in checkpoints.steps:
        at = sum(edit < step for edit in edits)
        mixes = checkpoints.of(step).json(MIX_FILE)
        for number, record in ((at, mixes["mix"]), (at - 1, mixes["before"])):
            if record is not None and number >= 0:
                found[number] = record
    return found


def _build(config: Config, encoders: Encoders, transforms: Transforms) -> Loader:
    """A loader of all packs, which reads no further than it is asked to."""
    alone = config.loader.model_copy(update={"workers": 0, "background": False})
    stores = {name for name, source in all_sources(config.mix.sources) if source.store is not None}
    known = {name: made for name, made in transforms.items() if name in drawn_sources(config) and name not in stores}
    sources = prepare_sources(config, encoders, LocalComm(), transforms=known)
    return build(config.model_copy(update={"loader": alone}), sources, encoders).loader
