"""Raw rows on their way to the tokenizer: chunks of undecoded input, and what decoding makes of them.

A reader cuts its input into chunks of about `CHUNK_BYTES` without decoding it. A chunk is small and
picklable, so that it can travel to the process that decodes and tokenizes it. JSON rows stay Python
objects from text to template: nothing ever gathers them into columns, which would give all rows the
union of their keys.
"""

from __future__ import annotations

import io
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, final

__all__ = [
    "CHUNK_BYTES",
    "ArrowChunk",
    "BadRow",
    "Chunk",
    "JsonLines",
    "JsonTexts",
    "ListedRows",
    "Row",
    "RowReader",
    "decode_batch",
    "iterate_rows",
    "null_pruner",
    "parse_json_row",
]

CHUNK_BYTES = 1 << 18

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


@final
@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be decoded, or is left out before it is tokenized, and why."""

    detail: str
    reason: str = "bad_row"


@final
@dataclass(frozen=True, slots=True)
class Row:
    """One row of a chunk.

    Attributes:
        value: the row, or why there is none.
        line: number of the line it starts on, from 1; None where the format has no lines.
    """

    value: dict[str, Any] | BadRow
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk(ABC):
    """Some consecutive rows of one file, not yet decoded.

    Attributes:
        file: index into the reader's `files`.
        first_row: number of the first row in its file, from 0, where rows are not known by their lines.
        read: how far into its input the reader was when it made this chunk, on the scale of its `size`.
    """

    file: int = 0
    first_row: int = 0
    read: int = 0

    @abstractmethod
    def rows(self) -> list[Row]:
        """Decode the rows, in order."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLines(Chunk):
    """Whole lines of a JSON Lines file. Lines end at ``\\n`` alone, never at U+2028; blank ones are no rows."""

    data: bytes
    first_line: int

    def rows(self) -> list[Row]:
        lines = enumerate(self.data.split(b"\n"), self.first_line)
        return [Row(parse_json_row(text), line) for line, text in lines if text.strip()]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class JsonTexts(Chunk):
    """Elements of a JSON array, each as its own text."""

    texts: tuple[bytes, ...]
    lines: tuple[int, ...]

    def rows(self) -> list[Row]:
        return [Row(parse_json_row(text), line) for text, line in zip(self.texts, self.lines, strict=True)]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRows(Chunk):
    """Rows that are Python objects already."""

    values: tuple[dict[str, Any] | BadRow, ...]
    lines: tuple[int, ...] | None = None

    def rows(self) -> list[Row]:
        lines: Sequence[int | None] = self.lines if self.lines is not None else (None,) * len(self.values)
        return [Row(value, line) for value, line in zip(self.values, lines, strict=True)]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowChunk(Chunk):
    """Rows of a columnar file, as an Arrow stream of record batches.

    Keys of nested structs that are null are left out of the row: a columnar file cannot tell a missing
    key from a null one, and gives every struct the union of all keys.
    """

    data: bytes

    def rows(self) -> list[Row]:
        import pyarrow as pa

        with pa.ipc.open_stream(io.BytesIO(self.data)) as reader:
            prune = null_pruner(reader.schema)
            return [Row(prune(value)) for batch in reader for value in decode_batch(batch)]


class RowReader(Protocol):
    """A raw dataset that can be tokenized."""

    @property
    def files(self) -> tuple[str, ...]:
        """Names for messages and for the store; `Chunk.file` counts in them."""

    @property
    def size(self) -> int:
        """The amount of input, in bytes where it is files and in rows where it is not."""

    def content_key(self) -> list[Any]:
        """What identifies the content, as JSON; the same wherever the content lies.

        Raises:
            DataError: the content cannot be read.
        """

    def chunks(self) -> Iterator[Chunk]:
        """All rows in input order. Every call starts anew.

        Raises:
            DataError: a file cannot be read on, or is not the one that was listed.
        """


def iterate_rows(reader: RowReader) -> Iterator[tuple[int, int, Row]]:
    """Every row of `reader` as (file index, number of the row in its file from 0, row), bad ones too."""
    file, number = 0, 0
    for chunk in reader.chunks():
        if chunk.file != file:
            file, number = chunk.file, 0
        for row in chunk.rows():
            yield file, number, row
            number += 1


def parse_json_row(text: bytes) -> dict[str, Any] | BadRow:
    """Decode one row of strict JSON in UTF-8: no NaN, no half surrogate pairs, an object at the top."""
    try:
        value = _DECODER.decode(text.decode("utf-8"))
        if _SURROGATE_ESCAPE.search(text):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        return BadRow(f"not UTF-8 at byte {error.start + 1} of the row")
    except UnicodeEncodeError:
        return BadRow("half of a surrogate pair (\\ud800 to \\udfff), which is no character")
    except json.JSONDecodeError as error:
        return BadRow(f"malformed JSON at column {error.colno}: {error.msg}")
    except RecursionError:
        return BadRow("JSON nested too deeply")
    except ValueError as error:
        return BadRow(f"malformed JSON: {error}")
    if not isinstance(value, dict):
        return BadRow(f"the row is a JSON {_JSON_KINDS[type(value)]}, not an object")
    return value


def null_pruner(schema: Any) -> Callable[[dict[str, Any] | BadRow], dict[str, Any] | BadRow]:
    """A function that drops the null keys of all structs nested in rows of this Arrow schema.

    Columns themselves stay, null or not. Text that holds JSON is left alone, so a null in it stays.
    """
    columns = {field.name: prune for field in schema if (prune := _pruner(field.type)) is not None}

    def prune_row(row: dict[str, Any] | BadRow) -> dict[str, Any] | BadRow:
        if isinstance(row, BadRow):
            return row
        for name, prune in columns.items():
            row[name] = prune(row[name])
        return row

    return prune_row


def _pruner(kind: Any) -> Callable[[Any], Any] | None:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        fields = {field.name: _pruner(field.type) or _same for field in kind}
        return lambda value: None if value is None else {k: fields[k](v) for k, v in value.items() if v is not None}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        item = _pruner(kind.value_type)
        return None if item is None else lambda value: None if value is None else [item(v) for v in value]
    return None


def _same(value: Any) -> Any:
    return value


def decode_batch(batch: Any) -> list[dict[str, Any] | BadRow]:
    """The rows of an Arrow record batch as they are, nulls included; text that is not UTF-8 costs its row alone."""
    try:
        return list(batch.to_pylist())
    except UnicodeDecodeError:
        return [_decoded_one(batch.slice(i, 1)) for i in range(batch.num_rows)]


def _decoded_one(batch: Any) -> dict[str, Any] | BadRow:
    try:
        row: dict[str, Any] = batch.to_pylist()[0]
    except UnicodeDecodeError as error:
        return BadRow(f"not UTF-8 at byte {error.start + 1} of a text")
    return row


def _no_constant(literal: str) -> NoReturn:
    raise ValueError(f"{literal} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)
_JSON_KINDS = {list: "array", str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}
