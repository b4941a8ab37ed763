"""Going on where a call that was stopped has come to: what is tokenized is published in parts until the store is whole.

A part is what some consecutive chunks gave, in a file of the cache that appears whole or not at all. It is named by
its number, by a digest of the chunks that it was made of, and by one of its own bytes; so a part is taken over only
where the same input stands at the same place, and only undamaged. Parts go when the store that they belong to is there.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, fields
from itertools import chain, islice
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
import xxhash

from streamsft.engine import Done, Engine, Job
from streamsft.sources.publish import remove, temporary_name
from streamsft.sources.rawrows import Chunk
from streamsft.text.jobs import EncodedChunk, Rejected

__all__ = ["Parts"]

CHUNKS = 8
"""Chunks that make a part: about 2 MiB of text."""

_STALE_SECONDS = 14 * 24 * 3600.0
_ENDING = ".arrow"
_SCHEMA = pa.schema(
    [
        ("rows", pa.int64()),
        ("index", pa.large_list(pa.int64())),
        ("lengths", pa.large_list(pa.int32())),
        ("input_ids", pa.large_list(pa.int32())),
        ("loss_mask", pa.large_binary()),
        ("rejected", pa.large_string()),
        ("pairs", pa.large_list(pa.int32())),
    ]
)

logger = logging.getLogger("streamsft")

_Result = tuple[Chunk, EncodedChunk]


@final
class Parts:
    """The published parts of one source.

    Args:
        folder: where they are, for this source and these settings alone; None publishes nothing and finds nothing.
        name: the source's name.
    """

    def __init__(self, folder: Path | None, *, name: str) -> None:
        self._folder = folder
        self._name = name
        self._known: dict[int, tuple[str, str]] = {}  # number → digest of the input, name of the file

    def tokenized(
        self, engine: Engine, job: Job[Chunk, EncodedChunk], chunks: Iterator[Chunk], *, files: int
    ) -> Iterator[_Result]:
        """Each chunk with its tokens, in order: of published parts first, then as `engine` makes them.

        What is taken over is noted in `Engine.done`. The last part is not published: the store is next.

        Args:
            engine: does the rest.
            job: makes tokens of a chunk.
            chunks: the whole input.
            files: how many files it has.
        """
        self._known = self._found()
        rows = number = 0
        while (encoded := self._read(number, next_chunks := list(islice(chunks, CHUNKS)))) is not None:
            yield from zip(next_chunks, encoded, strict=True)
            rows, number = rows + sum(each.rows for each in encoded), number + 1
        if number:
            self._note(engine, Done(rows=rows, files=next_chunks[0].file if next_chunks else files, parts=number))
        results = engine.map(job, chain(next_chunks, chunks), what=f"source {self._name}")
        yield from self._publishing(number, results)

    def remove(self) -> None:
        """Remove all parts, and those of other sources that nothing was added to for two weeks."""
        if self._folder is None or not self._folder.parent.exists():
            return
        remove(self._folder)
        for other in self._folder.parent.iterdir():
            try:
                unused = time.time() - other.stat().st_mtime
            except FileNotFoundError:
                continue
            if unused > _STALE_SECONDS:
                remove(other)

    def _note(self, engine: Engine, done: Done) -> None:
        engine.done[self._name] = done
        logger.info(
            "source %s: %s rows (%s parts) are not tokenized again: a call that was stopped has published them",
            self._name, f"{done.rows:,}", f"{done.parts:,}",
        )  # fmt: skip

    def _publishing(self, number: int, results: Iterable[_Result]) -> Iterator[_Result]:
        part: list[_Result] = []
        for result in results:
            if len(part) == CHUNKS:  # and more follow
                self._publish(number, part)
                number, part = number + 1, []
            part.append(result)
            yield result

    def _found(self) -> dict[int, tuple[str, str]]:
        names = [] if self._folder is None or not self._folder.is_dir() else os.listdir(self._folder)
        known = {}
        for name in names:
            number, _, rest = name.removesuffix(_ENDING).partition("-")
            if number.isdigit():
                known[int(number)] = (rest.partition("-")[0], name)
        return known

    def _read(self, number: int, chunks: Sequence[Chunk]) -> list[EncodedChunk] | None:
        """Part `number` if it was made of `chunks`; None if it was not, or is damaged."""
        digest, name = self._known.get(number, ("", ""))
        if not name or digest != _digest(chunks):
            return None
        assert self._folder is not None
        try:
            data = (self._folder / name).read_bytes()
        except FileNotFoundError:
            return None  # another process has finished the store
        if xxhash.xxh3_128_hexdigest(data) != name.removesuffix(_ENDING).rpartition("-")[2]:
            logger.warning("%s: is damaged; its rows are tokenized again", self._folder / name)
            return None
        return _decoded(data)

    def _publish(self, number: int, part: Sequence[_Result]) -> None:
        if self._folder is None:
            return
        data = _encoded([encoded for _, encoded in part])
        digests = f"{_digest([chunk for chunk, _ in part])}-{xxhash.xxh3_128_hexdigest(data)}"
        place = self._folder / f"{number:08}-{digests}{_ENDING}"
        temporary = temporary_name(place)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(data)
            temporary.replace(place)
        except OSError as error:
            remove(temporary)
            logger.warning(
                "source %s: no further parts are kept, for %s cannot be written (%s); a call that is stopped then "
                "begins there again", self._name, place, error.strerror or error,
            )  # fmt: skip
            self._folder = None


def _digest(chunks: Sequence[Chunk]) -> str:
    """What tells these chunks from others: where they stand and what they hold, undecoded."""
    state = xxhash.xxh3_128()
    for chunk in chunks:
        _update(state, chunk)
    return state.hexdigest()


def _update(state: Any, chunk: Chunk) -> None:
    state.update(type(chunk).__name__.encode())
    for field in fields(chunk):
        value = getattr(chunk, field.name)
        if isinstance(value, Chunk):
            _update(state, value)
        elif field.name != "read":  # tells progress alone
            data = value if isinstance(value, bytes) else repr(value).encode("utf-8", "surrogatepass")
            state.update(f"{field.name} {len(data)} ".encode())
            state.update(data)


def _encoded(chunks: Sequence[EncodedChunk]) -> bytes:
    """`chunks` as an Arrow stream, one in a row."""
    columns: dict[str, list[Any]] = {
        "rows": [chunk.rows for chunk in chunks],
        "index": [chunk.index for chunk in chunks],
        "lengths": [chunk.lengths for chunk in chunks],
        "input_ids": [chunk.input_ids for chunk in chunks],
        "loss_mask": [chunk.loss_mask.tobytes() for chunk in chunks],
        "rejected": [json.dumps([astuple(row) for row in chunk.rejected]) for chunk in chunks],
        "pairs": [None if chunk.pairs is None else chunk.pairs.ravel() for chunk in chunks],
    }
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA) as stream:
        stream.write_batch(pa.record_batch(columns, schema=_SCHEMA))
    return bytes(sink.getvalue())


def _decoded(data: bytes) -> list[EncodedChunk]:
    found = []
    for batch in pa.ipc.open_stream(data):
        for at in range(batch.num_rows):
            row = {name: batch.column(name)[at] for name in _SCHEMA.names}
            pairs = row["pairs"].values
            found.append(
                EncodedChunk(
                    rows=row["rows"].as_py(),
                    index=row["index"].values.to_numpy(),
                    lengths=row["lengths"].values.to_numpy(),
                    input_ids=row["input_ids"].values.to_numpy(),
                    loss_mask=np.frombuffer(row["loss_mask"].as_buffer(), np.bool_),
                    rejected=tuple(Rejected(*fields) for fields in json.loads(row["rejected"].as_py())),
                    pairs=None if pairs is None else pairs.to_numpy().reshape(-1, 2),
                )
            )
    return found
