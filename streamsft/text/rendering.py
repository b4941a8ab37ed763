"""One conversation to its text and the characters of it that the model is trained to write."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, final

from streamsft.text.checks import Facts
from streamsft.text.conversation import Conversation, RowRejected
from streamsft.text.messages import decode_object
from streamsft.text.skeleton import Shape, read_shape, sentinel_word, with_sentinels
from streamsft.text.spans import place, search, search_skeleton
from streamsft.text.template import MARK_CLOSE, MARK_OPEN, ChatTemplate
from streamsft.text.written import LeftOut, check_turn, check_whole

__all__ = ["Rendered", "Renderer", "TrainOn"]

TrainOn = Literal["assistant", "last_assistant", "everything"]
Spans = list[tuple[int, int]]

_KEPT_CHARACTERS: Final = 4_000_000  # of shapes, in each process; beyond it they are forgotten and made again
_log = logging.getLogger(__name__)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A conversation as text.

    Attributes:
        text: what is encoded, all of it.
        spans: character ranges [start, end) that are supervised, in order, apart from each other.
        controls: how many control tokens the template wrote into `text`; more of them means that contents spell some.
    """

    text: str
    spans: Spans
    controls: int


@final
class Renderer:
    """Renders conversations by one template and finds the supervised characters. Can be pickled."""

    def __init__(self, template: ChatTemplate, facts: Facts, train_on: TrainOn, left_out: LeftOut = "reject") -> None:
        self._template = template
        self._facts = facts
        self._train_on = train_on
        self._left_out = left_out
        self._shapes: dict[tuple[str, ...] | bytes, Shape | RowRejected] = {}
        self._kept = 0
        self._said_tools = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_shapes": {}, "_kept": 0}

    def render(self, conversation: Conversation) -> Rendered:
        """Render `conversation` once and say what is supervised.

        Raises:
            RowRejected: with one of the reasons of `REASONS`.
        """
        wanted = self._wanted(conversation)
        tools = self._tools(conversation)
        messages = self._for_template(conversation.messages)
        if self._template.has_marks:
            _refuse_marks(messages, tools)
            text, marked = self._template.render_marked(messages, tools)
        else:
            text, marked = self._template.render(messages, tools), None
        if not text.isascii():
            _refuse_surrogates(text)
        shape = self._shape(messages, tools, text)
        if marked is not None and self._train_on != "everything":
            spans = self._marked(conversation, messages, tools, text, shape, marked, wanted)
            return Rendered(text=text, spans=spans, controls=shape.controls)
        skipped = [index for index, flag in enumerate(conversation.supervise) if flag is False]
        ranges = self._ranges(messages, tools, text, shape) if wanted or skipped else {}
        for index in wanted:
            start, stop = ranges[index]
            check_turn(messages[index], index, text[start:stop], shape.turns[index].end)
            self._check_whole(conversation, index, text[start:stop])
        if self._train_on == "everything":
            spans = _without([(0, len(text))], [_range(ranges, index) for index in skipped])
        else:
            spans = [ranges[index] for index in wanted]
        return Rendered(text=text, spans=spans, controls=shape.controls)

    def _wanted(self, conversation: Conversation) -> list[int]:
        """Numbers of the assistant's turns that are supervised by `train_on` and the flags."""
        if not conversation.messages:
            raise RowRejected("empty_conversation", "the list of messages is empty")
        turns = [i for i, message in enumerate(conversation.messages) if message["role"] == "assistant"]
        if not turns and self._train_on != "everything":
            raise RowRejected(
                "no_assistant_turn", f"the roles are {', '.join(m['role'] for m in conversation.messages)}"
            )
        if self._train_on == "last_assistant":
            turns = turns[-1:]
        wanted = [index for index in turns if conversation.supervise[index] is not False]
        if not wanted and self._train_on != "everything":
            raise RowRejected("nothing_supervised", "every turn that would be trained on is flagged 0")
        for index in wanted:
            message = conversation.messages[index]
            if not message["content"].strip() and "tool_calls" not in message:
                raise RowRejected("empty_turn", f"message {index}, a turn of the assistant, is empty")
        return wanted

    def _tools(self, conversation: Conversation) -> list[dict[str, Any]] | None:
        if conversation.tools and not self._template.reads_tools:
            if not self._said_tools:
                self._said_tools = True
                _log.warning("the chat template does not write tool schemas: the tools column is not in the tokens")
            return None
        return conversation.tools

    def _for_template(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Messages without keys that the template never mentions, tool arguments as it wants them."""
        words = self._template.words
        return [
            message  # type: ignore[misc]
            if len(message) == 2
            else {
                key: [self._call(call) for call in value] if key == "tool_calls" else value
                for key, value in message.items()
                if key in ("role", "content", "tool_calls") or key in words or "items" in words
            }
            for message in messages
        ]

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = call["function"]
        arguments = function["arguments"]
        if self._facts.arguments is None:
            raise RowRejected("message_not_rendered", "the chat template does not write tool calls")
        if self._facts.arguments is dict and isinstance(arguments, str):
            arguments = decode_object(arguments, f"the arguments of {function['name']!r}")
        elif self._facts.arguments is str and not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        return {**call, "function": {**function, "arguments": arguments}}

    def _shape(self, messages: list[dict[str, Any]], tools: Any, text: str) -> Shape:
        """The shape of `messages`, from all that it depends on: roles, and what no sentinel replaces."""
        key: tuple[str, ...] | bytes
        if tools is None and all(len(message) == 2 for message in messages):
            key, replaced, word = tuple(message["role"] for message in messages), None, sentinel_word("")
        else:
            word = sentinel_word(text)
            replaced = with_sentinels(messages, word, everything=True)
            key = _digest([replaced, tools])
        known = self._shapes.get(key)
        if known is None:
            try:
                known = self._make_shape(messages, replaced, tools, word)
            except RowRejected as rejected:
                known = RowRejected(rejected.reason, rejected.detail)  # without the traceback, which holds the row
            self._kept += 200 * (1 + len(messages)) + (known.characters if isinstance(known, Shape) else 0)
            if self._kept > _KEPT_CHARACTERS:
                self._shapes.clear()
                self._kept = 0
            self._shapes[key] = known
        if isinstance(known, RowRejected):
            raise RowRejected(known.reason, known.detail)
        return known

    def _make_shape(
        self, messages: list[dict[str, Any]], replaced: list[dict[str, Any]] | None, tools: Any, word: str
    ) -> Shape:
        if replaced is None:
            replaced = with_sentinels(messages, word, everything=True)
        for text in _texts([replaced, tools]):
            found = self._facts.pattern.search(text)
            if found:
                raise RowRejected("control_token_in_text", f"a tool or a name spells {found.group()!r}")
        text = self._template.render(replaced, tools)
        controls = len(self._facts.pattern.findall(text))
        return read_shape(messages, text, word, self._facts.edges, controls)

    def _ranges(
        self, messages: list[dict[str, Any]], tools: Any, text: str, shape: Shape
    ) -> dict[int, tuple[int, int]]:
        """Character ranges by message number, at least of the assistant's turns."""
        ranges = place(shape, [message["content"] for message in messages], text)
        if ranges is None:
            ranges = search(shape, messages, text)
        if ranges is None:
            word = sentinel_word(text)
            skeleton = self._template.render(with_sentinels(messages, word, everything=False), tools)
            ranges = search_skeleton(shape, messages, skeleton, word, text)
        return ranges

    def _check_whole(self, conversation: Conversation, index: int, turn: str) -> None:
        if self._left_out == "reject":
            check_whole(conversation.messages[index], index, turn)

    def _marked(
        self,
        conversation: Conversation,
        messages: list[dict[str, Any]],
        tools: Any,
        text: str,
        shape: Shape,
        marked: Spans,
        wanted: Sequence[int],
    ) -> Spans:
        """The spans of generation marks that belong to the `wanted` turns.

        Each must be in one turn of the assistant. Where the turns cannot be located, the marks alone decide, unless
        it matters whose they are.
        """
        end = self._facts.edges.end
        spans = [(start, stop + _rest_of_end(text, start, stop, end)) for start, stop in marked]
        try:
            ranges = self._ranges(messages, tools, text, shape)
        except RowRejected:
            if False in conversation.supervise or self._train_on != "assistant" or not spans:
                raise
            return spans
        turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        owned: dict[int, Spans] = {index: [] for index in turns}
        for span in spans:
            owner = next((index for index in turns if _inside(span, ranges[index], text)), None)
            if owner is None:
                raise RowRejected("span_not_found", "a generation mark encloses more than a turn of the assistant")
            owned[owner].append(span)
        for index in wanted:
            if not owned[index]:
                raise RowRejected("span_not_found", f"no generation mark encloses turn {index} of the assistant")
            check_turn(messages[index], index, "".join([text[start:stop] for start, stop in owned[index]]), end)
            self._check_whole(conversation, index, text[slice(*ranges[index])])
        return [span for index in wanted for span in owned[index]]


def _rest_of_end(text: str, start: int, stop: int, end: str) -> int:
    """Length of the end mark that follows a span; some templates write it after their generation mark."""
    return len(end) if text.startswith(end, stop) and not text[start:stop].rstrip().endswith(end) else 0


def _inside(span: tuple[int, int], turn: tuple[int, int], text: str) -> bool:
    """Whether `span` is in `turn` but for whitespace."""
    before, after = text[span[0] : max(span[0], turn[0])], text[min(span[1], turn[1]) : span[1]]
    return span[0] < turn[1] and turn[0] < span[1] and not before.strip() and not after.strip()


def _digest(value: Any) -> bytes:
    try:
        return hashlib.blake2b(json.dumps(value, default=repr).encode(), digest_size=16).digest()
    except (TypeError, ValueError, RecursionError) as error:
        raise RowRejected("bad_content", f"a message or a tool is not made of JSON values: {error}") from error


def _range(ranges: Mapping[int, tuple[int, int]], index: int) -> tuple[int, int]:
    if index not in ranges:
        raise RowRejected("span_not_found", f"message {index}, which is flagged 0, cannot be located with certainty")
    return ranges[index]


def _without(spans: Spans, holes: Spans) -> Spans:
    """`spans` less `holes`, which are in order."""
    for start, stop in holes:
        spans = [part for a, b in spans for part in ((a, min(b, start)), (max(a, stop), b)) if part[0] < part[1]]
    return spans


def _texts(value: Any) -> Iterator[str]:
    """Every str in `value`, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)


def _refuse_marks(messages: Sequence[Mapping[str, Any]], tools: Any) -> None:
    for text in _texts([messages, tools]):
        if MARK_OPEN in text or MARK_CLOSE in text:
            raise RowRejected("bad_unicode", "a text holds U+FDD0 or U+FDD1, which are set aside for internal use")


def _refuse_surrogates(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RowRejected(
            "bad_unicode", f"a text holds the lone surrogate U+{ord(text[error.start]):04X}, which is no character"
        ) from error
