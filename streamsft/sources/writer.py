"""Writing token stores: bounded memory, and either a complete store or none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

import numpy as np
import pyarrow as pa

from streamsft.errors import StoreError
from streamsft.refusals import way_out
from streamsft.sources.index import row_stats
from streamsft.sources.manifest import Fingerprint, Manifest
from streamsft.sources.pairs import validate_pairs
from streamsft.sources.store import TokenStore
from streamsft.sources.targets import DirectoryTarget, MemoryTarget, store_schema
from streamsft.sources.tokennames import CHOSEN, SHARED
from streamsft.sources.validation import pieces
from streamsft.types import Bools, Int32s, Ints, check_name

__all__ = ["StoreWriter"]

_BATCH_TOKENS = 1 << 20
_BATCH_ROWS = 1 << 16

_Rows = tuple[Int32s, Bools, Int32s, Ints, Int32s, Ints, Int32s]


@final
class StoreWriter:
    """Builds a token store from rows in input order, in memory that does not grow with their number.

    Everything is written to a temporary directory beside `path` and renamed at the end: at `path` there is a complete
    store or none, whoever dies or races. Where another process has published the same rows first, its store is used.
    What killed writers left behind is removed by the next one.

    ::

        with TokenStore.writer("stores/gsm8k", files=["train.jsonl"]) as writer:
            writer.append(ids, mask, lengths, row)
            store = writer.close(rejected={"template_error": 2})

    Leaving the block by an exception discards what was written; leaving it otherwise publishes it, unless `close` has
    already. The same rows give the same fingerprint however they are split over calls, on disk and in memory.

    Args:
        path: the directory to be made, or None for a store in memory.
        name: the source's name, by default the directory's.
        files: names of the files of origin, in the order of their numbers in `append`; the list may grow until `close`.
        pairs: whether the rows are preference pairs, see `streamsft.sources.pairs`.
        owned: whether `path` is a place of the cache, where nothing but this store belongs: whatever else is there by
            the end is replaced. Elsewhere only what is left of a store that streamsft wrote is.

    Raises:
        StoreError: the directory cannot be made.
    """

    def __init__(
        self,
        path: str | Path | None,
        *,
        name: str | None = None,
        files: Sequence[str] = (),
        pairs: bool = False,
        owned: bool = False,
    ) -> None:
        self.files = list(files)
        self._pairs = pairs
        self._owned = owned
        self._schema = store_schema(pairs)
        self._path = None if path is None else Path(path).absolute()
        self._name = _name_of(self._path) if name is None else check_name(name)
        self._fingerprint = Fingerprint()
        self._pending: list[_Rows] = []
        self._pending_tokens = self._pending_rows = 0
        self._rows = self._tokens = self._supervised = 0
        self._largest_id = -1
        self._last_row = -1
        self._closed = False
        with self._writing():
            if self._path is None:
                self._target: MemoryTarget | DirectoryTarget = MemoryTarget(self._schema)
            else:
                self._target = DirectoryTarget(self._path, self._schema, owned=owned)

    @property
    def directory(self) -> Path | None:
        """Where further files of the store may be written before `close`; None in memory."""
        return self._target.directory

    @property
    def rows(self) -> int:
        """Rows appended so far."""
        return self._rows

    def append(
        self,
        input_ids: Int32s,
        loss_mask: Bools,
        lengths: Int32s,
        row: Ints,
        file: Int32s | None = None,
        file_row: Ints | None = None,
        pairs: Int32s | None = None,
    ) -> None:
        """Add k rows, laid end to end.

        Args:
            input_ids: token ids, int32[sum of lengths], none negative.
            loss_mask: bool[sum of lengths].
            lengths: tokens per row, int32[k].
            row: number of each row in the source's input order, int64[k], strictly increasing over all calls.
            file: number of the file of origin, int32[k]; 0 by default.
            file_row: number of each row within that file, int64[k]; `row` by default.
            pairs: of preference pairs `shared_length` and `chosen_length` of each, int32[k, 2].

        Raises:
            StoreError: the arrays do not fit together, or they cannot be written (the disk is full, say).
        """
        if self._closed:
            raise StoreError(f"{self._where}: is closed; rows cannot be added any more")
        rows = (
            np.ascontiguousarray(input_ids, np.int32),
            np.ascontiguousarray(loss_mask, np.bool_),
            np.asarray(lengths, np.int32),
            np.asarray(row, np.int64),
            np.zeros(len(row), np.int32) if file is None else np.asarray(file, np.int32),
            np.asarray(row if file_row is None else file_row, np.int64),
            np.empty((len(row), 0), np.int32) if pairs is None else np.asarray(pairs, np.int32),
        )
        if len(rows[3]) == 0:
            return
        self._check(rows)
        further = {SHARED: rows[6][:, 0], CHOSEN: rows[6][:, 1]} if self._pairs else None
        self._fingerprint.update(*rows[:4], further)
        self._rows += len(rows[3])
        self._tokens += len(rows[0])
        self._last_row = int(rows[3][-1])
        self._pending.append(rows)
        self._pending_rows += len(rows[3])
        self._pending_tokens += len(rows[0])
        if self._pending_tokens >= _BATCH_TOKENS or self._pending_rows >= _BATCH_ROWS:
            self._flush()

    def close(
        self,
        *,
        rejected: Mapping[str, int] | None = None,
        key: str = "",
        tokenizer: str = "",
        extra: Mapping[str, Any] | None = None,
    ) -> TokenStore:
        """Publish the store and open it.

        Args:
            rejected: rows that were left out, by reason.
            key: what the store is a cache entry for.
            tokenizer: digest of the tokenizer that made the ids.
            extra: further JSON to keep in the manifest.

        Raises:
            StoreError: it cannot be written, or other rows or files are already at its path.
        """
        if self._closed:
            raise StoreError(f"{self._where}: is closed already")
        self._flush()
        manifest = Manifest(
            rows=self._rows,
            tokens=self._tokens,
            supervised=self._supervised,
            largest_id=self._largest_id,
            fingerprint=self._fingerprint.hexdigest(),
            files=tuple(self.files),
            rejected=dict(rejected or {}),
            key=key,
            tokenizer=tokenizer,
            extra=dict(extra or {}),
        )
        with self._writing():
            opened = self._target.publish(manifest)
        self._closed = True
        return TokenStore(self._name, opened, self._path)

    def abort(self) -> None:
        """Discard everything that was written; nothing is published."""
        if not self._closed:
            self._closed = True
            self._pending.clear()
            self._target.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.abort()
        elif not self._closed:
            self.close()

    @property
    def _where(self) -> str:
        return str(self._path or f"source {self._name}")

    def _check(self, rows: _Rows) -> None:
        input_ids, loss_mask, lengths, row, file, file_row, pairs = rows
        total = int(lengths.sum(dtype=np.int64))
        if not len(input_ids) == len(loss_mask) == total or not len(lengths) == len(row) == len(file) == len(file_row):
            raise StoreError(
                f"{self._where}: {len(input_ids)} ids and {len(loss_mask)} mask entries for lengths that add up to "
                f"{total}; {len(lengths)} lengths, {len(row)} rows, {len(file)} files and {len(file_row)} file rows"
            )
        self._largest_id = max(self._largest_id, int(input_ids.max(initial=-1)))
        if int(lengths.min()) < 0 or (total and int(input_ids.min()) < 0):
            raise StoreError(f"{self._where}: a token id or a length is negative")
        if int(row[0]) <= self._last_row or bool((np.diff(row) <= 0).any()):
            raise StoreError(
                f"{self._where}: row numbers must increase; after {self._last_row} came {row[:8].tolist()}…"
            )
        if pairs.shape != (len(row), 2 if self._pairs else 0):
            raise StoreError(
                f"{self._where}: pairs of shape {list(pairs.shape)} for {len(row)} rows; a store has them for "
                "all of its rows, int32[rows, 2] (pairs=True), or for none"
            )
        if self._pairs:
            validate_pairs(pairs, lengths, loss_mask, lambda at: f"{self._where}, row {row[at]}")

    def _flush(self) -> None:
        if not self._pending:
            return
        columns: Any = [np.concatenate(column) for column in zip(*self._pending, strict=True)]
        self._pending.clear()
        self._pending_tokens = self._pending_rows = 0
        offsets = np.zeros(len(columns[2]) + 1, np.int64)
        np.cumsum(columns[2], out=offsets[1:])
        with self._writing():
            for first, last in pieces(offsets, 2 * _BATCH_TOKENS):
                begin, end = offsets[first], offsets[last]
                tokens = (column[begin:end] for column in columns[:2])
                batch = self._batch(*tokens, *(column[first:last] for column in columns[2:]))
                self._target.write(batch)

    def _batch(
        self, ids: Int32s, mask: Bools, lengths: Int32s, row: Ints, file: Int32s, file_row: Ints, pairs: Int32s
    ) -> pa.RecordBatch:
        stats = row_stats(mask, lengths)
        self._supervised += int(stats.supervised.sum(dtype=np.int64))
        offsets = pa.array(np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)]))
        arrays = [
            pa.ListArray.from_arrays(offsets, pa.array(ids)),
            pa.ListArray.from_arrays(offsets, pa.array(mask.view(np.int8))),
            *map(pa.array, (row, file, file_row, lengths, stats.supervised, stats.first_supervised, *pairs.T)),
        ]
        return pa.record_batch(arrays, schema=self._schema)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Discard everything when writing fails, and say so."""
        try:
            yield
        except OSError as error:
            if hasattr(self, "_target"):
                self.abort()
            fix = way_out(error, "choose another folder (cache.dir)" if self._owned else "choose another folder")
            raise StoreError(
                f"{self._where}: writing failed: {error.strerror or error}. Nothing was published and what had been "
                f"written was removed; {fix}, then run again"
            ) from error
        except BaseException:
            if hasattr(self, "_target"):
                self.abort()
            raise


def _name_of(path: Path | None) -> str:
    """The name of a source whose user gave none."""
    return "rows" if path is None else re.sub(r"[^A-Za-z0-9_.-]", "_", path.name)
