"""Edits of the mix in the middle of a run: what is noted of them, and the mix that a checkpoint still needs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from streamsft.comm import Comm, agreeing
from streamsft.errors import RunError
from streamsft.stream.loader import Loader
from streamsft.stream.packer import Packer
from streamsft.stream.state import is_before_edit
from streamsft.training.stored import StoredCheckpoint

__all__ = ["MIX_FILE", "Rebuild", "describe_edit", "edit_record", "resume_loader", "saved_mixes"]

MIX_FILE = "mix.json"
"""In a checkpoint: what the mix in force is built from, and the one before it while a window of that is open."""

Rebuild: TypeAlias = Callable[[Mapping[str, Any]], Packer]
"""Builds the packer of an earlier mix from what was noted of it; collective."""


def edit_record(step: int, before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """What is noted of an edit behind `step`, as JSON, from the fingerprints of the streams.

    Shares are those of all draws at the start of the schedules, from and to; null where the source is not there.
    Orders are what the order of a source depends on beside seed and contents, from and to, where that was edited.
    """
    old, new = before["sources"], after["sources"]
    both = old.keys() & new.keys()
    shares = {
        name: [old[name][1] if name in old else None, new[name][1] if name in new else None] for name in old | new
    }
    return {
        "step": step,
        "added": sorted(new.keys() - old.keys()),
        "removed": sorted(old.keys() - new.keys()),
        "changed": sorted(
            name for name in both if [*old[name][:1], *old[name][2:]] != [*new[name][:1], *new[name][2:]]
        ),
        "orders": {
            name: [_order(old[name]), _order(new[name])] for name in sorted(both) if old[name][2:] != new[name][2:]
        },
        "shares": {name: pair for name, pair in sorted(shares.items()) if pair[0] != pair[1]},
        "schedules": after.get("schedules", {}),
    }


def describe_edit(edit: Mapping[str, Any]) -> str:
    """One line of an `edit_record`."""
    parts = [f"{what} {', '.join(edit[what])}" for what in ("added", "removed", "changed") if edit[what]]
    parts += [f"shuffle of {name}: {old} -> {new}" for name, (old, new) in edit["orders"].items()]
    parts += [f"{name} {_share(old)} -> {_share(new)}" for name, (old, new) in edit["shares"].items()]
    return f"the mix is edited behind step {edit['step']}: {'; '.join(parts) or 'its weights by step'}"


def _order(source: Sequence[Any]) -> str:
    """Of a source's entry in a fingerprint."""
    return str(source[2]) if len(source) > 2 else "whole passes"


def _share(share: float | None) -> str:
    return "none" if share is None else f"{share:.4g}"


def saved_mixes(
    state: Mapping[str, Any], mix: Mapping[str, Any] | None, before: Mapping[str, Any] | None
) -> dict[str, Mapping[str, Any] | None]:
    """The content of `MIX_FILE` beside the loader's complete `state`."""
    return {"mix": mix, "before": before if _is_open(state) else None}


def _is_open(state: Mapping[str, Any]) -> bool:
    """Whether a lane still has a window of the mix before an edit open."""
    return any(is_before_edit(lane) for lane in state["lanes"].values())


def resume_loader(
    loader: Loader, stored: StoredCheckpoint, rebuild: Rebuild | None, comm: Comm
) -> Mapping[str, Any] | None:
    """Give `loader` its state in `stored`, with the mix before an edit where a window of that is open; collective.

    Returns:
        What the mix before the edit is built from; None without one.

    Raises:
        RunError: the mix before the edit is needed, and is not known; or a file is damaged.
        StateError: the loader refuses its state.
        StreamsftError: a source of the mix before the edit cannot be used.
    """
    before: Mapping[str, Any] | None = None
    edited = False
    with agreeing(comm):
        state = stored.json("loader.json")
        edited = stored.fingerprint != json.loads(json.dumps(loader.fingerprint))
        if edited or _is_open(state):
            before = stored.json(MIX_FILE)["mix" if edited else "before"] if rebuild is not None else None
            if before is None:
                raise RunError(
                    f"{stored.path}: the mix before the edit is needed to finish its open windows, and is not known; "
                    "go on with `streamsft train`, which notes it"
                )
    packer = rebuild(before) if before is not None and rebuild is not None else None
    with agreeing(comm):
        loader.load_state_dict(state, before=packer)
    return before
