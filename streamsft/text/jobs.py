"""From a chunk of raw rows to tokens and masks: the part of tokenizing that runs in any process."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np

from streamsft.errors import DataError, StreamsftError
from streamsft.sources.rawrows import BadRow, Chunk, Row
from streamsft.text.conversation import RowRejected
from streamsft.text.formats import parser
from streamsft.types import Bools, Int32s, Ints

if TYPE_CHECKING:
    from streamsft.text.chat import ChatTokenizer

__all__ = ["TRANSFORM_REASON", "ChatJob", "EncodedChunk", "Rejected", "Transform", "TransformJob", "decode_columns"]

Transform: TypeAlias = Callable[[dict[str, Any]], Mapping[str, Any] | None]

#: The reason given for rows that a user's function left out.
TRANSFORM_REASON = "transform"

_MESSAGE_COLUMNS = ("messages", "conversations", "conversation", "history")


@final
@dataclass(frozen=True, slots=True)
class Rejected:
    """A row of a chunk that gave no tokens.

    Attributes:
        index: its number in the chunk.
        line: the line it starts on, from 1; None where the format has no lines.
        reason: a key of `REASONS`, or `TRANSFORM_REASON`.
        detail: what exactly was found.
    """

    index: int
    line: int | None
    reason: str
    detail: str


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedChunk:
    """The tokens of a chunk's accepted rows, laid end to end.

    Attributes:
        rows: rows in the chunk, rejected ones included.
        index: number of each accepted row in the chunk, int64[k].
        lengths: tokens of each, int32[k].
        input_ids: int32[sum of lengths].
        loss_mask: bool[sum of lengths].
        rejected: the other rows.
    """

    rows: int
    index: Ints
    lengths: Int32s
    input_ids: Int32s
    loss_mask: Bools
    rejected: tuple[Rejected, ...]


@final
@dataclass(frozen=True, slots=True)
class ChatJob:
    """Tokenizes rows as conversations.

    Attributes:
        chat: renders and encodes.
        format: name of the rows' format.
        columns: from a name in the format to the file's own.
    """

    chat: ChatTokenizer
    format: str
    columns: Mapping[str, str] = field(default_factory=dict)

    def run(self, chunk: Chunk, /) -> EncodedChunk:
        """The tokens of `chunk`."""
        parse = parser(self.format, self.columns)
        collected = _Collected()
        conversations = []
        for index, row in enumerate(rows := chunk.rows()):
            try:
                conversations.append((index, parse(decode_columns(_value(row), self.columns))))
            except RowRejected as rejection:
                collected.reject(index, row, rejection.reason, rejection.detail)
        encoded = self.chat.encode([conversation for _, conversation in conversations])
        for (index, _), result in zip(conversations, encoded, strict=True):
            if isinstance(result, RowRejected):
                collected.reject(index, rows[index], result.reason, result.detail)
            else:
                collected.accept(index, result.input_ids, result.loss_mask)
        return collected.chunk(len(rows))


@final
@dataclass(frozen=True, slots=True)
class TransformJob:
    """Tokenizes rows with a user's function.

    Attributes:
        transform: from a row to a mapping with `input_ids` and `loss_mask`, or to None to leave it out.
        source: the source's name, for messages.
        files: names of the files, for messages.
    """

    transform: Transform
    source: str
    files: Sequence[str]

    def run(self, chunk: Chunk, /) -> EncodedChunk:
        """The tokens of `chunk`.

        Raises:
            DataError: the function failed, or returned something else.
        """
        collected = _Collected()
        for index, row in enumerate(rows := chunk.rows()):
            try:
                result = self._call(_value(row))
            except RowRejected as rejection:
                collected.reject(index, row, rejection.reason, rejection.detail)
            except StreamsftError as error:
                raise type(error)(f"{self._where(chunk, index, row)}: {error}") from error
            except Exception as error:
                where = self._where(chunk, index, row)
                raise DataError(f"{where}: the transform raised {type(error).__name__}: {error}") from error
            else:
                if result is None:
                    collected.reject(index, row, TRANSFORM_REASON, "the transform returned None")
                elif not result[1][1:].any():
                    collected.reject(index, row, "nothing_supervised", "the mask supervises no token behind the first")
                else:
                    collected.accept(index, *result)
        return collected.chunk(len(rows))

    def _call(self, value: dict[str, Any]) -> tuple[Int32s, Bools] | None:
        result = self.transform(value)
        if result is None:
            return None
        if not isinstance(result, Mapping) or "input_ids" not in result or "loss_mask" not in result:
            raise DataError("the transform must return a mapping with input_ids and loss_mask, or None")
        ids, mask = (np.asarray(result[name]) for name in ("input_ids", "loss_mask"))
        if ids.ndim != 1 or ids.shape != mask.shape or (ids.size and ids.dtype.kind not in "iu"):
            raise DataError(
                f"the transform must return flat integer input_ids and a loss_mask of the same length, not "
                f"{ids.dtype}{list(ids.shape)} and {mask.dtype}{list(mask.shape)}"
            )
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) <= np.iinfo(np.int32).max:
            raise DataError(f"the transform returned token ids from {ids.min()} to {ids.max()}")
        if not np.isin(mask, (0, 1)).all():
            raise DataError("the transform returned a loss_mask with other values than 0, 1, False and True")
        return ids.astype(np.int32), mask.astype(np.bool_)

    def _where(self, chunk: Chunk, index: int, row: Row) -> str:
        number = chunk.first_row + index if row.line is None else row.line
        return f"source {self.source}: {self.files[chunk.file]}:{number}"


@final
class _Collected:
    """What a chunk has given so far."""

    def __init__(self) -> None:
        self._index: list[int] = []
        self._ids: list[Int32s] = []
        self._masks: list[Bools] = []
        self._rejected: list[Rejected] = []

    def accept(self, index: int, ids: Int32s, mask: Bools) -> None:
        self._index.append(index)
        self._ids.append(ids)
        self._masks.append(mask)

    def reject(self, index: int, row: Row, reason: str, detail: str) -> None:
        self._rejected.append(Rejected(index, row.line, reason, detail))

    def chunk(self, rows: int) -> EncodedChunk:
        return EncodedChunk(
            rows=rows,
            index=np.array(self._index, np.int64),
            lengths=np.array([len(ids) for ids in self._ids], np.int32),
            input_ids=np.concatenate([np.empty(0, np.int32), *self._ids]),
            loss_mask=np.concatenate([np.empty(0, np.bool_), *self._masks]),
            rejected=tuple(sorted(self._rejected, key=lambda rejected: rejected.index)),
        )


def _value(row: Row) -> dict[str, Any]:
    if isinstance(row.value, BadRow):
        raise RowRejected("bad_row", row.value.detail)
    return row.value


def decode_columns(row: dict[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """`row` with the lists of messages that it holds as JSON text made into lists.

    Columnar and delimited files keep messages of varying structure as text. What is no JSON list stays text.
    """
    for name in _MESSAGE_COLUMNS:
        column = columns.get(name, name)
        text = row.get(column)
        if isinstance(text, str) and text.lstrip()[:1] == "[":
            try:
                row = {**row, column: json.loads(text)}
            except (ValueError, RecursionError):
                continue  # the format's parser says what is wrong with it
    return row
