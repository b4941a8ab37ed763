"""What is found out about a tokenizer and its chat template before the first row, or refused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, final

from streamsft.errors import TokenizerError
from streamsft.text.backend import Backend
from streamsft.text.conversation import RowRejected
from streamsft.text.skeleton import Edges
from streamsft.text.template import ChatTemplate

__all__ = ["Facts", "probe"]

_USER: Final = "qprobeuserq"
_ANSWER: Final = "qprobeanswerq"
_RESULT: Final = "qproberesultq"
_KEY: Final = "qprobekeyq"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a template and a tokenizer do together.

    Attributes:
        edges: how a plain turn of the assistant begins and ends.
        arguments: ``dict`` or ``str``, which the template wants tool-call arguments as; None if neither works.
        prepends_bos: the BOS token has to be put in front, for the tokenizer would and the template does not.
        control: ids of the tokens that only the template may write.
        pattern: matches their texts.
    """

    edges: Edges
    arguments: type | None
    prepends_bos: bool
    control: frozenset[int]
    pattern: re.Pattern[str]


def probe(template: ChatTemplate, backend: Backend) -> Facts:
    """Render and encode a few made-up turns.

    Raises:
        TokenizerError: the template cannot render a user's and an assistant's turn, does not end the latter,
            begins with no or two BOS tokens, or writes control tokens that the tokenizer does not know.
    """
    text = _render(template, [_user(), _answer()])
    if text.count(_USER) != 1 or text.count(_ANSWER) != 1 or text.index(_USER) > text.index(_ANSWER):
        raise TokenizerError(
            f"the chat template writes {text!r} for a user's and an assistant's turn, not each content once and in "
            "order; give another with text.chat_template"
        )
    end = _end_mark(text[text.index(_ANSWER) + len(_ANSWER) :], filter(_is_markup, backend.added.values()))
    if not end:
        raise TokenizerError(
            f"the chat template writes {text!r}, with nothing to end the assistant's turn, so that a model trained on "
            "it would never stop; give a template that ends turns with text.chat_template"
        )
    opening = text[text.index(_USER) + len(_USER) : text.index(_ANSWER)].rstrip()
    plain = _plain_texts(template) + text
    markup = {token: spelled for token, spelled in backend.added.items() if _is_markup(spelled)}
    control = frozenset(token for token, spelled in markup.items() if token in backend.control or spelled in plain)
    rare = tuple(markup[token] for token in sorted(control) if markup[token] not in plain)
    edges = Edges(end=end, prompt=_prompt(template), opening=opening, rare_ends=rare)
    pattern = _alternatives(markup[token] for token in control)
    _check_controls(text, backend, control, pattern)
    return Facts(
        edges=edges,
        arguments=_arguments(template),
        prepends_bos=_needs_bos(text, backend),
        control=control,
        pattern=pattern,
    )


def _render(template: ChatTemplate, messages: list[dict[str, Any]], *, prompt: bool = False) -> str:
    try:
        return template.render(messages, prompt=prompt)
    except RowRejected as error:
        raise TokenizerError(
            f"the chat template cannot render a user's and an assistant's turn ({error.detail}); give another with "
            "text.chat_template"
        ) from error


def _user(content: str = _USER) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _answer(content: str = _ANSWER, **fields: object) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **fields}


def _is_markup(text: str) -> bool:
    """Whether an added token can be a mark at all; some tokenizers also add words and runs of whitespace."""
    return re.search(r"[^\w\s]", text) is not None


def _end_mark(tail: str, added: Iterable[str]) -> str:
    """The text in `tail`, which follows the last content, up to its first token of `added`; without one, all of it."""
    found = _alternatives(added).search(tail)
    return tail[: found.end()] if found else tail.rstrip()


def _alternatives(texts: Iterable[str]) -> re.Pattern[str]:
    """Matches the longest of `texts` at a place; nothing when there are none."""
    ordered = sorted(texts, key=lambda text: (-len(text), text))
    return re.compile("|".join(map(re.escape, ordered)) if ordered else r"(?!)")


def _prompt(template: ChatTemplate) -> str:
    """What the template adds after the user's turn for the model to go on from."""
    try:
        without, with_prompt = (template.render([_user()], prompt=prompt) for prompt in (False, True))
    except RowRejected:
        return ""  # a template that renders only whole exchanges has no such text
    return with_prompt[len(without) :] if with_prompt.startswith(without) else ""


def _plain_texts(template: ChatTemplate) -> str:
    """What the template writes around the roles that it can render. Thinking tags do not count: texts may hold them."""
    system = {"role": "system", "content": _RESULT}
    tool = {"role": "tool", "content": _RESULT, "name": _KEY, "tool_call_id": "123456789"}
    texts = []
    for messages in ([system, _user()], [_user(), _answer(), _user(), _answer()], [_user(), _answer(), tool]):
        try:
            texts.append(template.render(messages))
        except RowRejected:
            continue  # the template does not know this role; rows that use it are rejected as they come
    return _THINKING.sub("", "".join(texts))


_THINKING: Final = re.compile(r"<think>\s*</think>|</?think>")


def _arguments(template: ChatTemplate) -> type | None:
    """Whether the template wants the arguments of a tool call as an object or as JSON text."""
    options: Mapping[type, object] = {dict: {_KEY: _RESULT}, str: f'{{"{_KEY}": "{_RESULT}"}}'}
    for kind, arguments in options.items():
        call = {"type": "function", "id": "123456789", "function": {"name": "f", "arguments": arguments}}
        try:
            text = template.render([_user(), _answer("", tool_calls=[call])])
        except RowRejected:
            continue
        if _KEY in text and f"'{_KEY}'" not in text and f'\\"{_KEY}' not in text:
            return kind
    return None


def _check_controls(text: str, backend: Backend, control: frozenset[int], pattern: re.Pattern[str]) -> None:
    ids = backend.encode([text])[0].ids
    written, encoded = len(pattern.findall(text)), sum(token in control for token in ids)
    if written != encoded:
        raise TokenizerError(
            f"the chat template writes {text!r}: {written} control tokens, of which the tokenizer encodes {encoded} as "
            "such; template and tokenizer do not belong together"
        )


def _needs_bos(text: str, backend: Backend) -> bool:
    bos = backend.bos_id
    if bos is None:
        return False
    ids = backend.encode([text])[0].ids
    # Where one token is both, only the front tells; elsewhere it ends turns.
    count = ids[:2].count(bos) if bos == backend.eos_id else ids.count(bos)
    if count > 1:
        raise TokenizerError(
            f"the chat template writes {text!r} with {count} BOS tokens; there must be one per document"
        )
    if count == 1 and ids[0] != bos:
        raise TokenizerError(f"the chat template writes {text!r}, with BOS not in front; move it there")
    return count == 0 and backend.adds_bos
