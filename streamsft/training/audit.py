"""The audit: per rank and step, which rows went into which packs.

Joined over ranks by step, the files prove from outside what a run consumed. A line is ::

    {"step": 1, "rank": 0, "dp_size": 2, "packs": [{"digest": "…", "rows": [["gsm8k", 17, 0], …]}, …]}

with ``"data_step"`` behind the step where steps of the stream were skipped before it.

`digest` is blake2b (16 bytes, hex) over the pack's input ids, then its labels, both as little-endian int64;
`rows` are the (source, row, pass) triples in pack order, `row` counted from 0 in the source's input order with
rejected rows counted too.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from streamsft.errors import RunError
from streamsft.refusals import way_out
from streamsft.stream.collate import Batch
from streamsft.training.durable import sync_directory

__all__ = ["Audit", "pack_digest", "rewind_audit"]

_BLOCK = 1 << 16


def pack_digest(input_ids: NDArray[np.integer[Any]], labels: NDArray[np.integer[Any]]) -> str:
    """Return the audit's digest of one pack, from its `input_ids` and `labels` (integers, [sequence_length])."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(np.ascontiguousarray(input_ids, dtype="<i8").data)
    digest.update(np.ascontiguousarray(labels, dtype="<i8").data)
    return digest.hexdigest()


@final
class Audit:
    """The audit file of one rank, ``<folder>/rank-<rank>.jsonl``; a line per step, flushed.

    Raises:
        RunError: a line could not be written, for example because the disk is full.
    """

    def __init__(self, folder: Path, *, rank: int, dp_size: int) -> None:
        self.path = folder / f"rank-{rank}.jsonl"
        self._rank = rank
        self._dp_size = dp_size
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab", buffering=0)
        except OSError as error:
            raise self._failure(error) from error

    def write(self, batch: Batch) -> None:
        """Append the line of `batch`, whose tensors are on the CPU."""
        ids, labels = batch.input_ids.numpy(), batch.labels.numpy()
        packs = [
            {"digest": pack_digest(i, label), "rows": rows}
            for i, label, rows in zip(ids, labels, batch.rows, strict=True)
        ]
        steps = {"step": batch.step}
        if batch.data_step != batch.step:
            steps["data_step"] = batch.data_step
        record = {**steps, "rank": self._rank, "dp_size": self._dp_size, "packs": packs}
        line = memoryview(json.dumps(record).encode() + b"\n")
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            raise self._failure(error) from error

    def sync(self) -> None:
        """Make the lines so far survive a loss of power."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._failure(error) from error

    def close(self) -> None:
        """Close the file; nothing is buffered."""
        self._file.close()

    def _failure(self, error: OSError) -> RunError:
        fix = way_out(error, "see that it can be written")
        return RunError(f"audit file {self.path}: {error.strerror}; {fix} or set train.audit: false, then resume")


def rewind_audit(folder: Path, step: int) -> int:
    """Drop the lines after `step` from all ranks' files in `folder`, also those of ranks that are gone.

    Returns:
        The last step of which a line is left; 0 where none is.
    """
    return max((_rewind(path, step) for path in sorted(folder.glob("rank-*.jsonl"))), default=0)


def _rewind(path: Path, step: int) -> int:
    """Cut the JSON Lines file `path`, written in step order, after its last whole line with a ``step`` <= `step`.

    The file is read from its end, so the cost is that of the lines dropped, and cut by one system call: who
    is killed on the way finds the old file or the new one. Returns the step of that line, or 0.
    """
    last = 0
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        end = _last_line_end(file, size)
        while end:
            start = _last_line_end(file, end - 1)
            file.seek(start)
            found = _step_of(file.read(end - start))
            if found <= step:
                last = int(found)
                break
            end = start
        if end != size:
            file.truncate(end)
            os.fsync(file.fileno())
    sync_directory(path.parent)
    return last


def _step_of(line: bytes) -> float:
    """Return the step of a line; a line that is no such record counts as after every step."""
    try:
        record = json.loads(line)
    except ValueError:
        return float("inf")
    step = record.get("step") if isinstance(record, dict) else None
    return step if isinstance(step, int) else float("inf")


def _last_line_end(file: Any, before: int) -> int:
    """Return the offset just after the last newline in the first `before` bytes, 0 where there is none."""
    while before > 0:
        start = max(0, before - _BLOCK)
        file.seek(start)
        found = file.read(before - start).rfind(b"\n")
        if found >= 0:
            return int(start + found + 1)
        before = start
    return 0
