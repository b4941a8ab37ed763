"""Whether a turn that is trained on is rendered with all that it says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from streamsft.text.conversation import RowRejected

__all__ = ["LeftOut", "check_turn", "check_whole"]

LeftOut = Literal["reject", "allow"]


def check_turn(message: Mapping[str, Any], index: int, written: str, end: str) -> None:
    """Refuse a turn that is rendered empty or without its tool calls.

    Args:
        message: the turn.
        index: its number.
        written: what is trained on of it.
        end: the text that ends it.

    Raises:
        RowRejected: empty_turn, or message_not_rendered.
    """
    if not written.rstrip().removesuffix(end).strip():
        raise RowRejected("empty_turn", f"message {index}, a turn of the assistant, is rendered empty")
    for call in message.get("tool_calls", ()):
        if call["function"]["name"] not in written:
            raise RowRejected("message_not_rendered", f"the template leaves a tool call of message {index} out")


def check_whole(message: Mapping[str, Any], index: int, turn: str) -> None:
    """Refuse a turn whose content or reasoning the template cuts, as templates of models that reason do in a history.

    White space does not matter.

    Args:
        message: the turn, with all keys of the row.
        index: its number.
        turn: all text of it.

    Raises:
        RowRejected: text_left_out.
    """
    for key in ("content", "reasoning_content"):
        said = message.get(key, "")
        if said not in turn and "".join(said.split()) not in "".join(turn.split()):
            raise RowRejected(
                "text_left_out",
                f"the template leaves out part of the {key} of message {index}; train on the last turn alone "
                "(train_on: last_assistant) if only turns before it are cut, give another template, or let it be so "
                "with text.left_out: allow",
            )
