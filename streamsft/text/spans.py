"""Where in a rendered chat each message stands, found without ever rendering a prefix of it.

A *skeleton* is the same chat with contents replaced by sentinels, rendered by the same template. Cutting it at
the sentinels leaves what the template writes by itself, and these pieces are then found, in order, in the full
text. What lies between two of them is a message.

- The *shape* is the skeleton with every content replaced. It depends on roles alone (without tools), so it is
  kept. If its pieces and the known contents, put together, are exactly the full text, every position is known.
- Otherwise (a template that trims, drops or rewrites contents, tool calls, reasoning) only the assistant's
  contents are replaced, and the pieces are looked for. They must fit in exactly one way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, final

from streamsft.text.conversation import RowRejected
from streamsft.text.messages import REASONING

__all__ = ["Edges", "Shape", "Turn", "place", "read_shape", "search", "sentinel_word", "with_sentinels"]

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
        controls: how many control tokens the template writes.
    """

    turns: tuple[Turn, ...]
    pieces: tuple[str, ...]
    controls: int


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


def _marks(text: str, word: str) -> list[Mark]:
    pattern = re.compile(rf"{word}(\d+)x([{CONTENT}{REASON}{ARGUMENT}])")
    return [Mark(m.start(), m.end(), int(m[1]), m[2]) for m in pattern.finditer(text)]


def read_shape(messages: Messages, text: str, word: str, edges: Edges, controls: int) -> Shape:
    """The shape in `text`, a rendering of `messages` with every content replaced.

    Raises:
        RowRejected: message_not_rendered for a message that the template leaves out; span_not_found for a turn
            of the assistant whose beginning or end is not certain.
    """
    marks = _marks(text, word)
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
    in_order = [mark.message for mark in marks] == list(range(len(messages)))
    pieces: tuple[str, ...] = ()
    if in_order:
        borders = [0, *(position for mark in marks for position in (mark.start, mark.end)), len(text)]
        pieces = tuple(text[borders[i] : borders[i + 1]] for i in range(0, len(borders), 2))
    return Shape(turns=tuple(turns), pieces=pieces, controls=controls)


def _lead(header: str, kind: str, edges: Edges, index: int) -> int:
    """How many characters at the end of `header` the model writes itself."""
    if edges.prompt and edges.prompt in header:
        return len(header) - header.rindex(edges.prompt) - len(edges.prompt)
    if kind == CONTENT:
        return 0
    if edges.opening and header.startswith(edges.opening):
        return len(header) - len(edges.opening)
    raise RowRejected("span_not_found", f"the template opens turn {index} in a way in which no plain turn opens")


def _end(tail: str, calls: bool, edges: Edges, index: int) -> tuple[int, str]:
    """Where in `tail` the end mark of the turn is, and which it is."""
    position = tail.find(edges.end)
    if position == 0 or (position > 0 and calls):
        return position, edges.end
    if calls:
        found = [(tail.find(mark), mark) for mark in edges.rare_ends if mark in tail]
        if found:
            return min(found)
    raise RowRejected("span_not_found", f"the template does not end turn {index} with {edges.end!r}")


def place(shape: Shape, contents: Sequence[str], text: str) -> list[tuple[int, int]] | None:
    """The character range of every message, if the pieces of `shape` and `contents` together are `text`.

    A range runs from where the writer takes over to the end of the end mark. None where they are not.
    """
    pieces = shape.pieces
    if not pieces:
        return None
    for known in (contents, [content.strip() for content in contents]):
        parts = [pieces[0]]
        for content, piece in zip(known, pieces[1:], strict=True):
            parts.append(content)
            parts.append(piece)
        if "".join(parts) == text:
            break
    else:
        return None
    ranges = []
    position = 0
    for number, (turn, content) in enumerate(zip(shape.turns, known, strict=True)):
        start = position + len(pieces[number])
        position = start + len(content)
        ranges.append((start - turn.lead, position + turn.gap + len(turn.end)))
    return ranges


def search(shape: Shape, messages: Messages, skeleton: str, word: str, text: str) -> dict[int, tuple[int, int]]:
    """The character ranges of the assistant's turns in `text`, by their number.

    Args:
        shape: of these messages.
        messages: the conversation.
        skeleton: its rendering with only the assistant's contents replaced by sentinels of `word`.
        word: the sentinels' word.
        text: its full rendering.

    Raises:
        RowRejected: span_not_found, when the pieces are not in `text` or fit in more than one way.
    """
    marks = _marks(skeleton, word)
    wanted = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    pieces: list[str] = []
    position = 0
    for index in wanted:
        own = [mark for mark in marks if mark.message == index]
        turn = shape.turns[index]
        if not own or own[0].start - turn.lead < position:
            raise RowRejected("span_not_found", f"turn {index} is not where the roles alone would put it")
        pieces.append(skeleton[position : own[0].start - turn.lead])
        position = own[-1].end + turn.gap
        if not skeleton.startswith(turn.end, position):
            raise RowRejected("span_not_found", f"turn {index} does not end as the roles alone would end it")
    pieces.append(skeleton[position:])
    starts, ends = _fit(pieces, text)
    return {index: (starts[number], ends[number] + len(shape.turns[index].end)) for number, index in enumerate(wanted)}


def _fit(pieces: Sequence[str], text: str) -> tuple[list[int], list[int]]:
    """Where the gaps between `pieces` begin and end in `text`, when the pieces fit in exactly one way.

    Every way to fit them lies between the leftmost and the rightmost one, so the two must be the same.
    """
    last = len(text) - len(pieces[-1])
    if not text.startswith(pieces[0]) or not text.endswith(pieces[-1]) or last < len(pieces[0]):
        raise RowRejected("span_not_found", "the text around the assistant's turns is not what the template writes")
    middle = pieces[1:-1]
    left: list[int] = []
    position = len(pieces[0])
    for piece in middle:
        found = text.find(piece, position, last)
        if found < 0:
            raise RowRejected("span_not_found", "the text between two of the assistant's turns was not found")
        left.append(found)
        position = found + len(piece)
    right: list[int] = []
    position = last
    for piece in reversed(middle):
        position = text.rfind(piece, len(pieces[0]), position)
        right.append(position)
    right.reverse()
    if left != right:
        raise RowRejected("span_not_found", "the text between two of the assistant's turns occurs more than once")
    starts = [len(pieces[0]), *(found + len(piece) for found, piece in zip(left, middle, strict=True))]
    return starts, [*left, last]
