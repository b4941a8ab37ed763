"""The tokenizer of a config, and the `ChatTokenizer` of each of its sources."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, final

from streamsft.config import Config, SourceConfig
from streamsft.errors import ConfigError
from streamsft.text.plainrows import TEXT

if TYPE_CHECKING:
    from streamsft.text.backend import Backend
    from streamsft.text.chat import ChatTokenizer
    from streamsft.text.plain import TextTokenizer

__all__ = ["Encoders"]


@final
class Encoders:
    """The tokenizer of a config, loaded when it is first asked for, with the config's template and settings."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._by_setting: dict[str, ChatTokenizer | TextTokenizer] = {}

    @cached_property
    def _loaded(self) -> Backend:
        from streamsft.text.backend import Backend, load_tokenizer

        if self._config.tokenizer is None:
            raise ConfigError("tokenizer: missing: there is text to be tokenized")
        return Backend.of(load_tokenizer(self._config.tokenizer))

    @property
    def backend(self) -> Backend | None:
        """The tokenizer without a template, None if the config names none.

        Raises:
            TokenizerError: it cannot be loaded.
        """
        return None if self._config.tokenizer is None else self._loaded

    def of(self, source: SourceConfig) -> ChatTokenizer | TextTokenizer:
        """What encodes the conversations of `source`, or its texts.

        Raises:
            TokenizerError: the tokenizer cannot be loaded, or its template cannot be used.
        """
        from streamsft.text.chat import ChatTokenizer
        from streamsft.text.plain import TextTokenizer

        if source.format == TEXT:
            if TEXT not in self._by_setting:
                self._by_setting[TEXT] = TextTokenizer(self._loaded)
            return self._by_setting[TEXT]
        if source.train_on not in self._by_setting:
            text = self._config.text
            self._by_setting[source.train_on] = ChatTokenizer(
                self._loaded,
                train_on=source.train_on,
                chat_template=None if text.chat_template is None else Path(text.chat_template),
                chat_template_kwargs=text.chat_template_kwargs,
                left_out=text.left_out,
                date=text.date,
            )
        return self._by_setting[source.train_on]

    @property
    def tokenizer_hash(self) -> str:
        """Digest of the tokenizer, '' without one."""
        return "" if self.backend is None else self.backend.digest

    @property
    def pad_id(self) -> int:
        """Token id of padding; 0 without a tokenizer."""
        if self.backend is None:
            return 0
        return next((token for token in (self.backend.pad_id, self.backend.eos_id) if token is not None), 0)

    @property
    def vocabulary(self) -> int | None:
        """Number of token ids, None without a tokenizer."""
        return None if self.backend is None else self.backend.vocab_size
