"""Where a store that is being built goes: a directory that is published whole, or memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamsft.errors import StoreError
from streamsft.sources.index import INDEX_FILE, RowIndex, index_sections
from streamsft.sources.manifest import MANIFEST_FILE, Manifest, check_files, digest_file, load_manifest
from streamsft.sources.opening import Opened, open_store, open_table
from streamsft.sources.publish import (
    DigestFile,
    clean_up_after_the_dead,
    fsync_directory,
    fsync_file,
    remove,
    temporary_name,
    try_rename,
)
from streamsft.sources.sidecar import Sidecar
from streamsft.sources.storefiles import data_files
from streamsft.sources.tokennames import CHOSEN, SHARED

__all__ = ["DirectoryTarget", "MemoryTarget", "store_schema"]

_DATA_FILE = "data-00000-of-00001.arrow"
_SCHEMA = pa.schema(
    [
        ("input_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.int8())),
        ("row", pa.int64()),
        ("file", pa.int32()),
        ("file_row", pa.int64()),
        ("length", pa.int32()),
        ("supervised", pa.int32()),
        ("first_supervised", pa.int32()),
    ]
)
_PAIRS = (SHARED, CHOSEN)


def store_schema(pairs: bool) -> pa.Schema:
    """The columns of a store, of preference pairs or of other rows."""
    schema = _SCHEMA
    for name in _PAIRS if pairs else ():
        schema = schema.append(pa.field(name, pa.int32()))
    return schema


@final
class MemoryTarget:
    """Keeps a store's record batches, of `schema`, in memory."""

    directory: Path | None = None

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Add a batch."""
        self._batches.append(batch)

    def publish(self, manifest: Manifest) -> Opened:
        """The store of all batches."""
        table = pa.Table.from_batches(self._batches, self._schema)
        columns: dict[str, Any] = {name: table.column(name).to_numpy() for name in self._schema.names[2:]}
        bounds = np.zeros(len(table) + 1, np.int64)
        np.cumsum(columns["length"], out=bounds[1:])
        known = Sidecar(index=RowIndex(bounds=bounds, **columns), manifest=manifest)
        return open_table(table.select(["input_ids", "loss_mask"]), "memory", known=known)

    def discard(self) -> None:
        """Forget all batches."""
        self._batches.clear()


@final
class DirectoryTarget:
    """Writes a store of `schema` to a temporary directory beside `path` that takes its place at the end.

    What is at `path` by then stays if it is a sound store of the same rows. What is left of a store of streamsft is
    replaced; anything else is refused, unless the place is `owned`: nothing but this store ever belongs there.

    Raises:
        OSError: from any method, when the system refuses; the caller then calls `discard`.
    """

    def __init__(self, path: Path, schema: pa.Schema, *, owned: bool = False) -> None:
        self._path = path
        self._owned = owned
        self._schema = schema
        path.parent.mkdir(parents=True, exist_ok=True)
        clean_up_after_the_dead(path)
        self.directory: Path | None = temporary_name(path)
        self._temporary = self.directory
        self._temporary.mkdir()
        try:
            self._data = DigestFile(self._temporary / _DATA_FILE)
            self._stream = pa.ipc.new_stream(self._data, schema)
        except OSError:
            self.discard()
            raise

    def write(self, batch: pa.RecordBatch) -> None:
        """Add a batch."""
        self._stream.write_batch(batch)

    def publish(self, manifest: Manifest) -> Opened:
        """Complete the store, rename it to its place and open it.

        Raises:
            StoreError: something else is at its place.
        """
        self._stream.close()
        checksums = {_DATA_FILE: self._data.finish()}
        further = [name for name in _PAIRS if name in self._schema.names]
        index = index_sections(self._column, manifest.rows, {"fingerprint": manifest.fingerprint}, further)
        checksums[INDEX_FILE] = self._put(INDEX_FILE, index)
        for name, content in (("state.json", _state(manifest)), ("dataset_info.json", {})):
            checksums[name] = self._put(name, [json.dumps(content, indent=1, sort_keys=True).encode()])
        for other in sorted(self._temporary.iterdir()):
            if other.name not in checksums:
                fsync_file(other)
                checksums[other.name] = (other.stat().st_size, digest_file(other))
        manifest = replace(manifest, checksums=checksums)
        self._put(MANIFEST_FILE, [manifest.to_bytes()])
        fsync_directory(self._temporary)
        return self._take_place(manifest)

    def discard(self) -> None:
        """Remove what was written."""
        if hasattr(self, "_data"):
            self._data.close()
        remove(self._temporary)

    def _put(self, name: str, pieces: Iterable[bytes]) -> tuple[int, str]:
        file = DigestFile(self._temporary / name)
        try:
            file.write_all(pieces)
            return file.finish()
        finally:
            file.close()

    def _column(self, name: str) -> Iterator[NDArray[Any]]:
        """One per-row column of the data file, batch by batch."""
        options = pa.ipc.IpcReadOptions(included_fields=[self._schema.get_field_index(name)])
        with pa.memory_map(str(self._temporary / _DATA_FILE)) as source:
            for batch in pa.ipc.open_stream(source, options=options):
                yield batch.column(0).to_numpy()

    def _take_place(self, manifest: Manifest) -> Opened:
        """Rename to the final place, unless the same rows are there already, undamaged; the store that is there then.

        It is not opened behind that: another process that has judged what was there before may just be putting the
        same rows in its place.
        """
        opened = open_store(self._temporary)
        while not try_rename(self._temporary, self._path):
            judged = _identity(self._path)
            present = _complete(self._path)
            sound = None if present is None else _sound(self._path)
            if self._owned and not (sound is not None and sound.manifest.key == manifest.key):
                self._put_aside(judged)
                continue
            if present is not None and present.fingerprint != manifest.fingerprint:
                raise StoreError(
                    f"{self._path}: already holds a store of other rows (fingerprint {present.fingerprint}, these rows "
                    f"have {manifest.fingerprint}); remove it or choose another place"
                )
            if sound is not None and sound.manifest.fingerprint == manifest.fingerprint:
                self.discard()
                return sound
            if present is None and not _half_written(self._path):
                raise StoreError(
                    f"{self._path}: exists and is no store of streamsft; remove it or choose another place"
                )
            self._put_aside(judged)
        return opened

    def _put_aside(self, judged: tuple[int, int] | None) -> None:
        """Remove what is at the final place, unless another process has put something else there since `judged`."""
        if judged is None or _identity(self._path) != judged:
            return
        aside = temporary_name(self._path)
        with suppress(FileNotFoundError):  # another process has removed it
            if try_rename(self._path, aside):
                remove(aside)


def _state(manifest: Manifest) -> dict[str, Any]:
    """What ``datasets.load_from_disk`` asks for; the additional key marks the directory as ours."""
    return {
        "_data_files": [{"filename": _DATA_FILE}],
        "_fingerprint": manifest.fingerprint[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
        "streamsft": manifest.version,
    }


def _complete(path: Path) -> Manifest | None:
    """The manifest of the complete store at `path`, if there is one."""
    try:
        manifest = load_manifest(path)
        check_files(path, manifest, verify=False)
    except StoreError:
        return None  # half-written or damaged: to be replaced
    return manifest


def _sound(path: Path) -> Opened | None:
    """The store at `path`, if it opens and all its bytes are those that were written."""
    try:
        return open_store(path, verify=True)
    except StoreError:
        return None


def _identity(path: Path) -> tuple[int, int] | None:
    """What tells the directory at `path` from another that takes its place; None where nothing is."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _half_written(path: Path) -> bool:
    """Whether the directory `path` is what is left of a store that streamsft wrote: its state or its manifest is."""
    if not path.exists():
        return True  # just removed by another process
    try:
        if data_files(path)[1]:
            return True
    except StoreError:
        pass  # the manifest may still tell
    try:
        load_manifest(path)
    except StoreError:
        return False
    return True
