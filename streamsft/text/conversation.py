"""A conversation, and why a row may not become one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, final

__all__ = ["REASONS", "Conversation", "Pair", "RowRejected"]

REASONS: Mapping[str, str] = MappingProxyType(
    {
        "bad_row": "the row could not be read: malformed JSON, not an object, NaN, or invalid UTF-8",
        "bad_unicode": "a text holds a lone surrogate or a character reserved for internal use",
        "missing_column": "a column that the format needs is absent or null",
        "empty_conversation": "there are no messages",
        "bad_role": "a message has no role, or one that is not known",
        "bad_content": "a message's content is neither text, nor a list of text parts, nor replaced by tool calls",
        "bad_tool_call": "a tool call has no name, or its arguments are not a JSON object",
        "bad_tools": "the tools are not a JSON list of tool schemas",
        "bad_flag": "a weight or train flag is not 0 or 1, or asks to train on a message the model does not write",
        "two_systems": "the system column and the first message give different system prompts",
        "no_assistant_turn": "no message was written by the assistant",
        "empty_turn": "an assistant turn that is to be trained on is empty, or is rendered empty",
        "template_error": "the chat template raised an error on this conversation",
        "message_not_rendered": "the chat template leaves a message or a tool call out",
        "text_left_out": "the chat template leaves out part of an assistant turn that is to be trained on",
        "control_token_in_text": "a text spells a control token of the tokenizer and would be encoded as that token",
        "span_not_found": "what the assistant wrote cannot be located in the rendered text with certainty",
        "nothing_supervised": "no token after the first would be trained on",
        "equal_answers": "the chosen and the rejected answer are the same",
        "no_common_prompt": "the chosen and the rejected answer do not answer the same prompt",
    }
)
"""Every reason for which a row can be rejected, with what it means."""


_LONGEST = 400


@final
class RowRejected(Exception):  # noqa: N818
    """A row cannot be used. Not an error of the program: rows are rejected one by one, counted and listed.

    Attributes:
        reason: one of the keys of `REASONS`.
        detail: what exactly was found, in one line that can be written to any file.
    """

    def __init__(self, reason: str, detail: str) -> None:
        assert reason in REASONS, reason
        detail = " ".join(detail.encode("utf-8", "backslashreplace").decode().split())
        detail = detail if len(detail) <= _LONGEST else f"{detail[:_LONGEST]}..."
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"


@final
@dataclass(slots=True)
class Conversation:
    """One chat in the OpenAI form.

    Attributes:
        messages: at least one dict with ``role`` and ``content`` (a str, '' where only tools are called) and
            perhaps ``tool_calls``, ``tool_call_id``, ``name``, ``reasoning_content`` and others for the template.
        tools: the tool schemas offered to the model, or None.
        supervise: per message, what its ``weight`` or ``train`` flag says; None where it has none.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    supervise: list[bool | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.supervise:
            self.supervise = [None] * len(self.messages)


@final
@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers to one prompt, each with the prompt before it, of which no turn is trained on.

    Attributes:
        chosen: the conversation whose answer is preferred.
        rejected: the other.
    """

    chosen: Conversation
    rejected: Conversation
