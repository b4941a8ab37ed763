"""The stream's file in the checkpoints of `transformers.Trainer`, and which of these are whole."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from streamsft.errors import StateError
from streamsft.training.durable import write_file

__all__ = ["begin_checkpoint", "read_stream", "whole_checkpoint"]

_FILE = "stream.json"
_LAST_WRITTEN = "trainer_state.json"
_NAME = re.compile(r"checkpoint-(\d+)")


def begin_checkpoint(folder: Path, content: dict[str, Any]) -> None:
    """Write the stream's file into the checkpoint `folder`, which does not count as whole from then on until it is."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _LAST_WRITTEN).unlink(missing_ok=True)
    write_file(folder / _FILE, json.dumps(content).encode())


def read_stream(folder: Path) -> dict[str, Any]:
    """What `begin_checkpoint` wrote.

    Raises:
        StateError: it is missing or damaged.
    """
    try:
        content = json.loads((folder / _FILE).read_bytes())
    except FileNotFoundError as error:
        raise StateError(
            f"{folder} holds no {_FILE}: not a StreamTrainer wrote it, so where its stream stood is not known; "
            "go on from another checkpoint, or start anew"
        ) from error
    except (OSError, ValueError) as error:
        raise StateError(f"{folder / _FILE} cannot be read ({error}); go on from another checkpoint") from error
    if not isinstance(content, dict) or not content.keys() >= {"step", "loader", "metrics"}:
        raise StateError(f"{folder / _FILE} is no state of a stream; go on from another checkpoint")
    return content


def whole_checkpoint(folder: Path) -> Path | None:
    """The checkpoint of the latest step in `folder` that was written to its end, None where there is none.

    One is whole if the file that the Trainer writes last, and nothing reads before it is, can be read.
    """
    found = {int(match[1]): path for path in folder.glob("checkpoint-*") if (match := _NAME.fullmatch(path.name))}
    for _, path in sorted(found.items(), reverse=True):
        if (path / _FILE).is_file() and _is_json(path / _LAST_WRITTEN):
            return path
    return None


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return True
