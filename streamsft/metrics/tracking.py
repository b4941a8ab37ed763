"""What the sinks of experiment trackers share: which run of the tracker is ours, and which steps it holds.

A tracker only appends. So that a resumed run goes on in the same run there, and no step is there twice, a small file
in the run directory, ``trackers/<tracker>.json``, names the tracker's run and the last step given to it. The step is
noted before it is given: who is killed in between leaves a gap rather than a step that is there twice.
"""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any, final

from streamsft.errors import ConfigError

__all__ = ["DEFAULT_PROJECT", "TrackedRun", "need"]

DEFAULT_PROJECT = "streamsft"


def need(module: str, sink: str) -> None:
    """Refuse a sink whose package is missing, without importing it.

    Raises:
        ConfigError: with the command that installs it.
    """
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"metrics.sinks: {sink!r} needs the package {module}: pip install 'streamsft[{sink}]'")


@final
class TrackedRun:
    """The note of one tracker's run; a new one where there is no note.

    Args:
        path: the file of the note.

    Attributes:
        id: what the tracker calls the run; None before it is made.
        step: the last step that was given to it, 0 before the first.

    Raises:
        ConfigError: the note is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id: str | None = None
        self.step = 0
        try:
            note: Any = json.loads(path.read_bytes())
            self.id, self.step = str(note["run"]), int(note["step"])
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} is damaged ({error}); remove it to begin another run there") from error

    def claim(self, step: int) -> bool:
        """Note that the step is given to the tracker now; False where it holds the step, or a later one, already."""
        if step <= self.step:
            return False
        self.step = step
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
        beside.write_text(json.dumps({"run": self.id, "step": step}), encoding="utf-8")
        beside.replace(self.path)
        return True
