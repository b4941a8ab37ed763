"""The format ``preference``: rows that hold two answers to one prompt, of which one is preferred."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, final

from streamsft.text.cells import listed, renamed, text_of
from streamsft.text.conversation import Conversation, Pair, RowRejected

__all__ = ["PREFERENCE", "PreferenceRows"]

PREFERENCE: Final = "preference"
"""The name of the format."""

Answer: TypeAlias = "str | list[Any]"


@final
class PreferenceRows:
    """The parser of the format. Can be pickled.

    An answer is a text or a list of messages. The prompt is the column ``prompt``, a text or a list of messages, or the
    messages that both lists of answers begin with; these may also repeat the column.

    Args:
        parse: what makes a conversation of a prompt and its completion, of format ``prompt_completion``.
        columns: from a name in the format to the file's own name of that column.
    """

    def __init__(self, parse: Callable[[Mapping[str, Any]], Conversation], columns: Mapping[str, str]) -> None:
        self._parse = parse
        self._columns = dict(columns)

    def __call__(self, row: Mapping[str, Any]) -> Pair:
        """The two conversations of a row.

        Raises:
            RowRejected: the answers are equal or have no prompt in common, or one of them cannot be used.
        """
        if not isinstance(row, Mapping):
            raise RowRejected("bad_row", f"the row is a {type(row).__name__}, not an object")
        if self._columns:
            row = renamed(row, self._columns)
        chosen, rejected = _answer(row, "chosen"), _answer(row, "rejected")
        if chosen == rejected:
            raise RowRejected("equal_answers", "the chosen and the rejected answer are the same")
        if isinstance(chosen, list) and isinstance(rejected, list):
            prompt, chosen, rejected = _apart(row, chosen, rejected)
        else:
            prompt = _prompt(row)
        return Pair(self._side(row, prompt, chosen, "chosen"), self._side(row, prompt, rejected, "rejected"))

    def _side(self, row: Mapping[str, Any], prompt: Answer, answer: Answer, name: str) -> Conversation:
        side = {"prompt": prompt, "completion": answer, "tools": row.get("tools"), "system": row.get("system")}
        try:
            return self._parse(side)
        except RowRejected as rejected:
            raise RowRejected(rejected.reason, f"{name}: {rejected.detail}") from rejected


def _answer(row: Mapping[str, Any], column: str) -> Answer:
    return listed(row, column) if isinstance(row.get(column), (list, tuple)) else text_of(row, column)


def _prompt(row: Mapping[str, Any]) -> Answer:
    return _answer(row, "prompt")


def _apart(row: Mapping[str, Any], chosen: list[Any], rejected: list[Any]) -> tuple[Answer, list[Any], list[Any]]:
    """The prompt, and the messages behind it of two lists of messages."""
    same = 0
    while same < min(len(chosen), len(rejected)) and chosen[same] == rejected[same]:
        same += 1
    column = row.get("prompt")
    if column is not None and not any(map(_opens, (chosen, rejected))):
        return _prompt(row), chosen, rejected
    if not same:
        raise RowRejected("no_common_prompt", "the chosen and the rejected messages differ from the first one on")
    if column is not None and not _repeated(_prompt(row), chosen[:same]):
        raise RowRejected("no_common_prompt", "the messages in front of the answers are not those of the prompt column")
    return chosen[:same], chosen[same:], rejected[same:]


def _opens(messages: list[Any]) -> bool:
    """Whether messages begin with one that the model does not write: with a prompt."""
    first = messages[0] if messages else None
    return isinstance(first, Mapping) and first.get("role") not in ("assistant", "tool")


def _repeated(prompt: Answer, messages: list[Any]) -> bool:
    """Whether `messages` begin with the prompt, or end with it where that is a text."""
    if isinstance(prompt, list):
        return messages[: len(prompt)] == prompt
    return any(isinstance(message, Mapping) and message.get("content") == prompt for message in messages)
