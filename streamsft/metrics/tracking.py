"""What the sinks of experiment trackers share: which run of the tracker is ours, and which steps it holds.

A tracker only appends. So that a resumed run goes on in the same run there, and no step is there twice, a small file
in the run directory, ``trackers/<tracker>.json``, names the tracker's run and the last step given to it.

Given is not held: most trackers write behind the run's back, and a run that is killed loses what was not written yet.
So a sink that goes on with a run asks the tracker what it holds, `TrackedRun.found`, and gives it again, out of
metrics.jsonl, the records that it lacks, `TrackedRun.due`. Where a tracker cannot be asked, the note counts: the
step is noted before it is given, so that there is a gap there rather than a step twice.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

from streamsft.errors import ConfigError
from streamsft.metrics.jsonlines import JsonLines

__all__ = ["DEFAULT_PROJECT", "Given", "TrackedRun", "need"]

DEFAULT_PROJECT = "streamsft"


def need(module: str, sink: str) -> None:
    """Refuse a sink whose package is missing, without importing it.

    Raises:
        ConfigError: with the command that installs it.
    """
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"metrics.sinks: {sink!r} needs the package {module}: pip install 'streamsft[{sink}]'")


@final
class Given(NamedTuple):
    """A record for a tracker: its step, seconds since the epoch, and its numbers."""

    step: int
    time: float
    metrics: dict[str, float]


@final
class TrackedRun:
    """The note of one tracker's run; a new one where there is no note.

    Args:
        path: the file of the note, in a folder of the run directory.

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
        self._noted = self._asked = False
        try:
            note: Any = json.loads(path.read_bytes())
            self.id, self.step = str(note["run"]), int(note["step"])
            self._noted = True
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} is damaged ({error}); remove it to begin another run there") from error

    def found(self, step: int | None) -> None:
        """Take what the tracker says is the last step that it holds, 0 for none; None where it cannot be asked."""
        if step is not None:
            self.step = min(self.step, step)
        self._asked = True

    def due(self, step: int, time: float, metrics: Mapping[str, float]) -> Iterator[Given]:
        """What is to be given to the tracker now, a record of step `step` being there: what it lacks before, then this
        one; nothing that it holds. Each is noted as given when it comes."""
        yield from self.owed(step)
        if self.claim(step):
            yield Given(step, time, dict(metrics))

    def owed(self, before: int) -> Iterator[Given]:
        """What the tracker lacks of the steps before `before`; each is noted as given when it comes."""
        yield from (one for one in self._lacking(before) if self.claim(one.step))

    def _lacking(self, step: int) -> Iterator[Given]:
        """The records of metrics.jsonl before `step` that the tracker was given and does not hold, in their order.

        There are none before it was asked, of a run that begins, and once they were read.

        Raises:
            RunError: a line of the file is no record.
        """
        if not self._asked or not self._noted:
            return
        self._asked = False
        for record in JsonLines(self.path.parent.parent / "metrics.jsonl").records(after=self.step, before=step):
            numbers = {key: float("nan") if value is None else value for key, value in record["metrics"].items()}
            yield Given(record["step"], record["time"], numbers)

    def claim(self, step: int) -> bool:
        """Note that the step is given to the tracker now; False where it holds the step, or a later one, already."""
        if step <= self.step:
            return False
        self.step = step
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
        try:
            beside.write_text(json.dumps({"run": self.id, "step": step}), encoding="utf-8")
            beside.replace(self.path)
        finally:
            beside.unlink(missing_ok=True)
        return True
