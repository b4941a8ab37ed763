"""The format ``text``: rows that hold a document of plain text and no conversation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, final

from streamsft.errors import ConfigError
from streamsft.text.conversation import Conversation, RowRejected

__all__ = ["TEXT", "PlainRows", "check_format"]

TEXT: Final = "text"
"""The name of the format, of its column, and of the role of the one message that a row becomes."""


@final
class PlainRows:
    """The parser of the format. Can be pickled.

    Args:
        column: what the column is called in the data.
    """

    def __init__(self, column: str = TEXT) -> None:
        self._column = column

    def __call__(self, row: Mapping[str, Any]) -> Conversation:
        """The text of a row.

        Raises:
            RowRejected: there is none.
        """
        if not isinstance(row, Mapping):
            raise RowRejected("bad_row", f"the row is a {type(row).__name__}, not an object")
        text = row.get(self._column)
        if text is None:
            known = "it is null" if self._column in row else f"the row has {', '.join(map(str, row)) or 'none'}"
            raise RowRejected("missing_column", f"no text in column {self._column!r}: {known}")
        if not isinstance(text, str):
            raise RowRejected("bad_content", f"{self._column} is a {type(text).__name__}, not a text")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            point = ord(text[error.start])
            raise RowRejected("bad_unicode", f"{self._column} holds the lone surrogate U+{point:04X}") from error
        return Conversation([{"role": TEXT, "content": text}])


def check_format(format: str, *, plain: bool) -> None:  # noqa: A002
    """Refuse conversations for a `TextTokenizer`, and plain text for a `ChatTokenizer`.

    Raises:
        ConfigError: they do not go together.
    """
    if (format == TEXT) is not plain:
        wanted, given = ("TextTokenizer", "ChatTokenizer") if format == TEXT else ("ChatTokenizer", "TextTokenizer")
        raise ConfigError(f"format {format!r} is not for a {given}; give a {wanted}")
