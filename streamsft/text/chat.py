"""Rows of chats to token ids and loss masks.

``ChatTokenizer`` renders a conversation once with the tokenizer's own template, encodes the text once, and
supervises the characters that the model is to write, up to and including the mark that ends a turn. What cannot
be masked with certainty is rejected with a reason.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final, get_args

import numpy as np

from streamsft.errors import ConfigError, TokenizerError
from streamsft.sources.tokennames import CHOSEN, SHARED
from streamsft.text.backend import Backend, load_tokenizer
from streamsft.text.checks import probe
from streamsft.text.conversation import Conversation, Pair, RowRejected
from streamsft.text.formats import Parser, detect_format, parser
from streamsft.text.masks import Encoded, encoded_batch
from streamsft.text.pairing import encode_pairs
from streamsft.text.plainrows import check_format
from streamsft.text.rendering import Rendered, Renderer, TrainOn
from streamsft.text.template import DEFAULT_DATE, ChatTemplate
from streamsft.text.written import LeftOut
from streamsft.types import Bools, Int32s

__all__ = ["CODE_VERSION", "ChatTokenizer", "Encoded", "Rendered", "load_tokenizer"]

_log = logging.getLogger(__name__)

CODE_VERSION: Final = 2
"""Raised whenever the same row and settings give other tokens or masks than before."""


@final
class ChatTokenizer:
    """Turns conversations into tokens with loss masks. Can be pickled; needs no `transformers` once built.

    Args:
        tokenizer: a fast tokenizer of `transformers`, the folder or hub id of one, or its `Backend`.
        train_on: ``assistant`` supervises every turn of the assistant, ``last_assistant`` the last one, and
            ``everything`` all tokens. Messages flagged 0 are left out.
        chat_template: the text of a Jinja template, or a path to one, in place of the tokenizer's.
        chat_template_kwargs: further variables for the template, such as ``enable_thinking``.
        date: ISO date told to templates that read the clock.
        left_out: what becomes of a row of which the template leaves out part of a turn that is trained on, such as
            the reasoning of earlier turns: ``reject`` it, or ``allow`` it.
        format: format of the rows that are given to calls; by default detected.
        columns: their column mapping.

    Raises:
        TokenizerError: the tokenizer or its template cannot be used; see `streamsft.text.checks.probe`.
        ConfigError: an argument is wrong.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        train_on: TrainOn = "assistant",
        chat_template: str | os.PathLike[str] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        date: str | None = None,
        left_out: LeftOut = "reject",
        format: str | None = None,  # noqa: A002
        columns: Mapping[str, str] | None = None,
    ) -> None:
        if train_on not in get_args(TrainOn):
            raise ConfigError(f"train_on: {train_on!r} is not one of {', '.join(get_args(TrainOn))}")
        if left_out not in get_args(LeftOut):
            raise ConfigError(f"left_out: {left_out!r} is not one of {', '.join(get_args(LeftOut))}")
        self.train_on = train_on
        self.left_out = left_out
        self.format = format
        self.columns = dict(columns or {})
        self._parsers: dict[tuple[str, ...], Parser] = {}
        if format is not None:
            parser(format, columns)
            check_format(format, plain=False)
        if isinstance(tokenizer, (str, os.PathLike)):
            tokenizer = load_tokenizer(tokenizer)
        self._backend = Backend.of(tokenizer)
        sources = _template_sources(self._backend, chat_template)
        constants = {**self._backend.special, **(chat_template_kwargs or {})}
        templates = {name: ChatTemplate(source, constants, date or DEFAULT_DATE) for name, source in sources.items()}
        probed = {name: probe(template, self._backend) for name, template in templates.items()}
        self._renderers = {name: Renderer(templates[name], probed[name], train_on, left_out) for name in templates}
        facts = probed["default"]
        if date is None and templates["default"].reads_clock:
            _log.info("the chat template reads the clock and is told %s; set text.date for another day", DEFAULT_DATE)
        self._prefix = [self._backend.bos_id] if facts.prepends_bos else []
        self._control = np.zeros(self._backend.vocab_size, dtype=np.bool_)
        self._control[list(facts.control)] = True
        self._pattern = facts.pattern
        self.end_mark = facts.edges.end
        self.fingerprint = self._digest(sources, chat_template_kwargs, date)
        self._check_end()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_parsers": {}}

    @property
    def tokenizer_hash(self) -> str:
        """Hex digest of the tokenizer's full state."""
        return self._backend.digest

    @property
    def eos_id(self) -> int | None:
        """Id of the tokenizer's end-of-sequence token, None if it has none."""
        return self._backend.eos_id

    @property
    def bos_id(self) -> int | None:
        """Id of the tokenizer's beginning-of-sequence token, None if it has none."""
        return self._backend.bos_id

    @property
    def pad_id(self) -> int:
        """Id to pad with: the tokenizer's own, else its end token, else 0. Padding is never attended to."""
        backend = self._backend
        return next((token for token in (backend.pad_id, backend.eos_id) if token is not None), 0)

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id."""
        return len(self._control)

    def decode(self, ids: Sequence[int] | Int32s) -> str:
        """The text of `ids`, special tokens included."""
        return self._backend.decode([int(token) for token in ids])

    def render(self, conversation: Conversation) -> Rendered:
        """The text of `conversation` and its supervised character ranges.

        Raises:
            RowRejected: it cannot be used.
        """
        with_tools = conversation.tools is not None and "tool_use" in self._renderers
        return self._renderers["tool_use" if with_tools else "default"].render(conversation)

    def encode(self, conversations: Sequence[Conversation | Pair | RowRejected]) -> list[Encoded | RowRejected]:
        """Tokens and masks of `conversations`, in order; what is rejected comes back as the exception.

        One call encodes all texts at once, so larger batches are faster; 100 to 1,000 conversations are enough.
        """
        return encode_pairs(self._encode, conversations)

    def _encode(self, conversations: Sequence[Conversation | RowRejected]) -> list[Encoded | RowRejected]:
        results: list[Encoded | RowRejected] = []
        rendered: list[Rendered] = []
        places: list[int] = []
        for conversation in conversations:
            if isinstance(conversation, RowRejected):
                results.append(conversation)
                continue
            try:
                rendered.append(self.render(conversation))
            except RowRejected as rejected:
                results.append(rejected)
            else:
                places.append(len(results))
                results.append(_PENDING)
        encodings = self._backend.encode([item.text for item in rendered])
        batch = encoded_batch(encodings, [item.spans for item in rendered], self._backend.added, self._control)
        for place, item, (encoded, controls) in zip(places, rendered, batch, strict=True):
            results[place] = self._finished(item, encoded, controls)
        return results

    def encode_rows(self, rows: Sequence[Mapping[str, Any]], parse: Parser) -> list[Encoded | RowRejected]:
        """`encode` what `parse` makes of `rows`."""
        conversations: list[Conversation | Pair | RowRejected] = []
        for row in rows:
            try:
                conversations.append(parse(row))
            except RowRejected as rejected:
                conversations.append(rejected)
        return self.encode(conversations)

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Int32s | Bools | int]:
        """``{"input_ids": int32[n], "loss_mask": bool[n]}`` of one row, for `map` and for streaming sources; of a
        preference pair with its ``shared_length`` and ``chosen_length``.

        Raises:
            RowRejected: the row cannot be used.
            DataError: the row has none of the known formats, and none was named.
        """
        if not isinstance(row, Mapping):
            raise RowRejected("bad_row", f"the row is a {type(row).__name__}, not an object")
        key = tuple(row)
        parse = self._parsers.get(key)
        if parse is None:
            name = self.format or detect_format([row], self.columns)
            parse = parser(name, self.columns)
            if len(self._parsers) < 256:
                self._parsers[key] = parse
        result = self.encode([parse(row)])[0]
        if isinstance(result, RowRejected):
            raise result
        pair = {} if result.pair is None else dict(zip((SHARED, CHOSEN), result.pair, strict=True))
        return {"input_ids": result.input_ids, "loss_mask": result.loss_mask, **pair}

    def _finished(self, item: Rendered, encoded: Encoded, controls: int) -> Encoded | RowRejected:
        if controls != item.controls:
            return self._spelled(item, controls)
        if self._prefix:
            encoded = Encoded(
                input_ids=np.concatenate([np.array(self._prefix, dtype=np.int32), encoded.input_ids]),
                loss_mask=np.concatenate([np.array([self.train_on == "everything"]), encoded.loss_mask]),
                seams=encoded.seams,
            )
        if not encoded.loss_mask[1:].any():
            return RowRejected("nothing_supervised", f"none of the {len(encoded.input_ids)} tokens is supervised")
        return encoded

    def _spelled(self, item: Rendered, controls: int) -> RowRejected:
        names = sorted(set(self._pattern.findall(item.text)))
        return RowRejected(
            "control_token_in_text",
            f"{controls} control tokens where the template writes {item.controls}; in the text are {', '.join(names)}",
        )

    def _check_end(self) -> None:
        """Render and encode an exchange and see that the answer and what ends it are supervised, and nothing else."""
        exchange = Conversation([{"role": "user", "content": "Qui?"}, {"role": "assistant", "content": "Hello"}])
        result = self.encode([exchange])[0]
        if isinstance(result, RowRejected):
            raise TokenizerError(
                f"with this chat template an exchange as plain as can be is rejected ({result}); correct its "
                "generation marks, or give another with text.chat_template"
            )
        rendered = self.render(exchange)
        supervised = "".join(rendered.text[start:stop] for start, stop in rendered.spans)
        question = "Qui?" in supervised and self.train_on != "everything"
        if "Hello" not in supervised or self.end_mark not in supervised or question:
            raise TokenizerError(
                f"of 'Qui?' and the answer 'Hello' the chat template lets {supervised!r} be trained on, where the "
                f"answer and its end {self.end_mark!r} should be; correct its generation marks or remove them"
            )

    def _digest(self, sources: Mapping[str, str], kwargs: Mapping[str, Any] | None, date: str | None) -> str:
        try:
            settings = json.dumps(
                {
                    "code": CODE_VERSION,
                    "tokenizer": self.tokenizer_hash,
                    "templates": dict(sources),
                    "kwargs": dict(kwargs or {}),
                    "date": date or DEFAULT_DATE,
                    "train_on": self.train_on,
                    "left_out": self.left_out,
                    "format": self.format,
                    "columns": self.columns,
                },
                sort_keys=True,
                allow_nan=False,
            )
        except (TypeError, ValueError) as error:
            raise ConfigError(f"text.chat_template_kwargs must be plain values such as JSON has: {error}") from error
        return hashlib.blake2b(settings.encode(), digest_size=16).hexdigest()


_PENDING: Final = RowRejected("bad_row", "not encoded yet")


def _template_sources(backend: Backend, given: str | os.PathLike[str] | None) -> dict[str, str]:
    """The texts of the templates in use, ``default`` and perhaps ``tool_use``."""
    if given is not None:
        if isinstance(given, str) and ("{{" in given or "{%" in given):
            return {"default": given}
        try:
            return {"default": Path(given).read_text(encoding="utf-8")}
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"text.chat_template: {os.fspath(given)!r} is neither a Jinja template nor a readable file ({error})"
            ) from error
    sources = {name: text for name, text in backend.templates.items() if name in ("default", "tool_use")}
    if "default" not in sources:
        raise TokenizerError(
            "the tokenizer has no chat template; give one with text.chat_template, or use the tokenizer of a chat model"
        )
    return sources
