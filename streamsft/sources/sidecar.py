"""What a scan has learned of a store that others wrote, kept on disk so that the next one to open it need not scan."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from streamsft.errors import StoreError
from streamsft.sources.blockrows import Block
from streamsft.sources.index import INDEX_FILE, RowIndex, index_sections, load_index
from streamsft.sources.manifest import Manifest
from streamsft.sources.paths import RawFile
from streamsft.sources.publish import clean_up_after_the_dead, remove, temporary_name
from streamsft.sources.rowfacts import RowFacts
from streamsft.sources.scan import Scanned

__all__ = ["Sidecar", "content_key", "keep", "kept", "places"]

_ENDS = 4096


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sidecar:
    """What is known of a foreign store.

    Attributes:
        index: its per-row columns.
        manifest: what it holds.
        blocks: where its rows lie, if they can only be decoded in blocks.
        carried: the columns that travel with its rows.
        kept: the file that `index` is mapped from, None if it is in memory.
    """

    index: RowIndex
    manifest: Manifest
    blocks: tuple[Block, ...] = ()
    carried: tuple[str, ...] = ()
    kept: Path | None = None


def content_key(files: Sequence[RawFile], extras: Sequence[str] = ()) -> list[Any]:
    """What a scan's result holds for, as JSON: names, sizes, times of change and ends of the files, and the extras."""
    return [[[file.name, file.size, file.mtime_ns] for file in files], list(extras), [_ends(file) for file in files]]


def _ends(file: RawFile) -> str:
    """A digest of the first and the last bytes: formats have their schema and their footer there."""
    with open(file.path, "rb") as stream:
        data = stream.read(_ENDS)
        stream.seek(max(0, file.size - _ENDS))
        return hashlib.blake2b(data + stream.read(_ENDS), digest_size=8).hexdigest()


def places(folder: Path, files: Sequence[RawFile], *, given: bool, cache: Path) -> list[Path]:
    """Where the sidecar of a store may be, best first: beside the files, and in the user's cache.

    Args:
        folder: the directory that all files lie in.
        files: the store's files.
        given: whether the store is that directory.
        cache: a folder for what cannot be written beside the files.
    """
    names = hashlib.blake2b(json.dumps([file.name for file in files]).encode(), digest_size=8).hexdigest()
    whole = hashlib.blake2b(json.dumps([os.path.realpath(f.path) for f in files]).encode(), digest_size=16).hexdigest()
    if given:
        beside = folder / INDEX_FILE
    elif len(files) == 1:
        beside = folder / f".{Path(files[0].path).name}.{INDEX_FILE}"
    else:
        beside = folder / f".{names}.{INDEX_FILE}"
    return [beside, cache / "indexes" / f"{whole}.bin"]


def kept(place: Path, key: list[Any], names: Sequence[str]) -> Sidecar | None:
    """What an earlier scan of the same files has kept at `place`, if it can be used.

    Raises:
        StoreError: the files have other bytes, but the same sizes and times of change.
    """
    try:
        index, facts = load_index(place)
    except StoreError:
        return None  # none there, or of an interrupted copy: the scan makes it anew
    known = facts.get("key")
    if known is None or known[:-1] != key[:-1]:
        return None
    if known != key:
        raise StoreError(
            f"{place.parent}: its files have other bytes than at the first use, though their sizes and times of change "
            f"are the same; restore them, or delete {place}"
        )
    manifest = Manifest(
        rows=facts["rows"],
        tokens=facts["tokens"],
        supervised=facts["supervised"],
        largest_id=facts["largest_id"],
        fingerprint=facts["fingerprint"],
        files=tuple(names),
    )
    blocks = tuple(Block(*block) for block in facts["blocks"])
    return Sidecar(index=index, manifest=manifest, blocks=blocks, carried=tuple(facts["carried"]), kept=place)


def keep(where: Sequence[Path], key: list[Any], scanned: Scanned) -> Sidecar | None:
    """Write what a scan has learned to the first of the places that can be written to, and read it from there.

    Returns:
        None if none of them can be written to.
    """
    manifest = scanned.manifest
    known = {
        "key": key,
        "tokens": manifest.tokens,
        "supervised": manifest.supervised,
        "largest_id": manifest.largest_id,
        "fingerprint": manifest.fingerprint,
        "blocks": [list(block) for block in scanned.blocks],
        "carried": list(scanned.carried),
    }
    for place in where:
        if _write(place, scanned.facts, known):
            return kept(place, key, manifest.files)
    return None


def _write(place: Path, facts: RowFacts, known: dict[str, Any]) -> bool:
    """Write an index file in one atomic step; False where that is not possible."""
    temporary = temporary_name(place)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        clean_up_after_the_dead(place)
        fd = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0), 0o666)
        with open(fd, "wb") as file:
            for piece in index_sections(facts.column, facts.rows, known, facts.further):
                file.write(piece)
            file.flush()
            os.fsync(fd)
        os.replace(temporary, place)
    except OSError:
        remove(temporary)  # read-only or full
        return False
    return True
