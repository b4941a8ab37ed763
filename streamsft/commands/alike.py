"""Whether all ranks were asked for the same run: each node starts with a config of its own."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any, Final

import numpy as np

from streamsft.comm import Comm, agreeing, gather_json
from streamsft.config import Config
from streamsft.errors import ConfigError, RunError

__all__ = ["check_alike", "check_shared"]

_OWN: Final[dict[str, Any]] = {
    "cache": True,
    "tokenizer": True,
    "text": {"chat_template"},
    "loader": {"workers", "start_method", "timeout", "background"},
    "metrics": {"sinks", "project"},
    "train": {"run_dir"},
}
"""What a node may have its own of: places, whose contents are compared once they are read, and what makes no
difference to the others."""
_PLACES: Final = ("path", "store", "hub", "config", "split", "revision", "data_files", "tier", "io")
"""The same of a source."""
_SHOWN: Final = 20
_ABSENT: Final = object()


def check_alike(config: Config, options: Mapping[str, Any], comm: Comm) -> None:
    """Refuse ranks whose configs or options ask for different runs; one collective where they do not.

    Args:
        config: this rank's.
        options: by name as the command line has it.
        comm: the ranks.

    Raises:
        ConfigError: on all ranks, the same; names each key with its values on rank 0 and on the first that differs.
    """
    mine = {**_defining(config), **options}
    text = json.dumps(mine, sort_keys=True).encode()
    digests = comm.all_gather(np.frombuffer(hashlib.blake2b(text, digest_size=16).digest(), np.uint8))
    if (digests == digests[0]).all():
        return
    lines = list(_differences(gather_json(comm, mine)))
    more = f"\n  and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    error = ConfigError(
        "the ranks were started for different runs; give all nodes the same config, overrides and options:\n"
        + "\n".join(lines[:_SHOWN])
        + more
    )
    error.shared = True
    raise error


def check_shared(run_dir: Path, comm: Comm) -> None:
    """Refuse a run directory that is not one folder for all ranks; rank 0 leaves a file for a moment where it lies.

    Raises:
        RunError: on all ranks; names the first that does not see the folder of rank 0.
    """
    if comm.size == 1:
        return
    path, host = run_dir.resolve(), socket.gethostname()
    mark: Path | None = None
    try:
        with agreeing(comm):
            if comm.rank == 0:
                place = next(folder for folder in (path, *path.parents) if folder.exists())
                mark = place / f".streamsft-{secrets.token_hex(8)}"
                mark.touch()
        mine = {
            "mark": mark.name if mark is not None else "",
            "below": path.relative_to(mark.parent).parts if mark is not None else (),
            "place": f"{run_dir} on {host}",
        }
        first = gather_json(comm, mine)[0]
        with agreeing(comm):
            if not _sees(path, first["mark"], tuple(first["below"])):
                raise RunError(
                    f"train.run_dir: {run_dir} on {host} is another folder than that of rank 0, {first['place']}; "
                    "give all nodes the same folder, on a file system that they share"
                )
    finally:
        if mark is not None:
            mark.unlink(missing_ok=True)


def _sees(path: Path, mark: str, below: tuple[str, ...]) -> bool:
    parts = path.parts
    return parts[len(parts) - len(below) :] == below and os.path.exists(Path(*parts[: len(parts) - len(below)]) / mark)


def _defining(config: Config) -> dict[str, Any]:
    """The config as JSON, without what a node may have its own of."""
    data: dict[str, Any] = config.model_dump(mode="json", exclude=_OWN)
    evaluated = data["eval"] or {"sets": {}}
    for rows in (*_rows(data["mix"]), *(each for each in evaluated["sets"].values() if isinstance(each, dict))):
        for key in _PLACES:
            rows.pop(key, None)
    if data["train"]["model"] not in ("tiny", "none"):
        data["train"]["model"] = "a folder"
    if data["train"]["parallel"] == "ddp":  # ranks meet once a step, not in each forward pass
        data["loader"].pop("micro_batch_size")
        evaluated.pop("batch_size", None)
    return data


def _rows(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for child in node["sources"].values():
        if "sources" in child:
            yield from _rows(child)
        else:
            yield child


def _differences(ranks: Sequence[Any], path: str = "") -> Iterator[str]:
    """A line for each key whose value is not the same on all ranks."""
    other = next((rank for rank, value in enumerate(ranks) if value != ranks[0]), None)
    if other is None:
        return
    if all(isinstance(value, dict) for value in ranks):
        for key in dict.fromkeys(key for values in ranks for key in values):
            yield from _differences([values.get(key, _ABSENT) for values in ranks], f"{path}.{key}" if path else key)
    else:
        yield f"  {path}: {_shown(ranks[0])} on rank 0, {_shown(ranks[other])} on rank {other}"


def _shown(value: Any) -> str:
    return "not there" if value is _ABSENT else shorten(json.dumps(value, ensure_ascii=False), 60, placeholder=" …")
