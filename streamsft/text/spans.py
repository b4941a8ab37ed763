"""Where in a rendered chat each message stands, found without ever rendering a prefix of it.

What the template writes by itself is known from the chat's `Shape`, and is found, in order, in the full text; what
lies between is what the messages' authors write. In three ways, from the quickest to the most patient:

- `place`: the template's text and the known contents, put together, are exactly the full text.
- `search`: only the assistant's turns are left open (tool calls, reasoning, contents that the template rewrites).
- `search_skeleton`: the text around the assistant's turns comes from a rendering of this very chat in which only
  their contents are replaced by sentinels, for templates that rewrite what others say too.

In the latter two the pieces must fit in exactly one way; otherwise the chat is rejected.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from streamsft.text.conversation import RowRejected
from streamsft.text.skeleton import Messages, Shape, find_marks

__all__ = ["place", "search", "search_skeleton"]


def place(shape: Shape, contents: Sequence[str], text: str) -> dict[int, tuple[int, int]] | None:
    """The character range of every message, if the pieces of `shape` and `contents` together are `text`.

    A range runs from where the writer takes over to the end of the end mark. None where they are not.
    """
    if not shape.pieces:
        return None
    parts = [""] * (2 * len(contents) + 1)
    parts[0::2] = shape.pieces
    for known in (contents, [content.strip() for content in contents]):
        parts[1::2] = known
        if "".join(parts) == text:
            break
    else:
        return None
    borders = list(accumulate(map(len, parts)))
    return {
        index: (borders[2 * index] - lead, borders[2 * index + 1] + gap + len(end))
        for index, (lead, gap, end) in enumerate(shape.turns)
    }


def search(shape: Shape, messages: Messages, text: str) -> dict[int, tuple[int, int]] | None:
    """The character ranges of the assistant's turns in `text`, by their number; None if they are not found.

    What stands between them is put together from `shape` and the contents of the other messages.
    """
    if not shape.between:
        return None
    for strip in (False, True):
        contents = [message["content"].strip() if strip else message["content"] for message in messages]
        pieces = ["".join(p if isinstance(p, str) else contents[p] for p in group) for group in shape.between]
        try:
            return _ranges(shape, messages, pieces, text)
        except RowRejected:
            continue  # the template writes contents in another way, which only a skeleton of this row can tell
    return None


def search_skeleton(
    shape: Shape, messages: Messages, skeleton: str, word: str, text: str
) -> dict[int, tuple[int, int]]:
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
    marks = find_marks(skeleton, word)
    pieces: list[str] = []
    position = 0
    for index in _assistant(messages):
        own = [mark for mark in marks if mark.message == index]
        turn = shape.turns[index]
        if not own or own[0].start - turn.lead < position:
            raise RowRejected("span_not_found", f"turn {index} is not where the roles alone would put it")
        pieces.append(skeleton[position : own[0].start - turn.lead])
        position = own[-1].end + turn.gap
        if not skeleton.startswith(turn.end, position):
            raise RowRejected("span_not_found", f"turn {index} does not end as the roles alone would end it")
    pieces.append(skeleton[position:])
    return _ranges(shape, messages, pieces, text)


def _assistant(messages: Messages) -> list[int]:
    return [index for index, message in enumerate(messages) if message["role"] == "assistant"]


def _ranges(shape: Shape, messages: Messages, pieces: Sequence[str], text: str) -> dict[int, tuple[int, int]]:
    starts, ends = _fit(pieces, text)
    return {
        index: (start, end + len(shape.turns[index].end))
        for index, start, end in zip(_assistant(messages), starts, ends, strict=True)
    }


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
