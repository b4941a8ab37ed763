"""A checkpoint as it lies on disk: what its manifest says of it, and whether its files are those that were written."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from streamsft.errors import RunError
from streamsft.shown import cause
from streamsft.sources.filehash import hash_file

__all__ = [
    "MANIFEST",
    "STATE_FOLDER",
    "StoredCheckpoint",
    "damaged_checkpoint",
    "digest_of",
    "file_digests",
    "file_sizes",
    "step_folders",
    "step_of",
]

MANIFEST = "manifest.json"

STATE_FOLDER = "state"
"""In a checkpoint of divided weights: the parts of the ranks; see `streamsft.training.shardfiles`."""

_NAME = re.compile(r"step-(\d{8,})")
_THREADS = 8  # one hashes about 1 GB/s
_STEPS = ("trainer.json", "loader.json")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCheckpoint:
    """A complete checkpoint on disk.

    Attributes:
        path: its directory.
        step: the last step that it includes.
        fingerprint: what defined the stream of the run (`Loader.fingerprint`).
        model: how `streamsft.training.model.model_kind` names its model.
        digests: BLAKE2b-256 of each file as it was written, hex, by its path below `path`.
    """

    path: Path
    step: int
    fingerprint: Mapping[str, Any]
    model: str
    digests: Mapping[str, str]

    @property
    def in_parts(self) -> bool:
        """Whether its weights are as ranks had them, divided."""
        return (self.path / STATE_FOLDER).is_dir()

    def json(self, name: str) -> Any:
        """The content of the JSON file `name`.

        Raises:
            RunError: it is missing, or not what was written.
        """
        try:
            content = (self.path / name).read_bytes()
        except OSError as error:
            raise self.damaged(name, error) from error
        if digest_of(content) != self.digests.get(name):
            raise self._changed([name])
        try:
            return json.loads(content)
        except ValueError as error:
            raise self.damaged(name, error) from error

    def damaged(self, name: str, error: Exception) -> RunError:
        """What is said of a file that cannot be read."""
        return RunError(
            f"{self.path / name} cannot be read: {cause(error)}; all ranks must see the run directory; if it is "
            f"damaged, {_way_out(self.path)}"
        )

    def check_steps(self) -> None:
        """See that all who count steps in it stand at the same one.

        Raises:
            RunError: they do not, or a file is missing or damaged.
        """
        steps = {"its name": step_of(self.path.name), MANIFEST: self.step}
        for name in _STEPS:
            content = self.json(name)
            steps[name] = content.get("step") if isinstance(content, dict) else None
        if any(type(step) is not int or step != self.step for step in steps.values()):
            told = ", ".join(f"{step!r} by {name}" for name, step in steps.items())
            raise damaged_checkpoint(self.path, f"its files are of different steps ({told})")

    def check_content(self, part: int = 0, parts: int = 1) -> None:
        """Read every `parts`-th file from number `part` on, and see that it is what was written.

        Raises:
            RunError: one is not, or cannot be read; all of them are named.
        """
        names = sorted(self.digests)[part::parts]
        try:
            found = file_digests(self.path, names)
        except OSError as error:
            raise self.damaged(str(error.filename or ""), error) from error
        if wrong := [name for name in names if found[name] != self.digests[name]]:
            raise self._changed(wrong)

    def _changed(self, names: Sequence[str]) -> RunError:
        told = f"{', '.join(names)} changed since {'it was' if len(names) == 1 else 'they were'} written"
        return damaged_checkpoint(self.path, f"{told} (another BLAKE2b digest than in {MANIFEST})")


def damaged_checkpoint(path: Path, what: str) -> RunError:
    """What is said of the checkpoint in directory `path` when `what` is wrong with it."""
    return RunError(f"checkpoint {path} is damaged: {what}; {_way_out(path)}")


def step_of(name: str) -> int | None:
    """The step of the checkpoint that is called `name`; None where that is no checkpoint's name."""
    match = _NAME.fullmatch(name)
    return None if match is None else int(match[1])


def step_folders(folder: Path) -> dict[int, Path]:
    """The directories of checkpoints in `folder`, by step."""
    if not folder.exists():
        return {}
    found = ((step_of(path.name), path) for path in folder.iterdir())
    return {step: path for step, path in found if step is not None and path.is_dir()}


def file_sizes(folder: Path) -> dict[str, int]:
    """The size in bytes of every file below `folder`, by relative path."""
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()
    }


def file_digests(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """BLAKE2b-256 of the files `names` below `folder`, hex; several files are read at a time.

    Raises:
        OSError: as the file system says.
    """
    with ThreadPoolExecutor(_THREADS) as threads:
        return dict(zip(names, threads.map(hash_file, [str(folder / name) for name in names]), strict=True))


def digest_of(content: bytes) -> str:
    """BLAKE2b-256 of `content`, hex."""
    return hashlib.blake2b(content, digest_size=32).hexdigest()


def _way_out(path: Path) -> str:
    others = [other.name for _, other in sorted(step_folders(path.parent).items()) if other != path]
    return f"remove {path} to go on from {others[-1]}" if others else "start over with --fresh"
