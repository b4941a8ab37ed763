"""Where checkpoints lie, and how one appears: wholly, or not at all.

::

    checkpoints/
      step-00000050/        written as .partial-step-00000050, synced, renamed
        manifest.json       format version, step, the stream's fingerprint, the model's kind, each file's size
        …                   see `streamsft.training.snapshot`
      latest                the name of the newest one, replaced last

Whatever is killed at whatever moment leaves the older checkpoints and `latest` as they were. `latest` decides: a
run goes back to an older checkpoint when its name is written there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from streamsft.errors import RunError
from streamsft.shown import cause
from streamsft.training.durable import (
    PARTIAL,
    publish_directory,
    remove_directory,
    sync_directory,
    why_unwritten,
    write_file,
)

__all__ = ["STATE_FOLDER", "Checkpoints", "StoredCheckpoint"]

STATE_FOLDER = "state"
"""In a checkpoint of divided weights: the parts of the ranks; see `streamsft.training.shardfiles`."""

_VERSION = 1
_NAME = re.compile(r"step-(\d{8,})")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCheckpoint:
    """A complete checkpoint on disk.

    Attributes:
        path: its directory.
        step: the last step that it includes.
        fingerprint: what defined the stream of the run (`Loader.fingerprint`).
        model: how `streamsft.training.model.model_kind` names its model.
    """

    path: Path
    step: int
    fingerprint: Mapping[str, Any]
    model: str

    @property
    def in_parts(self) -> bool:
        """Whether its weights are as ranks had them, divided."""
        return (self.path / STATE_FOLDER).is_dir()

    def json(self, name: str) -> Any:
        """The content of the JSON file `name`.

        Raises:
            RunError: it is missing or damaged.
        """
        try:
            return json.loads((self.path / name).read_bytes())
        except (OSError, ValueError) as error:
            raise self.damaged(name, error) from error

    def damaged(self, name: str, error: Exception) -> RunError:
        """What is said of a file that cannot be read."""
        return RunError(
            f"{self.path / name} cannot be read: {cause(error)}; all ranks must see the run directory; if it is "
            f"damaged, remove {self.path} to go on from an older checkpoint"
        )


@final
class Checkpoints:
    """The checkpoints of the run in directory `run_dir`; one process writes them."""

    def __init__(self, run_dir: Path) -> None:
        self.folder = run_dir / "checkpoints"

    def newest(self) -> StoredCheckpoint | None:
        """Return the checkpoint that `latest` names, or else the one of the highest step, or None.

        Raises:
            RunError: it is damaged.
        """
        try:
            path = self.folder / (self.folder / "latest").read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            path = self.folder / "latest"
        if _NAME.fullmatch(path.name) and path.is_dir():
            return self.read(path.name)
        steps = self._steps()
        return self.read(steps[max(steps)].name) if steps else None

    @property
    def steps(self) -> list[int]:
        """Steps of the checkpoints that are there, ascending."""
        return sorted(self._steps())

    def of(self, step: int) -> StoredCheckpoint:
        """Return the checkpoint of `step`; see `read`."""
        return self.read(_name(step))

    def read(self, name: str) -> StoredCheckpoint:
        """Return the checkpoint in the directory `name`, its files' presence and sizes checked.

        Raises:
            RunError: a file is missing, cut short or unreadable.
        """
        path = self.folder / name
        try:
            manifest = json.loads((path / "manifest.json").read_bytes())
            version = manifest["version"]
            sizes = _sizes(path)
            wrong = [file for file, size in manifest["files"].items() if sizes.get(file) != size]
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise self._damaged(path, f"its manifest cannot be read ({cause(error)})") from error
        if version != _VERSION:
            raise RunError(f"checkpoint {path} has format version {version}; this streamsft reads {_VERSION}")
        if wrong:
            raise self._damaged(path, f"{', '.join(wrong)} missing or of another size")
        return StoredCheckpoint(
            path=path, step=manifest["step"], fingerprint=manifest["fingerprint"], model=manifest["model"]
        )

    def clean(self, *, after: int, keep: int) -> None:
        """Remove what was left half-written or half-removed, checkpoints later than `after`, and all but `keep`."""
        if not self.folder.exists():
            return
        for path in self.folder.glob(f"{PARTIAL}*"):
            if path.is_dir():
                remove_directory(path)
            else:
                path.unlink()
        for step, path in self._steps().items():
            if step > after:
                remove_directory(path)
        self._prune(keep)

    def write(self, step: int, fill: Callable[[Path], None], *, fingerprint: Mapping[str, Any], model: str) -> Path:
        """Write the checkpoint of `step` beside its place and return the directory, for `publish`.

        Args:
            step: the last step that it includes.
            fill: writes the contents into the empty directory that it is given.
            fingerprint: as in `StoredCheckpoint`.
            model: as in `StoredCheckpoint`.

        Raises:
            RunError: it could not be written; nothing is left of it.
        """
        partial = self.prepare(step, fill)
        try:
            self.seal(partial, step, fingerprint=fingerprint, model=model)
        except OSError as error:
            raise self.unwritten(step, error, partial) from error
        return partial

    def prepare(self, step: int, fill: Callable[[Path], None]) -> Path:
        """Write what `fill` writes of the checkpoint of `step`, and return its directory: the first half of `write`.

        More may be written there before `seal`.

        Raises:
            RunError: it could not be written; nothing is left of it.
        """
        partial = self.partial(step)
        try:
            if partial.exists():
                remove_directory(partial)
            partial.mkdir(parents=True)
            fill(partial)
        except Exception as error:  # writers of weights have error classes of their own
            raise self.unwritten(step, error, partial) from error
        return partial

    def seal(self, partial: Path, step: int, *, fingerprint: Mapping[str, Any], model: str) -> None:
        """Write the manifest of what is in `partial`: the second half of `write`.

        Raises:
            OSError: as the file system says.
        """
        manifest = {
            "version": _VERSION,
            "step": step,
            "model": model,
            "fingerprint": dict(fingerprint),
            "files": _sizes(partial),
        }
        (partial / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")

    def partial(self, step: int) -> Path:
        """Where the checkpoint of `step` is written before it has its name."""
        return self.folder / f"{PARTIAL}{_name(step)}"

    def unwritten(self, step: int, error: BaseException, partial: Path | None = None) -> RunError:
        """What is said of a checkpoint that cannot be written; what there is of it in `partial` is removed."""
        why = why_unwritten(error, self.folder)
        if partial is not None:
            self._discard(partial, error)
        return RunError(
            f"the checkpoint of step {step} could not be written to {self.folder}: {why}; nothing of it was "
            f"published, and {self._kept()}. Make room, and run the same command again"
        )

    def publish(self, partial: Path, step: int, *, keep: int) -> Path:
        """Give what `write` wrote its name, point `latest` at it, and remove all but the newest `keep`.

        Raises:
            RunError: the file system refused.
        """
        path = self.folder / _name(step)
        try:
            if path.exists():
                remove_directory(path)
            publish_directory(partial, path)
            write_file(self.folder / "latest", f"{path.name}\n".encode())
            self._prune(keep)
            sync_directory(self.folder)
        except OSError as error:
            raise RunError(
                f"checkpoint {path} could not be published: {why_unwritten(error, self.folder)}; {self._kept()}. Make "
                "room, and run the same command again"
            ) from error
        return path

    def _steps(self) -> dict[int, Path]:
        if not self.folder.exists():
            return {}
        found = ((_NAME.fullmatch(path.name), path) for path in self.folder.iterdir())
        return {int(match[1]): path for match, path in found if match and path.is_dir()}

    def _kept(self) -> str:
        steps = self._steps()
        if not steps:
            return "there is no older one, so the run starts over"
        return f"the older ones are kept: the run goes on from step {max(steps)}"

    def _prune(self, keep: int) -> None:
        for _, path in sorted(self._steps().items())[: -max(1, keep)]:
            remove_directory(path)

    def _damaged(self, path: Path, what: str) -> RunError:
        others = [p.name for s, p in sorted(self._steps().items()) if p != path]
        fix = f"remove it to go on from {others[-1]}" if others else "start over with --fresh"
        return RunError(f"checkpoint {path} is damaged: {what}; {fix}")

    @staticmethod
    def _discard(partial: Path, error: BaseException) -> None:
        try:
            if partial.exists():
                remove_directory(partial)
        except OSError as second:
            error.add_note(f"{partial} could not be removed either: {second}")


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _sizes(folder: Path) -> dict[str, int]:
    """Return the size in bytes of every file below `folder`, by relative path."""
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()
    }
