"""What a chat template writes by itself, read off a rendering with sentinels in place of contents.

A *skeleton* is a chat whose contents are replaced by sentinels, rendered by its template. With every content
replaced it depends on little more than the roles: what is read off it is the chat's `Shape`, and can be kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, final

from streamsft.text.conversation import RowRejected
from streamsft.text.messages import REASONING

__all__ = ["Edges", "Mark", "Messages", "Shape", "Turn", "find_marks", "read_shape", "sentinel_word", "with_sentinels"]

Messages = Sequence[Mapping[str, Any]]

CONTENT: Final = "c"
REASON: Final = "r"
ARGUMENT: Final = "a"


class Mark(NamedTuple):
    """One sentinel found in a text."""

    start: int
    end: int
    message: int
    kind: str


class Turn(NamedTuple):
    """How the template frames one message: what belongs to the turn around its first and last sentinel.

    Attributes:
        lead: characters before the first sentinel that the model writes although no field holds them, such as
            an empty thinking block or the name of the tool that it calls.
        gap: characters between the last sentinel and the end mark.
        end: the text that ends the turn, '' where a message that the model does not write has none.
    """

    lead: int
    gap: int
    end: str


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """What a template writes around a plain turn of the assistant, probed once.

    Attributes:
        end: what ends the turn, such as ``<|im_end|>``.
        prompt: what it writes before the model takes over, '' where it marks that by nothing.
        opening: all that stands between the user's content and the assistant's, without whitespace at the end.
        rare_ends: special tokens outside plain chats; one of them may end a turn that calls a tool.
    """

    end: str
    prompt: str
    opening: str
    rare_ends: tuple[str, ...] = ()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the template writes for a sequence of roles.

    Attributes:
        turns: per message.
        pieces: the template's own text around the contents, one more than messages; empty when the contents do
            not appear once each and in order.
        between: what stands around the assistant's turns, one more than turns: the template's own text, and the
            number of each message in between; empty when messages do not appear in order.
        controls: how many control tokens the template writes.
    """

    turns: tuple[Turn, ...]
    pieces: tuple[str, ...]
    between: tuple[tuple[str | int, ...], ...]
    controls: int

    @property
    def characters(self) -> int:
        """How much text is kept here."""
        pieces = (part for group in self.between for part in group if isinstance(part, str))
        return sum(map(len, self.pieces)) + sum(map(len, pieces))


def sentinel_word(text: str, word: str = "qsentinelq") -> str:
    """A word of letters that does not occur in `text`."""
    while word in text:
        word += "q"
    return word


def with_sentinels(messages: Messages, word: str, *, everything: bool) -> list[dict[str, Any]]:
    """`messages` with the contents, reasoning and tool arguments of the assistant, or of everyone, replaced."""
    replaced = []
    for index, message in enumerate(messages):
        if not everything and message["role"] != "assistant":
            replaced.append(dict(message))
            continue
        name = f"{word}{index}x"
        new = {**message, "content": f"{name}{CONTENT}"}
        for key in REASONING:
            if key in new:
                new[key] = f"{name}{REASON}"
        if "tool_calls" in new:
            new["tool_calls"] = [_with_sentinel(call, f"{name}{ARGUMENT}") for call in new["tool_calls"]]
        replaced.append(new)
    return replaced


def _with_sentinel(call: Mapping[str, Any], name: str) -> dict[str, Any]:
    function = call["function"]
    as_text = isinstance(function["arguments"], str)
    return {**call, "function": {**function, "arguments": f'{{"{name}": "{name}"}}' if as_text else {name: name}}}


def find_marks(text: str, word: str) -> list[Mark]:
    """The sentinels of `word` in `text`, in order."""
    pattern = re.compile(rf"{word}(\d+)x([{CONTENT}{REASON}{ARGUMENT}])")
    return [Mark(m.start(), m.end(), int(m[1]), m[2]) for m in pattern.finditer(text)]


def read_shape(messages: Messages, text: str, word: str, edges: Edges, controls: int) -> Shape:
    """The shape in `text`, a rendering of `messages` with every content replaced.

    Raises:
        RowRejected: message_not_rendered for a message that the template leaves out; span_not_found for a turn
            of the assistant whose beginning or end is not certain.
    """
    marks = find_marks(text, word)
    seen = {mark.message for mark in marks}
    for index, message in enumerate(messages):
        if index not in seen:
            raise RowRejected(
                "message_not_rendered", f"the template leaves out message {index} of role {message['role']!r}"
            )
    turns: list[Turn] = []
    for index, message in enumerate(messages):
        own = [number for number, mark in enumerate(marks) if mark.message == index]
        first, last = own[0], own[-1]
        before = marks[first - 1].end if first else 0
        after = marks[last + 1].start if last + 1 < len(marks) else len(text)
        header, tail = text[before : marks[first].start], text[marks[last].end : after]
        if message["role"] != "assistant":
            turns.append(Turn(0, 0, edges.end if tail.startswith(edges.end) else ""))
            continue
        if last - first + 1 != len(own):
            raise RowRejected("span_not_found", f"the template prints message {index} in several places")
        gap, end = _end(tail, "tool_calls" in message, edges, index)
        turns.append(Turn(_lead(header, marks[first].kind, edges, index), gap, end))
    pieces: tuple[str, ...] = ()
    if [mark.message for mark in marks] == list(range(len(messages))):
        borders = [0, *(position for mark in marks for position in (mark.start, mark.end)), len(text)]
        pieces = tuple(text[borders[i] : borders[i + 1]] for i in range(0, len(borders), 2))
    between = _between(messages, text, marks, turns)
    return Shape(turns=tuple(turns), pieces=pieces, between=between, controls=controls)


def _between(
    messages: Messages, text: str, marks: Sequence[Mark], turns: Sequence[Turn]
) -> tuple[tuple[str | int, ...], ...]:
    """`Shape.between`."""
    order = [mark.message for mark in marks]
    others = [index for index in order if messages[index]["role"] != "assistant"]
    if order != sorted(order) or len(others) != len(set(others)):
        return ()
    groups: list[list[str | int]] = [[]]
    position = 0
    for number, mark in enumerate(marks):
        turn = turns[mark.message]
        if messages[mark.message]["role"] != "assistant":
            groups[-1] += [text[position : mark.start], mark.message]
            position = mark.end
            continue
        if number == 0 or order[number - 1] != mark.message:
            groups[-1].append(text[position : mark.start - turn.lead])
        if number + 1 == len(order) or order[number + 1] != mark.message:
            groups.append([])
            position = mark.end + turn.gap
    groups[-1].append(text[position:])
    return tuple(map(tuple, groups))


def _lead(header: str, kind: str, edges: Edges, index: int) -> int:
    """How many characters at the end of `header` the model writes itself."""
    if edges.prompt and edges.prompt in header:
        return len(header) - header.rindex(edges.prompt) - len(edges.prompt)
    if kind == CONTENT:
        return 0
    if edges.opening and header.startswith(edges.opening):
        return len(header) - len(edges.opening)
    raise RowRejected(
        "span_not_found",
        f"the template opens message {index}, a turn that begins with a tool call or with reasoning, in a way in which "
        "no plain turn opens, so what the model writes of it is not certain; a template with generation marks says it",
    )


def _end(tail: str, calls: bool, edges: Edges, index: int) -> tuple[int, str]:
    """Where in `tail` the end mark of the turn is, and which it is."""
    position = tail.find(edges.end)
    if position == 0 or (position > 0 and calls):
        return position, edges.end
    if calls:
        found = [(tail.find(mark), mark) for mark in edges.rare_ends if mark in tail]
        if found:
            return min(found)
    raise RowRejected(
        "span_not_found", f"the template does not end message {index}, a turn of the assistant, with {edges.end!r}"
    )
