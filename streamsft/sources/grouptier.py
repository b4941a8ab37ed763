"""Row groups on the local disk: fetched once, then mapped by all workers, ranks and jobs that share the folder."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from streamsft.errors import ConfigError
from streamsft.sources.blockrows import DecodedBlock
from streamsft.sources.publish import is_abandoned, remove, temporary_name

__all__ = ["DiskTier", "Tier"]

_log = logging.getLogger("streamsft")

_VERSION: Final = 2  # of what a file holds
_LOCK: Final = ".lock"
_ABANDONED: Final = 3600 * 10**9  # ns after which a file that is still being written never will be
_CHECKSUM: Final = 8  # bytes
_LOW: Final = 0.9  # share of the budget that is left when room is made
_IDS, _MASK = "input_ids", "loss_mask"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """Where row groups are kept on the local disk.

    Attributes:
        dir: a folder of its own; may be shared between sources, processes and jobs.
        budget: bytes that all files in it may take.
        whole: fetch the whole store before the first row is read; it must fit the budget.

    Raises:
        ConfigError: the budget is no number of bytes >= 1.
    """

    dir: str | os.PathLike[str]
    budget: int
    whole: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.budget, int) or isinstance(self.budget, bool) or self.budget < 1:
            raise ConfigError(f"tier.budget: {self.budget!r} is not a number of bytes >= 1")


@final
class DiskTier:
    """The files of a tier: one uncompressed Arrow file per row group, named by what it holds, its checksum at the end.

    The checksum is compared whenever a process maps a file; one that is damaged is fetched again.

    A file appears whole, by a rename, or not at all. When there is no room the files that were not used for longest
    are removed until 90 % of the budget are left. All of it is best effort: where the disk is full or cannot be
    written to, groups are not kept, which costs time and is said once. Thread-safe.

    Args:
        tier: the folder and its budget.
    """

    def __init__(self, tier: Tier) -> None:
        self.folder = Path(tier.dir).expanduser().absolute()
        self.budget = tier.budget
        self._said = False
        self._cleaned = False

    def name(self, content: Sequence[Any]) -> str:
        """The name of the file for what `content`, as JSON, says of its rows."""
        text = json.dumps([_VERSION, *content]).encode()
        return f"{hashlib.blake2b(text, digest_size=16).hexdigest()}.arrow"

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        return (self.folder / name).exists()

    def get(self, name: str) -> DecodedBlock | None:
        """The group in the file `name`, mapped into memory; None if there is none that can be used."""
        place = self.folder / name
        try:
            with pa.memory_map(str(place)) as mapped:
                block = _block(_checked(mapped.read_buffer()))
        except FileNotFoundError:
            return None
        except (pa.ArrowException, OSError, IndexError, KeyError) as error:
            self._say(f"{place} cannot be used ({error})")
            self._remove(place)
            return None
        with contextlib.suppress(OSError):  # another job may have removed it; the map stays valid
            os.utime(place)
        return block

    def put(self, name: str, block: DecodedBlock) -> DecodedBlock | None:
        """Keep a group, and return it mapped from its file; None if that was not possible."""
        data = _bytes(block)
        place = self.folder / name
        temporary = temporary_name(place)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not self._reserved(temporary, len(data) + _CHECKSUM):
                return None
            with open(temporary, "r+b") as file:
                file.write(data)
                file.write(zlib.crc32(data).to_bytes(_CHECKSUM, "little"))
                file.flush()
                os.fsync(file.fileno())
            with self._alone():
                os.replace(temporary, place)
        except OSError as error:
            self._say(f"{self.folder}: a row group could not be kept ({error.strerror})")
            with contextlib.suppress(OSError):
                remove(temporary)
            return None
        return self.get(name)

    def _reserved(self, temporary: Path, size: int) -> bool:
        """Make a file of `size` bytes, so that others count them; False if there cannot be room for it."""
        with self._alone():
            self._clean_up()
            if not self._make_room(size):
                return False
            with open(temporary, "xb") as file:
                os.posix_fallocate(file.fileno(), 0, size)
            return True

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep others from adding files, giving them their names and counting them; where no lock can be had, the
        budget may be exceeded by what is written at the same time."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                lock = stack.enter_context(open(self.folder / _LOCK, "ab"))
                fcntl.flock(lock, fcntl.LOCK_EX)  # of this open file, so it is for threads too
                stack.callback(fcntl.flock, lock, fcntl.LOCK_UN)  # which closing leaves to a fork that has it open too
            yield

    def discard(self, name: str) -> None:
        """Remove a file that does not hold what it should."""
        self._remove(self.folder / name)

    def used(self) -> int:
        """Bytes that the files take, those that are being written included."""
        with self._alone():
            return sum(size for _, size, _ in self._files())

    def _clean_up(self) -> None:
        """Remove what processes that were killed have left half written, the first time that something is kept."""
        if not self._cleaned:
            for _, _, place in self._files():
                if place.name.startswith(".") and is_abandoned(place):
                    self._remove(place)
            self._cleaned = True

    def _make_room(self, size: int) -> bool:
        """Remove the files used longest ago until `size` bytes more fit; False if they never can."""
        if size > self.budget:
            self._say(f"{self.folder}: a row group of {size:,} bytes is larger than tier.budget {self.budget:,}")
            return False
        files = sorted(self._files())
        total = sum(bytes_ for _, bytes_, _ in files)
        if total + size <= self.budget:
            return True
        for used, bytes_, place in files:
            if total + size <= self.budget * _LOW:
                break
            being_written = place.name.startswith(".") and time.time_ns() - used < _ABANDONED
            if not being_written and self._remove(place):
                total -= bytes_
        return total + size <= self.budget

    def _files(self) -> list[tuple[int, int, Path]]:
        """Time of the last use in ns, size and place of each file, those that are being written included."""
        found = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self.folder) as entries:
            for entry in entries:
                if ".arrow" not in entry.name:
                    continue
                with contextlib.suppress(FileNotFoundError):  # removed by another process meanwhile
                    status = entry.stat()
                    found.append((status.st_mtime_ns, status.st_size, Path(entry.path)))
        return found

    def _remove(self, place: Path) -> bool:
        try:
            place.unlink(missing_ok=True)
        except OSError as error:
            self._say(f"{place}: cannot be removed ({error.strerror})")
            return False
        return True

    def _say(self, what: str) -> None:
        if not self._said:
            self._said = True
            _log.warning("tier: %s; the run goes on, and fetches again what is not kept", what)


def _bytes(block: DecodedBlock) -> pa.Buffer:
    """A group as an uncompressed Arrow file of one record batch, a byte per mask entry."""
    offsets = pa.array(block.bounds)
    columns = [
        pa.LargeListArray.from_arrays(offsets, pa.array(block.ids)),
        pa.LargeListArray.from_arrays(offsets, pa.array(block.mask.view(np.uint8))),
    ]
    names = [_IDS, _MASK]
    if block.carried is not None:
        columns += block.carried.columns
        names += block.carried.schema.names
    batch = pa.RecordBatch.from_arrays(columns, names=names)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _checked(data: pa.Buffer) -> pa.RecordBatch:
    """The record batch of a file, whose bytes must be those that were written.

    Raises:
        pa.ArrowInvalid: they are not.
    """
    size = max(0, data.size - _CHECKSUM)
    written = data.slice(0, size)
    if zlib.crc32(written).to_bytes(_CHECKSUM, "little") != data.slice(size).to_pybytes():
        raise pa.ArrowInvalid("its checksum is another: it is cut off or damaged")
    return pa.ipc.open_file(pa.BufferReader(written)).get_batch(0)


def _block(batch: pa.RecordBatch) -> DecodedBlock:
    """What `_bytes` wrote, as views of the map."""
    ids, mask = batch.column(_IDS), batch.column(_MASK)
    carried = [name for name in batch.schema.names if name not in (_IDS, _MASK)]
    return DecodedBlock(
        ids=np.frombuffer(ids.values.buffers()[1] or b"", np.int32)[: len(ids.values)],
        mask=np.frombuffer(mask.values.buffers()[1] or b"", np.bool_)[: len(mask.values)],
        bounds=np.frombuffer(ids.buffers()[1], np.int64)[: len(ids) + 1],
        carried=batch.select(carried) if carried else None,
    )
