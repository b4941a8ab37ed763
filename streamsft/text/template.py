"""A chat template, compiled once in a sandbox and rendered as `transformers` renders it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import date as calendar_date, datetime
from typing import Any, Final, final

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2 import meta
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from streamsft.errors import ConfigError, TokenizerError
from streamsft.text.conversation import RowRejected

__all__ = ["DEFAULT_DATE", "ChatTemplate"]

DEFAULT_DATE: Final = "2025-01-01"
"""What templates that read the clock are told when no date is given, so that tokens do not depend on the day."""

# Unicode noncharacters, set aside for internal use. Contents that hold one are rejected before rendering.
MARK_OPEN: Final = "\ufdd0"
MARK_CLOSE: Final = "\ufdd1"
_MARK: Final = re.compile(f"[{MARK_OPEN}{MARK_CLOSE}]")
_DICT_ATTRIBUTES: Final = frozenset(dir(dict))

# What a template can raise on a conversation that it does not like: its own raise_exception, operations on
# values of another type, missing keys, and the sandbox's refusals.
_TEMPLATE_FAULTS: Final = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RecursionError,
)


class _Sandbox(ImmutableSandboxedEnvironment):
    """The sandbox, with short ways to what is always safe: keys of plain dicts and variables of namespaces.

    Jinja would try ``message.content`` as an attribute, fail, and then take the key: the same value, six times
    slower.
    """

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict:
            if attribute not in _DICT_ATTRIBUTES and attribute in obj:
                return obj[attribute]
        elif kind is Namespace and attribute[:1] != "_":
            try:
                return getattr(obj, attribute)
            except AttributeError:
                return self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)


class _Generation(jinja2.ext.Extension):
    """``{% generation %}...{% endgeneration %}``: encloses what the model writes in marks."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Any) -> str:
        return f"{MARK_OPEN}{caller()}{MARK_CLOSE}"


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON; Jinja's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


@final
class ChatTemplate:
    """One Jinja chat template with all that it may see apart from the conversation.

    Args:
        source: the template's text.
        constants: special tokens and the user's ``chat_template_kwargs``.
        date: ISO date that ``strftime_now`` tells.

    Raises:
        TokenizerError: the template is not valid Jinja.
        ConfigError: `date` is not an ISO date.
    """

    def __init__(self, source: str, constants: Mapping[str, Any], date: str = DEFAULT_DATE) -> None:
        self.source = source
        self.date = date
        self._constants = {"documents": None, **constants}
        try:
            day = datetime.combine(calendar_date.fromisoformat(date), datetime.min.time())
        except (TypeError, ValueError) as error:
            raise ConfigError(f"text.date: {date!r} is not a date such as {DEFAULT_DATE}") from error
        environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = day.strftime
        try:
            self._compiled = environment.from_string(source)
            tree = environment.parse(source)
        except jinja2.TemplateSyntaxError as error:
            raise TokenizerError(
                f"the chat template is not valid Jinja, line {error.lineno}: {error.message}; mend it or give another "
                "with text.chat_template"
            ) from error
        self._names = {**environment.globals, **self._constants}
        names = meta.find_undeclared_variables(tree)
        self.words = frozenset(re.findall(r"\w+", source))
        self.reads_tools = "tools" in names
        self.reads_clock = "strftime_now" in self.words
        calls = (block.call.node for block in tree.find_all(jinja2.nodes.CallBlock))
        self.has_marks = any(isinstance(node, jinja2.nodes.ExtensionAttribute) for node in calls)

    def __reduce__(self) -> tuple[type[ChatTemplate], tuple[str, Mapping[str, Any], str]]:
        return ChatTemplate, (self.source, self._constants, self.date)

    def render(self, messages: Sequence[Mapping[str, Any]], tools: object = None, *, prompt: bool = False) -> str:
        """The text of a conversation, without marks; `prompt` adds what precedes the model's next turn.

        Raises:
            RowRejected: template_error.
        """
        text = self._render(messages, tools, prompt)
        return _MARK.sub("", text) if self.has_marks else text

    def render_marked(self, messages: Sequence[Mapping[str, Any]], tools: object) -> tuple[str, list[tuple[int, int]]]:
        """The text, and the character ranges that the template's generation marks enclose.

        Raises:
            RowRejected: template_error, or span_not_found for marks that do not pair.
        """
        text = self._render(messages, tools, False)
        spans: list[tuple[int, int]] = []
        parts: list[str] = []
        length, start, last = 0, -1, 0
        for mark in _MARK.finditer(text):
            parts.append(text[last : mark.start()])
            length += mark.start() - last
            last = mark.end()
            if (mark.group() == MARK_OPEN) != (start < 0):
                raise RowRejected("span_not_found", "the template's generation marks do not pair")
            if start < 0:
                start = length
            else:
                spans.append((start, length))
                start = -1
        if start >= 0:
            raise RowRejected("span_not_found", "the template's generation marks do not pair")
        return "".join([*parts, text[last:]]), spans

    def _render(self, messages: Sequence[Mapping[str, Any]], tools: object, prompt: bool) -> str:
        names = {**self._names, "messages": messages, "tools": tools, "add_generation_prompt": prompt}
        try:
            return "".join(self._compiled.root_render_func(self._compiled.new_context(names, shared=True)))
        except _TEMPLATE_FAULTS as error:
            raise RowRejected("template_error", f"{type(error).__name__}: {error}") from error
