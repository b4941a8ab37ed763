"""Rows of plain text to token ids, every token of which is trained on: continued pretraining."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

import numpy as np

from streamsft.errors import TokenizerError
from streamsft.text.backend import Backend, load_tokenizer
from streamsft.text.conversation import Conversation, Pair, RowRejected
from streamsft.text.formats import parser
from streamsft.text.masks import Encoded
from streamsft.text.plainrows import TEXT
from streamsft.text.rendering import Rendered
from streamsft.types import Bools, Int32s

__all__ = ["TextTokenizer"]

CODE_VERSION: Final = 1
"""Raised whenever the same row and tokenizer give other tokens than before."""


@final
class TextTokenizer:
    """Turns texts into tokens, all of which are supervised. Can be pickled; needs no `transformers` once built.

    A document is the text as it is, the tokenizer's end token behind it, and the beginning token in front of it if the
    tokenizer puts one there by itself. No chat template is needed. It stands where a `ChatTokenizer` does.

    Args:
        tokenizer: a fast tokenizer of `transformers`, the folder or hub id of one, or its `Backend`.
        columns: from ``text`` to the column's own name.

    Raises:
        TokenizerError: the tokenizer cannot be used, or has no end token.
        ConfigError: `columns` names something else.
    """

    format: Final = TEXT

    def __init__(self, tokenizer: Any, *, columns: Mapping[str, str] | None = None) -> None:
        if isinstance(tokenizer, (str, os.PathLike)):
            tokenizer = load_tokenizer(tokenizer)
        self.columns = dict(columns or {})
        self._parse = parser(TEXT, columns)
        self._backend = Backend.of(tokenizer)
        if self._backend.eos_id is None:
            raise TokenizerError(
                "the tokenizer has no end token (eos_token), which plain texts are to end with; give it one"
            )
        self._front = [self._backend.bos_id] if self._backend.adds_bos else []
        made = json.dumps([CODE_VERSION, TEXT, self._backend.digest, self.columns], sort_keys=True)
        self.fingerprint = hashlib.blake2b(made.encode(), digest_size=16).hexdigest()

    @property
    def tokenizer_hash(self) -> str:
        """Hex digest of the tokenizer's full state."""
        return self._backend.digest

    def render(self, conversation: Conversation) -> Rendered:
        """The text itself, all of it supervised.

        Raises:
            RowRejected: it is blank.
        """
        text: str = conversation.messages[0]["content"]
        if not text.strip():
            raise RowRejected("nothing_supervised", "the text is blank")
        return Rendered(text=text, spans=[(0, len(text))], controls=0)

    def encode(self, conversations: Sequence[Conversation | Pair | RowRejected]) -> list[Encoded | RowRejected]:
        """Tokens and masks of what the parser of format ``text`` makes of rows, in order; what is rejected comes back
        as the exception. One call encodes all texts at once."""
        results: list[Encoded | RowRejected] = []
        texts: list[str] = []
        for item in conversations:
            try:
                if isinstance(item, RowRejected):
                    raise item
                assert not isinstance(item, Pair), "the format text has no pairs"
                texts.append(self.render(item).text)
                results.append(_PENDING)
            except RowRejected as rejected:
                results.append(rejected)
        encodings = iter(self._backend.encode(texts))
        return [self._finished(next(encodings).ids) if result is _PENDING else result for result in results]

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Int32s | Bools]:
        """``{"input_ids": int32[n], "loss_mask": bool[n]}`` of one row.

        Raises:
            RowRejected: the row cannot be used.
        """
        result = self.encode([self._parse(row)])[0]
        if isinstance(result, RowRejected):
            raise result
        return {"input_ids": result.input_ids, "loss_mask": result.loss_mask}

    def _finished(self, ids: Sequence[int]) -> Encoded | RowRejected:
        if spelled := sorted({self._backend.added[token] for token in ids if token in self._backend.control}):
            return RowRejected("control_token_in_text", f"the text spells {', '.join(spelled)}")
        tokens = np.array([*self._front, *ids, self._backend.eos_id], np.int32)
        return Encoded(input_ids=tokens, loss_mask=np.ones(len(tokens), np.bool_))


_PENDING: Final = RowRejected("bad_row", "not encoded yet")
