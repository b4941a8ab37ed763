"""What can be seen to be wrong with a run directory before the run's data are there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from streamsft.training.checkpoint import Checkpoints
from streamsft.training.comparing import former_mix, is_edited, run_record
from streamsft.training.model import check_model
from streamsft.training.rundir import check_free

__all__ = ["check_run"]


def check_run(
    run_dir: Path,
    fingerprint: Mapping[str, Any],
    *,
    model: str,
    mix: Mapping[str, Any],
    fresh: bool,
    accept_changes: bool,
) -> None:
    """Refuse to start a run that its directory would refuse in the end; nothing is changed there.

    Args:
        run_dir: the run directory, which need not exist.
        fingerprint: what `Loader.fingerprint` will be, with None for what of a source is not known yet.
        model: what is to be trained.
        mix: the mix as the config has it, for messages.
        fresh: whether an earlier run will be moved aside.
        accept_changes: whether other sources and weights are taken.

    Raises:
        RunError: the directory is in use, cannot be written to, is damaged, or holds a run of another stream or
            model.
    """
    check_free(run_dir)
    stored = None if fresh else Checkpoints(run_dir).newest()
    check_model(model, stored=stored)
    record = None if fresh else run_record(run_dir)
    theirs = stored.fingerprint if stored is not None else (record or {}).get("fingerprint")
    if theirs is not None:
        ours = _completed(fingerprint, theirs)
        mixes = (former_mix(run_dir, stored), mix)
        is_edited(run_dir, theirs, ours, mixes=mixes, accept_changes=accept_changes)


def _completed(fingerprint: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """`fingerprint` with the other one's values where it has None."""
    known = theirs.get("sources", {})
    sources = {name: _filled(entry, known.get(name, [])) for name, entry in fingerprint["sources"].items()}
    return {**fingerprint, "sources": sources}


def _filled(entry: list[Any], known: list[Any]) -> list[Any]:
    filled = [known[at] if value is None and at < len(known) else value for at, value in enumerate(entry)]
    while filled and filled[-1] is None:
        filled.pop()
    return filled
