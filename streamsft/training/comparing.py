"""Whether a run directory holds a run of the same stream, told in the words of the user's config."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from streamsft.errors import RunError, StateError
from streamsft.shown import cause
from streamsft.stream.state import check_edit, differing
from streamsft.training.checkpoint import Checkpoints
from streamsft.training.edits import MIX_FILE
from streamsft.training.stored import StoredCheckpoint

__all__ = ["former_mix", "is_edited", "run_record"]

_VERSION = 1
_FIX = "choose another train.run_dir, or move the old run aside with --fresh"


def run_record(run_dir: Path) -> dict[str, Any] | None:
    """The content of `run.json`, None where there is none.

    Raises:
        RunError: it is unreadable, or of another format version.
    """
    path = run_dir / "run.json"
    try:
        record = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is unreadable: {cause(error)}; {_way_out(run_dir)}") from error
    if not isinstance(record, dict):
        raise RunError(f"{path} is unreadable: it holds no JSON object; {_way_out(run_dir)}")
    if record.get("version") != _VERSION:
        raise RunError(f"{path}: not a run of format version {_VERSION}; start over with --fresh")
    return record


def _way_out(run_dir: Path) -> str:
    """What to do about a `run.json` that cannot be read: a checkpoint says all that going on takes."""
    if not Checkpoints(run_dir).steps:
        return "start over with --fresh"
    return (
        "remove it, and the run goes on exactly from its newest checkpoint (only what was noted of edits of the mix, "
        "for `explain`, is lost); or start over with --fresh"
    )


def former_mix(run_dir: Path, stored: StoredCheckpoint | None) -> Mapping[str, Any]:
    """The mix of the run so far as its config had it; empty where that was not noted."""
    path = run_dir / "config.json" if stored is None else stored.path / MIX_FILE
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError):  # it only makes messages clearer
        return {}
    record = record.get("mix") if isinstance(record, dict) else None
    if stored is not None:
        record = record.get("mix") if isinstance(record, dict) else None
    return record if isinstance(record, dict) else {}


def is_edited(
    run_dir: Path,
    theirs: Mapping[str, Any],
    ours: Mapping[str, Any],
    *,
    mixes: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {}),
    accept_changes: bool = False,
) -> bool:
    """Whether the run in `run_dir` had another mix until now; refuse it unless that is accepted.

    Args:
        run_dir: the run directory.
        theirs: fingerprint of the run's stream.
        ours: fingerprint of the stream that it is to go on with.
        mixes: their mix and ours, as configs have it; for messages alone.
        accept_changes: take other sources and weights from here on.

    Raises:
        RunError: they differ, in more than is accepted; each difference is told with both values.
    """
    lines = list(_told(theirs, ours, *mixes))
    if not lines:
        return False
    try:
        check_edit(theirs, ours)
        accept = ", take them from here on with --accept-changes"
    except StateError as error:
        if accept_changes:
            raise RunError(f"run directory {run_dir}: {error}\nchange these back, {_FIX}") from error
        accept = ""
    if not accept_changes:
        raise RunError(
            f"run directory {run_dir} holds a run of another stream; these differ:\n"
            + "\n".join(f"  {line}" for line in lines)
            + f"\nchange them back{accept}, {_FIX}"
        )
    return True


def _told(
    theirs: Mapping[str, Any], ours: Mapping[str, Any], mix_before: Mapping[str, Any], mix: Mapping[str, Any]
) -> Iterator[str]:
    """A line for each difference. Where the mixes are known, weights stand for the shares that follow from them."""
    found = differing(theirs, ours)
    places = {**_places(mix_before), **_places(mix)}
    weights = list(_changed_weights(mix_before, mix)) if mix_before and mix else []
    explained = bool(weights) or (bool(mix_before and mix) and any(d.part == "presence" for d in found))
    for difference in found:
        if not (explained and difference.part in ("share", "schedule")):
            yield difference.line(places.get(difference.source))
    if any(difference.part in ("share", "schedule", "presence") for difference in found):
        yield from weights


def _places(mix: Mapping[str, Any]) -> dict[str, str]:
    """Where each source and group stands in the config."""
    return {path.rpartition(".sources.")[2]: path for path, _ in _nodes(mix, "mix")}


def _changed_weights(before: Mapping[str, Any], mix: Mapping[str, Any]) -> Iterator[str]:
    old, new = ({path: node.get("weight") for path, node in _nodes(one, "mix")} for one in (before, mix))
    for path in [path for path in old if path in new]:
        if old[path] != new[path]:
            yield f"{path}.weight: {_weight(old[path])} in the run, {_weight(new[path])} here"


def _nodes(node: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every source and group below `node`, with its path in the config."""
    below = node.get("sources")
    for name, child in below.items() if isinstance(below, Mapping) else ():
        if isinstance(child, Mapping):
            yield f"{path}.sources.{name}", child
            yield from _nodes(child, f"{path}.sources.{name}")


def _weight(weight: Any) -> str:
    if weight is None:
        return "none"
    return f"{weight:g}" if isinstance(weight, int | float) else json.dumps(weight)
