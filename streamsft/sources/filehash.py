"""Content hashes of files, remembered so that an unchanged file is not read again."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any, final

from streamsft.sources.paths import RawFile

__all__ = ["HashMemory", "hash_file", "hash_stream"]

_SETTLED_NS = 2_000_000_000  # a file changed more recently than this may change again within one tick of its clock


def hash_file(path: str) -> str:
    """BLAKE2b-256 of the file's bytes, hex."""
    with open(path, "rb") as file:
        return hash_stream(file)


def hash_stream(stream: Any) -> str:
    """`hash_file` of what a binary stream holds from where it stands on."""
    return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=32)).hexdigest()


@final
class HashMemory:
    """Hashes of files by path, size and time of change, or an object's tag; one small file each in `folder`.

    Any number of processes may use one folder at a time. What cannot be read is forgotten; where
    nothing can be written, nothing is remembered.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)

    def recall(self, file: RawFile) -> str | None:
        """The hash of `file` if it is known and the file looks unchanged."""
        try:
            record = json.loads(self._place(file).read_text("utf-8"))
        except (OSError, ValueError):
            return None
        if not isinstance(record, dict) or not isinstance(digest := record.pop("hash", None), str):
            return None
        return digest if record == _identity(file) else None

    def remember(self, file: RawFile, digest: str) -> None:
        """Keep the hash of `file`, unless the file is so new that a change could go unseen."""
        if time.time_ns() - file.mtime_ns < _SETTLED_NS:
            return
        text = json.dumps({**_identity(file), "hash": digest})
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self._folder, prefix=".", delete=False) as handle:
                handle.write(text)
            os.replace(handle.name, self._place(file))
        except OSError:  # a full or read-only folder costs a hash next time, nothing else
            return

    def _place(self, file: RawFile) -> Path:
        name = hashlib.blake2b(_path(file).encode("utf-8", "surrogateescape"), digest_size=16)
        return self._folder / f"{name.hexdigest()}.json"


def _identity(file: RawFile) -> dict[str, str | int]:
    changed: dict[str, str | int] = {"version": file.version} if file.version else {"mtime_ns": file.mtime_ns}
    return {"path": _path(file), "size": file.size, **changed}


def _path(file: RawFile) -> str:
    return file.path if file.version else os.path.realpath(file.path)
