"""Tokenizing a whole source, once: from raw rows to a token store that is cached by content.

The cache is a folder of token stores, each named by its `cache_key`: a digest of everything that
decides the tokens. A store appears there whole or not at all; any number of processes may want, make
and read the same one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, final

from streamsft.engine import Done, Engine
from streamsft.errors import ConfigError, DataError
from streamsft.sources.filehash import HashMemory
from streamsft.sources.rawrows import BadRow, RowReader
from streamsft.sources.store import TokenStore
from streamsft.sources.writer import StoreWriter
from streamsft.text.cachekey import cache_key, default_cache_dir, find_cached
from streamsft.text.filling import Filling, bad_row_error
from streamsft.text.formats import FORMATS, detect_format, parser
from streamsft.text.holdout import HoldOut
from streamsft.text.identity import identity
from streamsft.text.jobs import TRANSFORM_REASON, ChatJob, Transform, TransformJob, decode_columns
from streamsft.text.parts import Parts
from streamsft.text.plainrows import TEXT, check_format
from streamsft.text.preference import PREFERENCE
from streamsft.text.progress import Progress, reporting
from streamsft.text.readers import RawSource, open_reader
from streamsft.text.rejections import REJECTED_FILE, Rejections, read_rejections
from streamsft.text.sides import Side
from streamsft.text.workers import LocalEngine
from streamsft.types import check_name

if TYPE_CHECKING:
    from streamsft.text.chat import ChatTokenizer
    from streamsft.text.plain import TextTokenizer

__all__ = ["detect_source_format", "tokenize"]


def tokenize(
    source: RawSource,
    chat: ChatTokenizer | TextTokenizer | None = None,
    *,
    name: str,
    transform: Transform | None = None,
    format: str | None = None,  # noqa: A002
    columns: Mapping[str, str] | None = None,
    cache_dir: str | os.PathLike[str] | Literal[False] | None = None,
    processes: int | None = None,
    engine: Engine | None = None,
    on_bad_row: Literal["skip", "error"] = "skip",
    rejected_path: str | os.PathLike[str] | None = None,
    holdout: HoldOut | float | None = None,
    held: bool = False,
    verify: bool = False,
    progress: bool | Progress = False,
) -> TokenStore:
    """Tokenize a source, or find it in the cache.

    The store holds the accepted rows untruncated and in input order. The result is a function of the
    content of the source and of the settings of `chat`, `format` and `columns` (or of `transform`) alone:
    not of paths, processes or the cache. Memory use does not grow with the source, save with ``cache_dir=False``.

    Args:
        source: a path, glob, folder or a list of these, a `HubDataset`, a `datasets.Dataset`, or a list of dicts.
        chat: renders and encodes conversations; a `TextTokenizer` encodes plain text.
        name: the source's name.
        transform: used instead of `chat`: a function from a row (a dict) to a mapping with ``input_ids`` and
            ``loss_mask``, or to None to leave it out. The cache knows it by its source text and
            what it uses of its own module, or by its `version` attribute alone: raise that when code of other modules
            that it calls changes. See `streamsft.text.identity`.
        format: one of `FORMATS`; detected from the first rows by default. That of a `TextTokenizer` is ``text``.
        columns: from a name in the format to the file's own name of that column.
        cache_dir: folder of the cache, by default `default_cache_dir`; False keeps the store in memory.
        processes: worker processes; 1 works in this one; by default as many as there are cores, once the
            source turns out not to be small.
        engine: where to tokenize instead of in processes of this machine; see `streamsft.engine`.
        on_bad_row: ``skip`` leaves bad rows out, counted by reason and listed in ``rejected.jsonl`` in the
            store's folder; ``error`` stops at the first.
        rejected_path: with ``cache_dir=False``, where to list rejected rows; by default they are only counted.
        holdout: keeps rows out of the store: a fraction or a number of rows; see `HoldOut`.
        held: make the store of the rows that `holdout` keeps out instead.
        verify: read all bytes of a cached store and compare them with those that were written; one that is damaged is
            made again. Without it only what keeps the store from being opened is found.
        progress: True draws a bar on standard error; a function is called with (done, total) instead.

    Raises:
        ConfigError: an argument is wrong or missing, or a function cannot be identified or sent to a process.
        DataError: a file cannot be found or read, a transform failed, or a row is bad with ``on_bad_row="error"``.
        EmptySourceError: there are no rows, or all were rejected.
        StoreError: the store cannot be written (the disk is full, say); nothing is published then.
    """
    check_name(name)
    _check(chat, transform, format, columns, on_bad_row)
    if engine is not None and processes is not None:
        raise ConfigError("processes: the engine that is given says how many; leave one of them out")
    engine = engine or LocalEngine(processes)
    if chat is not None and chat.format == TEXT:
        format, columns = TEXT, columns or chat.columns  # noqa: A001
    root = None if cache_dir is False else Path(cache_dir or default_cache_dir())
    if held and holdout is None:
        raise ConfigError(f"source {name}: no rows are held out; give holdout, such as 0.02 or a number of rows")
    whole = reader = open_reader(source, memory=None if root is None else HashMemory(root / "hashes"))
    if holdout is not None:
        reader = Side(whole, HoldOut.of(holdout), held=held, where=f"source {name}")
    encoder = identity(transform, f"source {name}: transform") if transform else _chat(chat).fingerprint
    key = cache_key(reader.content_key(), encoder, format=format, columns=columns)
    path = None if root is None else root / "stores" / key
    strict = on_bad_row == "error"
    if path is not None and (cached := find_cached(path, name, verify=verify, listed=strict)) is not None:
        cached.rename_files(reader.files)
        if strict:
            _refuse_rejected(cached)
        engine.done[name] = Done(rows=len(cached) + sum(cached.rejected.values()), files=len(cached.files))
        return cached
    job: ChatJob | TransformJob
    if transform is not None:
        job = TransformJob(transform, name, reader.files)
    else:
        job = ChatJob(_chat(chat), format or detect_source_format(whole, name, columns or {}), dict(columns or {}))
    making = _Making(
        name=name,
        reader=reader,
        job=job,
        engine=engine,
        parts=Parts(None if root is None else root / "parts" / key, name=name),
        strict=strict,
        key=key,
        tokenizer="" if chat is None else chat.tokenizer_hash,
    )
    return making.store(path, rejected_path, progress)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Making:
    """All that decides how a store that is not there yet is made."""

    name: str
    reader: RowReader
    job: ChatJob | TransformJob
    engine: Engine
    parts: Parts
    strict: bool
    key: str
    tokenizer: str

    def store(
        self, path: Path | None, rejected_path: str | os.PathLike[str] | None, progress: bool | Progress
    ) -> TokenStore:
        """The store, at `path` or in memory."""
        name, files, form = self.name, self.reader.files, getattr(self.job, "format", None)
        with StoreWriter(path, name=name, files=files, pairs=form == PREFERENCE, owned=True) as writer:
            place = Path(rejected_path) if rejected_path else None
            if writer.directory is not None:
                place = writer.directory / REJECTED_FILE
            with Rejections(name, place) as rejections, reporting(progress, name, self.reader.size) as advance:
                filling = Filling(writer, rejections, name=name, files=files, stop_at_bad=self.strict)
                chunks = self.reader.chunks()
                for chunk, encoded in self.parts.tokenized(self.engine, self.job, chunks, files=len(files)):
                    filling.add(chunk, encoded)
                    advance(chunk.read)
            filling.check_not_empty()
            store = writer.close(
                rejected=rejections.counts,
                key=self.key,
                tokenizer=self.tokenizer,
                extra={"format": form, "first_rejected": rejections.first},
            )
        self.parts.remove()
        return store


def _check(
    chat: ChatTokenizer | TextTokenizer | None,
    transform: Transform | None,
    format: str | None,  # noqa: A002
    columns: Mapping[str, str] | None,
    on_bad_row: str,
) -> None:
    if chat is None and transform is None:
        raise ConfigError("tokenize needs a tokenizer (chat) or a transform")
    if transform is not None and not callable(transform):
        raise ConfigError(f"transform: a {type(transform).__name__} is no function")
    if transform is not None and (format or columns):
        raise ConfigError(
            "format and columns have no effect on a transform, which gets rows as they are; leave them out"
        )
    if format is not None:
        parser(format, columns)
        if chat is not None:
            check_format(format, plain=chat.format == TEXT)
    if on_bad_row not in ("skip", "error"):
        raise ConfigError(f"on_bad_row: {on_bad_row!r}; use skip or error")


def _chat(chat: ChatTokenizer | TextTokenizer | None) -> ChatTokenizer | TextTokenizer:
    assert chat is not None  # `_check` has seen to it
    return chat


def detect_source_format(reader: RowReader, name: str, columns: Mapping[str, str]) -> str:
    """The format of the first readable rows; any where there are none, for then all rows are rejected."""
    for chunk in reader.chunks():
        rows = [decode_columns(row.value, columns) for row in chunk.rows() if not isinstance(row.value, BadRow)]
        if rows:
            try:
                return detect_format(rows, columns)
            except DataError as error:
                raise DataError(f"source {name}: {reader.files[chunk.file]}: {error}") from error
    return FORMATS[0]


def _refuse_rejected(store: TokenStore) -> None:
    """Raises DataError if rows that are bad were left out of a cached store."""
    assert store.path is not None
    names = dict(zip(store.manifest.files, store.files, strict=True))
    for record in read_rejections(store.path):
        if record["reason"] != TRANSFORM_REASON:
            place = f"{names[record['file']]}:{record['file_row'] if record['line'] is None else record['line']}"
            raise bad_row_error(store.name, place, record["reason"], record["detail"])
