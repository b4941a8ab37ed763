"""Making a streaming source: what is read, what becomes tokens, what is left out and what is held out."""

from __future__ import annotations

import logging
import pickle
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Unpack, cast

import numpy as np

from streamsft.errors import ConfigError, DataError, EmptySourceError
from streamsft.sources.hub import HubDataset
from streamsft.sources.paths import Paths
from streamsft.sources.rawrows import BadRow
from streamsft.sources.shardfiles import ShardFiles
from streamsft.sources.shardhub import ShardDataset
from streamsft.sources.shardrows import FILE_SHIFT
from streamsft.sources.shardvalues import decode_values
from streamsft.sources.store import TokenStore
from streamsft.sources.streaming import Encoded, RawRow, Refused, ShardReader, StreamingSource
from streamsft.sources.tokennames import SHARED, holds_tokens
from streamsft.text.filters import Filters, named_filters
from streamsft.text.formats import FORMATS, detect_format, parser
from streamsft.text.holdout import HoldOut, all_rows, held_rows
from streamsft.text.jobs import Transform, decode_columns
from streamsft.text.plainrows import check_format
from streamsft.text.preference import PREFERENCE
from streamsft.text.rowencoders import ChatEncoder, Messages, RowsEncoder, TokenEncoder, TransformEncoder
from streamsft.text.shardencoding import ShardEncoder

if TYPE_CHECKING:
    import datasets

    from streamsft.text.chat import ChatTokenizer
    from streamsft.text.plain import TextTokenizer

__all__ = ["EncoderOptions", "ShardSource", "check_portable", "held_out", "open_shards", "shard_encoder"]

ShardSource: TypeAlias = "Paths | HubDataset | datasets.IterableDataset | ShardReader"

logger = logging.getLogger("streamsft")

_FIRST = 100  # rows that a format is detected from
_ROWS = 512


def open_shards(source: ShardSource, name: str) -> ShardReader:
    """The reader for a path, glob, folder or a list of these, a hub dataset, or a `datasets.IterableDataset`.

    Raises:
        ConfigError: it is none of these.
        DataError: it cannot be found.
    """
    if isinstance(source, str | PathLike):
        return ShardFiles(source, name=name)
    if isinstance(source, HubDataset):
        return ShardDataset(source.stream(), name=name)
    if (loaded := sys.modules.get("datasets")) is not None:
        if isinstance(source, loaded.IterableDataset):
            return ShardDataset(source, name=name)
        if isinstance(source, loaded.IterableDatasetDict | loaded.DatasetDict):
            raise ConfigError(f"source {name}: it is several datasets; give one of its splits: {', '.join(source)}")
        if isinstance(source, loaded.Dataset):
            raise ConfigError(
                f"source {name}: a Dataset is in memory or mapped and needs no streaming; give it to tokenize(), or "
                "stream it with its to_iterable_dataset(num_shards=...)"
            )
    if isinstance(source, Sequence) and all(isinstance(path, str | PathLike) for path in source):
        return ShardFiles(cast("Paths", source), name=name)
    if all(hasattr(source, member) for member in ("fingerprint", "units", "read", "where")):
        return cast("ShardReader", source)
    raise ConfigError(
        f"source {name}: a {type(source).__name__} cannot be streamed; give a path, a list of paths, a HubDataset, a "
        "datasets.IterableDataset, or an object with the members of ShardReader"
    )


class EncoderOptions(TypedDict, total=False):
    """How rows are made into tokens; `StreamingSource` says what each means."""

    transform: Transform | ChatTokenizer | TextTokenizer | None
    messages: Messages | None
    format: str | None
    columns: Mapping[str, str] | None
    filters: Filters
    token_filters: Filters
    on_bad_row: Literal["skip", "error"]
    holdout: HoldOut | float | None


def shard_encoder(reader: ShardReader, name: str, **options: Unpack[EncoderOptions]) -> ShardEncoder:
    """What makes tokens of the rows of `reader`.

    Raises:
        ConfigError: an argument is wrong, or has no effect beside another one.
        DataError: the first rows cannot be read, or have no known format.
    """
    from streamsft.text.chat import ChatTokenizer
    from streamsft.text.plain import TextTokenizer

    where = f"source {name}"
    _check(where, options)
    transform, messages, holdout = options.get("transform"), options.get("messages"), options.get("holdout")
    rows: RowsEncoder
    if not isinstance(transform, ChatTokenizer | TextTokenizer):
        if transform is None:
            _check_tokens(reader, where)
        rows = TokenEncoder() if transform is None else TransformEncoder(transform)
    elif messages is not None:
        assert isinstance(transform, ChatTokenizer)
        rows = ChatEncoder(transform, messages=messages)
    else:
        columns = options.get("columns") or transform.columns
        named = options.get("format") or transform.format
        found = named or _detected(reader, where, columns)
        if found == PREFERENCE:
            raise ConfigError(
                f"{where}: preference pairs are not streamed; have them tokenized once, without streaming"
            )
        rows = ChatEncoder(transform, found, columns)
    return ShardEncoder(
        rows,
        name=name,
        filters=named_filters(options.get("filters", ()), "filters"),
        token_filters=named_filters(options.get("token_filters", ()), "token_filters"),
        threshold=None if holdout is None else HoldOut.of(holdout).threshold(reader, where),
        strict=options.get("on_bad_row") == "error",
    )


def _check(where: str, options: EncoderOptions) -> None:
    from streamsft.text.chat import ChatTokenizer
    from streamsft.text.plain import TextTokenizer

    if unknown := options.keys() - EncoderOptions.__annotations__.keys():
        raise TypeError(f"{where}: unknown argument {min(unknown)!r}")
    transform, messages = options.get("transform"), options.get("messages")
    for name, function in (("transform", transform), ("messages", messages)):
        if function is not None and not callable(function):
            raise ConfigError(f"{where}: {name}: a {type(function).__name__} is no function")
    if (on_bad_row := options.get("on_bad_row", "skip")) not in ("skip", "error"):
        raise ConfigError(f"{where}: on_bad_row: {on_bad_row!r}; use skip or error")
    chat = isinstance(transform, ChatTokenizer)
    if messages is not None and not chat:
        raise ConfigError(f"{where}: messages needs transform=ChatTokenizer(...), which renders what it returns")
    named, columns = options.get("format"), options.get("columns")
    plain = isinstance(transform, TextTokenizer)
    if (named or columns) and (messages is not None or not (chat or plain)):
        raise ConfigError(
            f"{where}: format and columns have no effect on a function, which gets rows as they are; leave them out"
        )
    if named is not None:
        parser(named, columns)
        check_format(named, plain=plain)


def _detected(reader: ShardReader, where: str, columns: Mapping[str, str]) -> str:
    """The format of the first readable rows; any where there are none, for then nothing can be drawn."""
    rows = [decode_columns(row, columns) for row in _first_rows(reader)]
    if not rows:
        return FORMATS[0]
    try:
        return detect_format(rows, columns)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error


def _check_tokens(reader: ShardReader, where: str) -> None:
    first = next(iter(_first_rows(reader)), None)
    if first is not None and SHARED in first:
        raise ConfigError(
            f"{where}: its rows are preference pairs ({SHARED}), which are not streamed; give it as a store"
        )
    if first is not None and not holds_tokens(list(first)):
        raise ConfigError(
            f"{where}: its rows hold no input_ids and loss_mask or labels but {', '.join(first)}; give "
            "transform=ChatTokenizer(...), or a function that makes tokens of a row"
        )


def _first_rows(reader: ShardReader) -> list[dict[str, Any]]:
    values = [raw.value for raw in islice(all_rows(reader), _FIRST)]
    return [row for row in decode_values(values) if not isinstance(row, BadRow)]


def check_portable(source: StreamingSource) -> None:
    """See that `source` can be sent to worker processes that are spawned.

    Raises:
        ConfigError: it cannot; names the function that is in the way.
    """
    stages: dict[str, Any] = dict(getattr(source.encode, "stages", {}))
    if isinstance(source.reader, ShardDataset):
        stages["the dataset (a function mapped over it)"] = source.reader
    stages |= {"the reader": source.reader, "the encoder": source.encode}
    for stage, thing in stages.items():
        try:
            pickle.dumps(thing)
        except Exception as error:
            what = getattr(thing, "__qualname__", type(thing).__name__)
            raise ConfigError(
                f"source {source.name}: {stage} ({what}) cannot be sent to worker processes: {error}. Define it with "
                "`def` at the top level of a module, or use workers: 0"
            ) from error


def held_out(source: StreamingSource) -> TokenStore:
    """The rows that `source` holds out, tokenized: a finite source named ``<name>.holdout``, in memory.

    Reads all rows of `source` once.

    Raises:
        ConfigError: it holds none out.
        EmptySourceError: none of the held rows could be used, or there are none.
        DataError: the rows cannot be read.
    """
    encoder = source.encode
    if not isinstance(encoder, ShardEncoder) or encoder.threshold is None:
        raise ConfigError(f"source {source.name}: it holds no rows out; give holdout=0.02, or a number of rows")
    encode = encoder.holding_none()
    rows = held_rows(source.reader, encoder.threshold)
    counts: Counter[str] = Counter()
    files = tuple(getattr(source.reader, "files", ()))
    with TokenStore.writer(None, name=f"{source.name}.holdout", files=files) as writer:
        while block := list(islice(rows, _ROWS)):
            results = encode([raw.value for raw in block])
            counts.update(result.reason for result in results if isinstance(result, Refused))
            _append(writer, [(raw, one) for raw, one in zip(block, results, strict=True) if isinstance(one, Encoded)])
        if not writer.rows:
            reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items())) or "none was held"
            raise EmptySourceError(f"source {source.name}: no held row can be used: {reasons}; hold more rows out")
        chat = getattr(encoder.rows, "chat", None)
        return writer.close(rejected=counts, tokenizer="" if chat is None else chat.tokenizer_hash)


def _append(writer: Any, rows: Sequence[tuple[RawRow, Encoded]]) -> None:
    numbers = np.array([raw.number for raw, _ in rows], np.int64)
    writer.append(
        np.concatenate([np.empty(0, np.int32), *(one.input_ids for _, one in rows)]),
        np.concatenate([np.empty(0, np.bool_), *(one.loss_mask for _, one in rows)]),
        np.array([len(one.input_ids) for _, one in rows], np.int32),
        numbers,
        (numbers >> FILE_SHIFT).astype(np.int32),
        numbers & ((1 << FILE_SHIFT) - 1),
    )
