"""Foreign stores: their rows are gone through once, and what planning needs of them is kept beside them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsft.errors import StoreError
from streamsft.sources.columns import Ragged
from streamsft.sources.index import INDEX_FILE, RowIndex, index_sections, load_index, row_stats
from streamsft.sources.manifest import Fingerprint, Manifest
from streamsft.sources.publish import DigestFile, clean_up_after_the_dead, remove, temporary_name
from streamsft.types import Bools, Int32s

__all__ = ["Chunk", "pieces", "scan", "scan_once"]

_PIECE_TOKENS = 1 << 20
_MAX_ID = np.iinfo(np.int32).max

Chunk = tuple[Ragged, Ragged]


def pieces(offsets: NDArray[Any], limit: int = _PIECE_TOKENS) -> Iterator[tuple[int, int]]:
    """Cut ragged rows into runs [first, last) of at most `limit` tokens; a longer row is a run of its own."""
    rows, first = len(offsets) - 1, 0
    while first < rows:
        target = min(int(offsets[first]) + limit, int(offsets[-1]))  # of the offsets' own type, or they would be copied
        last = int(np.searchsorted(offsets, offsets.dtype.type(target), side="right")) - 1
        last = min(max(last, first + 1), rows)
        yield first, last
        first = last


def scan(chunks: Sequence[Chunk], where: str) -> tuple[RowIndex, Manifest]:
    """Go through all rows, in memory bounded but for 40 bytes a row; rows are numbered from 0 in their order.

    Raises:
        StoreError: a row's mask is not as long as its ids, a mask is not 0 or 1, or an id is not in [0, 2**31).
    """
    fingerprint = Fingerprint()
    lengths: list[Int32s] = [np.empty(0, np.int32)]
    supervised: list[Int32s] = [np.empty(0, np.int32)]
    first_supervised: list[Int32s] = [np.empty(0, np.int32)]
    row = 0
    for ids, mask in chunks:
        for first, last in pieces(ids.offsets):
            length = _lengths(ids, mask, first, last, row, where)
            id_values, mask_values = _values(ids, mask, first, last, row, where)
            stats = row_stats(mask_values, length)
            fingerprint.update(id_values, mask_values, length, np.arange(row, row + len(length)))
            lengths.append(length)
            supervised.append(stats.supervised)
            first_supervised.append(stats.first_supervised)
            row += len(length)
    index = numbered_index(np.concatenate(lengths), np.concatenate(supervised), np.concatenate(first_supervised))
    manifest = Manifest(
        rows=row,
        tokens=int(index.bounds[-1]),
        supervised=int(index.supervised.sum(dtype=np.int64)),
        fingerprint=fingerprint.hexdigest(),
    )
    return index, manifest


def numbered_index(length: Int32s, supervised: Int32s, first_supervised: Int32s) -> RowIndex:
    """The index of rows that are numbered from 0 without gaps and come from no file."""
    bounds = np.zeros(len(length) + 1, np.int64)
    np.cumsum(length, out=bounds[1:])
    number = np.arange(len(length), dtype=np.int64)
    return RowIndex(
        bounds=bounds,
        row=number,
        file_row=number,
        length=length,
        supervised=supervised,
        first_supervised=first_supervised,
        file=np.zeros(len(length), np.int32),
    )


def _lengths(ids: Ragged, mask: Ragged, first: int, last: int, row: int, where: str) -> Int32s:
    lengths = np.diff(ids.offsets[first : last + 1])
    others = np.diff(mask.offsets[first : last + 1])
    wrong = np.flatnonzero(lengths != others)
    if len(wrong):
        at = wrong[0]
        raise StoreError(
            f"{where}, row {row + at}: input_ids has {lengths[at]:,} entries, loss_mask {others[at]:,}; "
            "they must be equally long"
        )
    return lengths.astype(np.int32)


def _values(ids: Ragged, mask: Ragged, first: int, last: int, row: int, where: str) -> tuple[Int32s, Bools]:
    offsets = ids.offsets[first : last + 1].astype(np.int64)
    id_values = ids.slice(int(offsets[0]), int(offsets[-1]))
    mask_values = mask.slice(int(mask.offsets[first]), int(mask.offsets[last]))
    for column, values, top in (("input_ids", id_values, _MAX_ID), ("loss_mask", mask_values, 1)):
        if len(values) and (int(values.min()) < 0 or int(values.max()) > top):
            at = int(np.flatnonzero((values < 0) | (values > top))[0])
            where_row = row + int(np.searchsorted(offsets - offsets[0], at, side="right")) - 1
            raise StoreError(f"{where}, row {where_row}: {column} holds {values[at]}; allowed are 0 to {top:,}")
    return id_values.astype(np.int32, copy=False), mask_values.astype(np.bool_)


def scan_once(
    path: Path, names: Sequence[str], chunks: Sequence[Chunk], *, verify: bool
) -> tuple[RowIndex, Manifest, bool]:
    """`scan` the files `names` of the store `path`, or take what an earlier scan has kept beside them.

    What was kept holds as long as the files have the same names, sizes and modification times. With `verify` the rows
    are gone through again and must agree. Where the directory cannot be written to, nothing is kept.

    Returns:
        the index, the manifest, and whether the index is kept on disk.

    Raises:
        StoreError: as `scan`; or, with `verify`, the rows are not those that were scanned before.
    """
    place = path / INDEX_FILE
    data = [[name, stat.st_size, stat.st_mtime_ns] for name in names for stat in [(path / name).stat()]]
    kept = _kept(place, data)
    if kept is not None and not verify:
        return *kept, True
    index, manifest = scan(chunks, str(path))
    if kept is not None and kept[1].fingerprint != manifest.fingerprint:
        raise StoreError(
            f"{path}: its rows (fingerprint {manifest.fingerprint}) are not those of the first use "
            f"({kept[1].fingerprint}), though its files seem unchanged; restore the files, or delete {INDEX_FILE} there"
        )
    facts = {"data": data, "tokens": manifest.tokens, "supervised": manifest.supervised}
    if kept is not None or _keep(place, index, {**facts, "fingerprint": manifest.fingerprint}):
        return load_index(place)[0], manifest, True
    return index, manifest, False


def _kept(place: Path, data: list[list[Any]]) -> tuple[RowIndex, Manifest] | None:
    """What an earlier scan of the same files has kept, if it can be used."""
    try:
        index, facts = load_index(place)
    except StoreError:
        return None  # none there, or of an interrupted copy: the scan makes it anew
    if facts.get("data") != data:
        return None
    manifest = Manifest(
        rows=facts["rows"],
        tokens=facts["tokens"],
        supervised=facts["supervised"],
        fingerprint=facts["fingerprint"],
    )
    return index, manifest


def _keep(place: Path, index: RowIndex, facts: dict[str, Any]) -> bool:
    """Write the index file in one atomic step; False where that is not possible."""
    temporary = temporary_name(place)
    try:
        clean_up_after_the_dead(place)
        file = DigestFile(temporary)
        try:
            file.write_all(index_sections(lambda name: [getattr(index, name)], len(index.row), facts))
            file.finish()
        finally:
            file.close()
        os.replace(temporary, place)
    except OSError:
        remove(temporary)  # read-only or full: the index stays in memory
        return False
    return True
