"""Where checkpoints lie, and how one appears: wholly, or not at all.

::

    checkpoints/
      step-00000050/        written as .partial-step-00000050, synced, renamed
        manifest.json       format version, step, the stream's fingerprint, the model's kind, each file's size and
                            BLAKE2b digest, and a digest of all that
        …                   see `streamsft.training.snapshot`
      latest                the name of the newest one, replaced last

Whatever is killed at whatever moment leaves the older checkpoints and `latest` as they were. `latest` decides: a
run goes back to an older checkpoint when its name is written there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

from streamsft.errors import RunError
from streamsft.refusals import way_out
from streamsft.shown import cause
from streamsft.training.durable import (
    PARTIAL,
    publish_directory,
    remove_directory,
    sync_directory,
    why_unwritten,
    write_file,
)
from streamsft.training.stored import (
    MANIFEST,
    StoredCheckpoint,
    damaged_checkpoint,
    digest_of,
    file_digests,
    file_sizes,
    step_folders,
    step_of,
)

__all__ = ["Checkpoints"]

_VERSION = 2


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
        step = self._newest_step()
        return None if step is None else self.of(step)

    @property
    def steps(self) -> list[int]:
        """Steps of the checkpoints that are there, ascending."""
        return sorted(step_folders(self.folder))

    def of(self, step: int) -> StoredCheckpoint:
        """Return the checkpoint of `step`; see `read`."""
        return self.read(_name(step))

    def read(self, name: str) -> StoredCheckpoint:
        """Return the checkpoint in the directory `name`, if its files are there, of the size that they had, and of one
        step; what the large ones hold is left to `StoredCheckpoint.check_content`.

        Raises:
            RunError: a file is missing, cut short or unreadable, or a small one was changed.
        """
        path = self.folder / name
        try:
            manifest = json.loads((path / MANIFEST).read_bytes())
            version, digest = manifest["version"], manifest.pop("digest", None)
            found = file_sizes(path)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise damaged_checkpoint(path, f"its manifest cannot be read ({cause(error)})") from error
        if version != _VERSION:
            raise RunError(
                f"checkpoint {path} has format version {version}; this streamsft reads {_VERSION}: go on with the "
                "release that wrote it, or start over with --fresh"
            )
        if digest != _digest(manifest):
            raise damaged_checkpoint(path, f"{MANIFEST} changed since it was written (its own digest is another)")
        files = manifest["files"]
        if wrong := [file for file, entry in files.items() if found.get(file) != entry["bytes"]]:
            raise damaged_checkpoint(path, f"{', '.join(wrong)} missing or of another size")
        stored = StoredCheckpoint(
            path=path,
            step=manifest["step"],
            fingerprint=manifest["fingerprint"],
            model=manifest["model"],
            digests={file: entry["blake2b"] for file, entry in files.items()},
        )
        stored.check_steps()
        return stored

    def clean(self, *, after: int, keep: int) -> None:
        """Remove what was left half-written or half-removed, checkpoints later than `after`, and all but `keep`."""
        if not self.folder.exists():
            return
        for path in self.folder.glob(f"{PARTIAL}*"):
            if path.is_dir():
                remove_directory(path)
            else:
                path.unlink()
        for step, path in step_folders(self.folder).items():
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

    def seal(
        self,
        partial: Path,
        step: int,
        *,
        fingerprint: Mapping[str, Any],
        model: str,
        digests: Mapping[str, str] | None = None,
    ) -> None:
        """Write the manifest of what is in `partial`: the second half of `write`.

        `digests` of files that are known, as in `StoredCheckpoint`, save reading these again.

        Raises:
            OSError: as the file system says.
        """
        sizes, known = file_sizes(partial), digests or {}
        known = {**known, **file_digests(partial, [file for file in sizes if file not in known])}
        manifest = {
            "version": _VERSION,
            "step": step,
            "model": model,
            "fingerprint": dict(fingerprint),
            "files": {file: {"bytes": size, "blake2b": known[file]} for file, size in sizes.items()},
        }
        manifest = json.loads(json.dumps(manifest))
        manifest["digest"] = _digest(manifest)
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")

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
            f"published, and {self._kept()}; {_fix(why)}, and run the same command again"
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
            latest = self.folder / "latest"
            if latest.is_dir() and not latest.is_symlink():
                remove_directory(latest)
            write_file(latest, f"{path.name}\n".encode())
            self._prune(keep)
            sync_directory(self.folder)
        except OSError as error:
            why = why_unwritten(error, self.folder)
            raise RunError(
                f"checkpoint {path} could not be published: {why}; {self._kept()}; {_fix(why)}, and run the same "
                "command again"
            ) from error
        return path

    def _latest(self) -> str:
        """What `latest` says; "" where it is missing, or no text. A link to a checkpoint says that one."""
        latest = self.folder / "latest"
        try:
            return latest.read_text(encoding="utf-8").strip()
        except IsADirectoryError:
            return latest.resolve().name
        except (FileNotFoundError, UnicodeDecodeError):
            return ""

    def _newest_step(self) -> int | None:
        """The step that a run goes on from: that of `latest`, or the last one where it names none that is there."""
        steps, latest = step_folders(self.folder), step_of(self._latest())
        return latest if latest in steps else max(steps, default=None)

    def _kept(self) -> str:
        step = self._newest_step()
        if step is None:
            return "there is no older one, so the run starts over"
        return f"the older ones are kept: the run goes on from step {step}"

    def _prune(self, keep: int) -> None:
        for _, path in sorted(step_folders(self.folder).items())[: -max(1, keep)]:
            remove_directory(path)

    @staticmethod
    def _discard(partial: Path, error: BaseException) -> None:
        try:
            if partial.exists():
                remove_directory(partial)
        except OSError as second:
            error.add_note(f"{partial} could not be removed either: {second}")


def _fix(why: str) -> str:
    return way_out(why, "see that train.run_dir can be written to")


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _digest(manifest: Mapping[str, Any]) -> str:
    """The digest of a manifest that has none in it yet."""
    return digest_of(json.dumps(manifest, sort_keys=True).encode())
