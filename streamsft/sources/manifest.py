"""The manifest of a token store: what it holds, and that it is complete."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
import xxhash
from numpy.typing import NDArray

from streamsft.engine import Engine
from streamsft.errors import StoreError
from streamsft.types import Bools, Int32s, Ints

__all__ = ["MANIFEST_FILE", "Fingerprint", "Manifest", "check_files", "digest_file", "load_manifest"]

MANIFEST_FILE = "streamsft.json"
VERSION = 2
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a store holds.

    Attributes:
        rows: stored rows.
        tokens: tokens of all rows.
        supervised: supervised tokens at index 1 or later of all rows.
        largest_id: the largest token id; -1 where there is no token.
        fingerprint: see `Fingerprint`.
        files: names of the files of origin.
        rejected: rows that were not stored, by reason.
        key: the cache key that it was built for, or ''.
        tokenizer: digest of the tokenizer that made the ids, or '' where unknown.
        extra: further JSON of whoever built the store.
        checksums: per file of the store its size in bytes and blake2b digest; empty for one in memory.
        version: version of the format.
    """

    rows: int
    tokens: int
    supervised: int
    largest_id: int
    fingerprint: str
    files: tuple[str, ...] = ()
    rejected: Mapping[str, int] = field(default_factory=dict)
    key: str = ""
    tokenizer: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    checksums: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    version: int = VERSION

    def to_bytes(self) -> bytes:
        """The manifest as JSON, with a digest of itself."""
        fields = asdict(self)
        return json.dumps({**fields, "digest": _digest(fields)}, indent=1, sort_keys=True).encode()


@final
class Fingerprint:
    """A digest of ordered rows that does not depend on how they come in chunks or how they are stored.

    Tokens are digested by XXH3, 128 bits, which is as fast as they are read; it tells data apart, it does not
    withstand forgery.
    """

    def __init__(self) -> None:
        self._parts = {name: xxhash.xxh3_128() for name in ("length", "input_ids", "loss_mask", "row")}

    def update(
        self,
        input_ids: Int32s,
        loss_mask: Bools,
        lengths: Int32s,
        row: Ints,
        further: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        """Add the next rows; the arrays are as in `StoreWriter.append`.

        Args:
            further: what other columns hold, flat, by a name that tells which part of which column it is.
        """
        columns: dict[str, NDArray[Any]] = {
            "length": lengths.astype("<i4", copy=False),
            "input_ids": input_ids.astype("<i4", copy=False),
            "loss_mask": loss_mask,
            "row": row.astype("<i8", copy=False),
        }
        for name, column in {**columns, **(further or {})}.items():
            if name not in self._parts:
                self._parts[name] = xxhash.xxh3_128()
            if column.size:
                self._parts[name].update(np.ascontiguousarray(column).data)

    def hexdigest(self) -> str:
        """32 hexadecimal digits."""
        whole = hashlib.blake2b(digest_size=16)
        for name in sorted(self._parts):
            whole.update(f"{name} {self._parts[name].hexdigest()}\n".encode())
        return whole.hexdigest()


def _digest(fields: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(fields, sort_keys=True).encode(), digest_size=16).hexdigest()


def digest_file(path: Path) -> str:
    """The blake2b digest of a file's bytes, 32 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def load_manifest(path: Path) -> Manifest:
    """Read the manifest of the store `path`.

    Raises:
        StoreError: it is damaged or of another format version.
    """
    place = path / MANIFEST_FILE
    try:
        fields = json.loads(place.read_bytes())
        digest = fields.pop("digest")
        version = fields["version"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{place}: cannot be read as a store's manifest ({error}); build the store again") from error
    if version != VERSION:
        raise StoreError(f"{place}: has format version {version}, this release reads {VERSION}; build the store again")
    if digest != _digest(fields):
        raise StoreError(f"{place}: was changed after it was written; build the store again")
    fields["files"] = tuple(fields["files"])
    fields["checksums"] = {name: (size, hexdigest) for name, (size, hexdigest) in fields["checksums"].items()}
    return Manifest(**fields)


def check_files(path: Path, manifest: Manifest, *, verify: bool, engine: Engine | None = None) -> None:
    """Compare the files of the store `path` with its manifest: sizes always, digests of JSON files too, for these are
    small, and those of all files with `verify`, for which `engine` has them read; by default this process does.

    Raises:
        StoreError: a file is missing, has another size or, where they are compared, other bytes.
    """
    for name, (size, _) in manifest.checksums.items():
        place = path / name
        try:
            missing, found = not place.is_file(), place.stat().st_size
        except OSError:  # gone since, where another process puts a store aside
            missing = True
        if missing:
            raise StoreError(f"{place}: is missing; the store is incomplete, build it again")
        if found != size:
            raise StoreError(f"{place}: has {found:,} bytes instead of {size:,}; build the store again")
    read = [path / name for name in manifest.checksums if verify or name.endswith(".json")]
    digesting = _Digesting()
    whole = engine.map(digesting, read, what=str(path)) if engine and verify else ((p, digesting.run(p)) for p in read)
    for place, found_digest in whole:
        if found_digest != manifest.checksums[place.name][1]:
            raise StoreError(
                f"{place}: its bytes are not those that were written; build the store again (one of the cache is built "
                "again by `streamsft tokenize --verify`)"
            )


@final
class _Digesting:
    """Digests files."""

    def run(self, place: Path, /) -> str:
        """The digest of a file; raises StoreError if it cannot be read."""
        try:
            return digest_file(place)
        except OSError as error:
            raise StoreError(f"{place}: cannot be read ({error.strerror}); build the store again") from error


def check_footer(path: Path) -> None:
    """Check that the Arrow stream file `path` was written to its end.

    Raises:
        StoreError: it has no end-of-stream mark.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - len(_END_OF_STREAM)))
            tail = file.read()
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror}); the store is incomplete") from error
    if tail != _END_OF_STREAM:
        raise StoreError(f"{path}: has no end-of-stream mark, so it was cut off; write or copy the store again")
