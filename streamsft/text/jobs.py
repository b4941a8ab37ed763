"""From a chunk of raw rows to tokens and masks: the part of tokenizing that runs in any process."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from streamsft.errors import DataError, StreamsftError
from streamsft.sources.rawrows import BadRow, Chunk, Row
from streamsft.sources.streaming import Encoded, Refused
from streamsft.sources.tokennames import CHOSEN, SHARED, UNSUPERVISED, holds_tokens
from streamsft.text.conversation import Conversation, Pair, RowRejected
from streamsft.text.formats import parser
from streamsft.types import Bools, Int32s, Ints

if TYPE_CHECKING:
    from streamsft.text import masks
    from streamsft.text.chat import ChatTokenizer
    from streamsft.text.plain import TextTokenizer

__all__ = [
    "TRANSFORM_REASON",
    "ChatJob",
    "EncodedChunk",
    "Rejected",
    "Transform",
    "TransformJob",
    "decode_columns",
    "encode_chats",
    "encode_with",
    "tokens_of",
]

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
        pairs: of preference pairs `shared_length` and `chosen_length` of each, int32[k, 2]; None of other rows.
    """

    rows: int
    index: Ints
    lengths: Int32s
    input_ids: Int32s
    loss_mask: Bools
    rejected: tuple[Rejected, ...]
    pairs: Int32s | None = None


@final
@dataclass(frozen=True, slots=True)
class ChatJob:
    """Tokenizes rows as conversations.

    Attributes:
        chat: renders and encodes.
        format: name of the rows' format.
        columns: from a name in the format to the file's own.
    """

    chat: ChatTokenizer | TextTokenizer
    format: str
    columns: Mapping[str, str] = field(default_factory=dict)

    def run(self, chunk: Chunk, /) -> EncodedChunk:
        """The tokens of `chunk`."""
        parse = parser(self.format, self.columns)
        rows = chunk.rows()
        results = encode_chats(
            self.chat, lambda row: parse(decode_columns(row, self.columns)), [row.value for row in rows]
        )
        return _collected(rows, results)


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
        rows = chunk.rows()
        return _collected(
            rows,
            [
                encode_with(self.transform, row.value, partial(self._where, chunk, index, row))
                for index, row in enumerate(rows)
            ],
        )

    def _where(self, chunk: Chunk, index: int, row: Row) -> str:
        number = chunk.first_row + index if row.line is None else row.line
        return f"source {self.source}: {self.files[chunk.file]}:{number}"


def encode_chats(
    chat: ChatTokenizer | TextTokenizer,
    parse: Callable[[dict[str, Any]], Conversation | Pair],
    rows: Sequence[dict[str, Any] | BadRow],
) -> list[masks.Encoded | Refused]:
    """The tokens of rows that `parse` makes conversations of, or why there are none, in order."""
    conversations: list[Any] = []
    for row in rows:
        if isinstance(row, BadRow):
            continue
        try:
            conversations.append(parse(row))
        except RowRejected as rejection:
            conversations.append(rejection)
    encoded = iter(chat.encode(conversations))
    return [Refused(row.reason, row.detail) if isinstance(row, BadRow) else _told(next(encoded)) for row in rows]


def _told(result: masks.Encoded | RowRejected) -> masks.Encoded | Refused:
    return Refused(result.reason, result.detail) if isinstance(result, RowRejected) else result


def encode_with(transform: Transform, row: dict[str, Any] | BadRow, where: Callable[[], str]) -> Encoded | Refused:
    """The tokens that a user's function makes of a row, or why there are none.

    Raises:
        DataError: the function failed, or returned something else.
    """
    if isinstance(row, BadRow):
        return Refused(row.reason, row.detail)
    try:
        result = _call(transform, row)
    except RowRejected as rejection:
        return Refused(rejection.reason, rejection.detail)
    except StreamsftError as error:
        raise type(error)(f"{where()}: {error}") from error
    except Exception as error:
        raise DataError(f"{where()}: the transform raised {type(error).__name__}: {error}") from error
    if result is None:
        return Refused(TRANSFORM_REASON, "the transform returned None")
    if not result.loss_mask[1:].any():
        return Refused("nothing_supervised", "the mask supervises no token behind the first")
    return result


def _call(transform: Transform, row: dict[str, Any]) -> Encoded | None:
    result = transform(row)
    return None if result is None else tokens_of(result, "the transform must return")


def tokens_of(row: Any, what: str) -> Encoded:
    """The ids and the mask that a mapping holds, checked.

    Args:
        row: the mapping.
        what: how a message begins that says what it must hold.

    Raises:
        DataError: it is something else.
    """
    if not isinstance(row, Mapping) or not holds_tokens(list(row)):
        raise DataError(f"{what} a mapping with input_ids and loss_mask (or labels), or None")
    if SHARED in row or CHOSEN in row:
        raise DataError(f"{what} a row that is no preference pair ({SHARED}); pairs are made by format: preference")
    ids = np.asarray(row["input_ids"])
    mask = np.asarray(row["loss_mask"]) if "loss_mask" in row else _mask_of_labels(row["labels"], ids, what)
    if ids.ndim != 1 or ids.shape != mask.shape or (ids.size and ids.dtype.kind not in "iu"):
        raise DataError(
            f"{what} flat integer input_ids and a loss_mask of the same length, not "
            f"{ids.dtype}{list(ids.shape)} and {mask.dtype}{list(mask.shape)}"
        )
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < 1 << 31:
        raise DataError(f"{what} input_ids that fit int32, not token ids from {ids.min()} to {ids.max()}")
    supervised = mask == 1
    if mask.dtype != np.bool_ and not (supervised | (mask == 0)).all():
        raise DataError(f"{what} a loss_mask with no other values than 0, 1, False and True")
    return Encoded(ids.astype(np.int32), supervised)


def _mask_of_labels(labels: Any, ids: NDArray[Any], what: str) -> NDArray[Any]:
    """Where `labels` are not -100."""
    found = np.asarray(labels)
    if found.shape == ids.shape and ((found != UNSUPERVISED) & (found != ids)).any():
        raise DataError(f"{what} labels that are the ids at their own places, or -100 where nothing is trained")
    return np.asarray(found != UNSUPERVISED)


def _collected(rows: Sequence[Row], results: Sequence[Encoded | masks.Encoded | Refused]) -> EncodedChunk:
    """The results of a chunk's rows, laid end to end."""
    accepted = [(index, result) for index, result in enumerate(results) if not isinstance(result, Refused)]
    pairs = [pair for _, result in accepted if (pair := getattr(result, "pair", None)) is not None]
    return EncodedChunk(
        rows=len(rows),
        index=np.array([index for index, _ in accepted], np.int64),
        lengths=np.array([len(result.input_ids) for _, result in accepted], np.int32),
        input_ids=np.concatenate([np.empty(0, np.int32), *(result.input_ids for _, result in accepted)]),
        loss_mask=np.concatenate([np.empty(0, np.bool_), *(result.loss_mask for _, result in accepted)]),
        rejected=tuple(
            Rejected(index, rows[index].line, result.reason, result.detail)
            for index, result in enumerate(results)
            if isinstance(result, Refused)
        ),
        pairs=np.array(pairs, np.int32) if pairs else None,
    )


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
