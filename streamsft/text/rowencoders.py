"""From decoded rows to tokens: as conversations, by a user's function, or as the tokens that they are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, final

from streamsft.errors import DataError, StreamsftError
from streamsft.sources.rawrows import BadRow
from streamsft.sources.shardvalues import ArrowValue, decode_values
from streamsft.sources.streaming import Encoded, Refused
from streamsft.text.conversation import REASONS, Conversation
from streamsft.text.formats import parser
from streamsft.text.identity import identity
from streamsft.text.jobs import (
    TRANSFORM_REASON,
    Transform,
    decode_columns,
    encode_chats,
    encode_with,
    tokens_of,
)

if TYPE_CHECKING:
    from streamsft.text import masks
    from streamsft.text.chat import ChatTokenizer
    from streamsft.text.plain import TextTokenizer

__all__ = ["ChatEncoder", "Messages", "RowsEncoder", "TokenEncoder", "TransformEncoder", "digest"]

Rows: TypeAlias = "Sequence[dict[str, Any] | BadRow]"
Where: TypeAlias = Callable[[int], str]
Messages: TypeAlias = "Callable[[dict[str, Any]], Conversation | Mapping[str, Any] | Sequence[Any] | None]"

MESSAGES_REASON = "messages"
"""The reason given for rows that a user's `messages` function left out."""


class RowsEncoder(Protocol):
    """The step from decoded rows to tokens."""

    @property
    def fingerprint(self) -> str:
        """What decides the tokens, as a digest."""

    @property
    def stages(self) -> Mapping[str, Any]:
        """The user's functions, by what they are called in messages."""

    @property
    def reasons(self) -> Sequence[str]:
        """The reasons for which a row may be refused."""

    def encode(self, rows: Rows, where: Where) -> list[Encoded | Refused]:
        """The tokens of `rows`, in order; `where` names one of them in messages."""


@final
@dataclass(frozen=True)
class ChatEncoder:
    """Tokenizes rows as conversations.

    Attributes:
        chat: renders and encodes.
        format: name of the rows' format.
        columns: from a name in the format to the file's own.
        messages: used instead of a format: from a row to a `Conversation`, to a list of messages, to a mapping with
            `messages` and perhaps `tools` and `system`, or to None to leave the row out.
    """

    chat: ChatTokenizer | TextTokenizer
    format: str = "messages"
    columns: Mapping[str, str] | None = None
    messages: Messages | None = None

    @property
    def fingerprint(self) -> str:
        made = identity(self.messages, "messages") if self.messages else [self.format, self.columns]
        return digest([self.chat.fingerprint, made])

    @property
    def stages(self) -> Mapping[str, Any]:
        return {} if self.messages is None else {"messages": self.messages}

    @property
    def reasons(self) -> Sequence[str]:
        return list(REASONS) if self.messages is None else [*REASONS, MESSAGES_REASON]

    def encode(self, rows: Rows, where: Where) -> list[Encoded | Refused]:
        """The tokens of `rows`, or why there are none, in order; all texts are encoded at once.

        Raises:
            DataError: `messages` failed.
        """
        columns = self.columns or {}
        parse = parser(self.format, columns)
        if self.messages is None:
            return _tokens(encode_chats(self.chat, lambda row: parse(decode_columns(row, columns)), rows))
        made = [self._made(row, where, index) for index, row in enumerate(rows)]
        kept: list[Any] = [row for row in made if not isinstance(row, Refused)]
        found = encode_chats(self.chat, lambda row: row if isinstance(row, Conversation) else parse(row), kept)
        encoded = iter(_tokens(found))
        return [row if isinstance(row, Refused) else next(encoded) for row in made]

    def _made(self, row: dict[str, Any] | BadRow, where: Where, index: int) -> Any:
        """What `messages` makes of a row."""
        if isinstance(row, BadRow):
            return row
        assert self.messages is not None
        try:
            result = self.messages(row)
        except StreamsftError as error:
            raise type(error)(f"{where(index)}: {error}") from error
        except Exception as error:
            raise DataError(f"{where(index)}: messages raised {type(error).__name__}: {error}") from error
        if result is None:
            return Refused(MESSAGES_REASON, "messages returned None")
        if isinstance(result, Conversation):
            return result
        if isinstance(result, Mapping):
            return dict(result)
        return {"messages": list(result)}


@final
@dataclass(frozen=True)
class TransformEncoder:
    """Tokenizes rows with a user's function.

    Attributes:
        transform: from a row to a mapping with `input_ids` and `loss_mask`, or to None to leave it out.
    """

    transform: Transform

    @property
    def fingerprint(self) -> str:
        return identity(self.transform, "transform")

    @property
    def stages(self) -> Mapping[str, Any]:
        return {"transform": self.transform}

    @property
    def reasons(self) -> Sequence[str]:
        return [*REASONS, TRANSFORM_REASON]

    def encode(self, rows: Rows, where: Where) -> list[Encoded | Refused]:
        """The tokens of `rows`, or why there are none, in order.

        Raises:
            DataError: the function failed, or returned something else.
        """
        return [
            encode_with(self.transform, row, lambda index=index: where(index))  # type: ignore[misc]
            for index, row in enumerate(rows)
        ]


@final
@dataclass(frozen=True)
class TokenEncoder:
    """Takes rows that are tokens already: `input_ids` and `loss_mask`."""

    @property
    def fingerprint(self) -> str:
        return "tokens"

    @property
    def stages(self) -> Mapping[str, Any]:
        return {}

    @property
    def reasons(self) -> Sequence[str]:
        return ["bad_row"]

    def encode(self, rows: Rows, where: Where) -> list[Encoded | Refused]:
        """The tokens of `rows`, or why there are none, in order."""
        return [self._one(row) for row in rows]

    def direct(self, values: Sequence[Any]) -> list[Encoded | Refused]:
        """The tokens of rows that are not decoded; of columnar files they are views where the layout allows."""
        results: list[Encoded | Refused | None] = [None] * len(values)
        rest: list[int] = []
        for place, value in enumerate(values):
            found = value.piece.tokens(value.index) if type(value) is ArrowValue else None
            if found is None:
                rest.append(place)
            else:
                results[place] = Encoded(*found)
        decoded = decode_values([values[place] for place in rest])
        for place, row in zip(rest, decoded, strict=True):
            results[place] = self._one(row)
        return [result for result in results if result is not None]

    def _one(self, row: dict[str, Any] | BadRow) -> Encoded | Refused:
        if isinstance(row, BadRow):
            return Refused("bad_row", row.detail)
        try:
            return tokens_of(row, "a row of tokens must have")
        except DataError as error:
            return Refused("bad_row", str(error))


def _tokens(found: Sequence[masks.Encoded | Refused]) -> list[Encoded | Refused]:
    return [row if isinstance(row, Refused) else Encoded(row.input_ids, row.loss_mask) for row in found]


def digest(parts: Any) -> str:
    """A digest of JSON values, 32 hexadecimal digits."""
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()
