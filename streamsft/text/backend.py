"""What encoding needs of a tokenizer, taken out of it once: a private copy that nobody reconfigures."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from streamsft.errors import TokenizerError
from streamsft.sources.hublocation import Location, locate
from streamsft.sources.paths import nearest

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["Backend", "Encoding", "load_tokenizer"]

_HELD_CHARACTERS: Final = 1 << 20  # about 25 MB of encodings
_CLASS_ADVICE = re.compile(r"`tokenizer_class` is `\w+` but `tokenizer\.json` is ")


class Encoding(Protocol):
    """The part of `tokenizers.Encoding` that is used here. Positions are in characters."""

    @property
    def ids(self) -> list[int]: ...
    def char_to_token(self, position: int, /) -> int | None: ...
    def token_to_chars(self, token: int, /) -> tuple[int, int] | None: ...


def load_tokenizer(path: str | os.PathLike[str]) -> Any:
    """The tokenizer in a folder or on the hub, never running code that comes with it.

    Args:
        path: a folder, a hub id, or ``package:NAME`` for the folder of the installed Python package NAME.

    Raises:
        TokenizerError: there is none, or it cannot be loaded.
    """
    name = os.fspath(path)
    location = locate(name, key="tokenizer", files=("tokenizer.json", "tokenizer_config.json"), error=TokenizerError)
    from transformers import AutoTokenizer

    try:
        with _without_class_advice():
            return AutoTokenizer.from_pretrained(
                location.name, trust_remote_code=False, local_files_only=location.offline
            )
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise TokenizerError(f"tokenizer: {_why(name, location, error)}") from error


def _why(name: str, location: Location, error: Exception) -> str:
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if os.path.isdir(location.name):
        return f"{name}: cannot be loaded: {first}; a folder needs a tokenizer.json and a tokenizer_config.json"
    gave = "the hub cannot be reached, nor does its local cache hold it" if location.offline else f"of the hub: {first}"
    return (
        f"{name}: there is no such folder ({nearest(name)}), and {gave}. Give a folder with tokenizer.json and "
        "tokenizer_config.json, the id of a model on the hub, or package:NAME for an installed Python package"
    )


@contextmanager
def _without_class_advice() -> Iterator[None]:
    """Keep back one line of transformers': its advice to the publisher of a tokenizer to name another class in it.

    It loads what it should; its other messages are shown.
    """
    theirs = logging.getLogger("transformers.models.auto.tokenization_auto")

    def unlike(record: logging.LogRecord) -> bool:
        return not _CLASS_ADVICE.match(record.getMessage())

    theirs.addFilter(unlike)
    try:
        yield
    finally:
        theirs.removeFilter(unlike)


@final
class _Held:
    """Keeps encodings until there are many, and frees them together.

    An encoding is some allocations for each of its tokens. Where few are freed at a time, the next ones are put into
    the gaps that they leave, and encoding takes up to half as long again (glibc 2.36, batches of 32 to 250 chats).
    """

    def __init__(self) -> None:
        self._encodings: list[Sequence[Encoding]] = []
        self._characters = 0

    def __reduce__(self) -> tuple[type[_Held], tuple[()]]:
        return _Held, ()

    def keep(self, encodings: Sequence[Encoding], characters: int) -> None:
        """Keep `encodings` of texts of so many characters; those kept before may be freed."""
        if self._characters > _HELD_CHARACTERS:
            self._encodings, self._characters = [], 0
        self._encodings.append(encodings)
        self._characters += characters


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Backend:
    """A fast tokenizer's core with what surrounds it. Can be pickled.

    Attributes:
        core: encodes text without adding anything, offsets untrimmed, no truncation or padding.
        digest: hex digest of the tokenizer's full state, not of its settings for padding and truncation.
        templates: its chat templates by name; a single one is named ``default``.
        special: names such as ``bos_token`` to their text, as templates see them.
        bos_id, eos_id, pad_id: ids, None where the tokenizer has none.
        adds_bos: whether it puts the BOS token in front of what it encodes by itself.
        added: id to text of each token that is matched in text before anything else.
        control: ids of those among `added` that it declares special, or that are spelled ``<|...|>``.
        vocab_size: one more than the largest token id.
    """

    core: Tokenizer
    digest: str
    templates: Mapping[str, str]
    special: Mapping[str, str]
    bos_id: int | None
    eos_id: int | None
    pad_id: int | None
    adds_bos: bool
    added: Mapping[int, str]
    control: frozenset[int]
    vocab_size: int
    _held: _Held = field(default_factory=_Held, repr=False)

    @classmethod
    def of(cls, tokenizer: Any) -> Backend:
        """Take `tokenizer`, a fast tokenizer of `transformers`, apart; one that is taken apart is given back.

        Raises:
            TokenizerError: it is not a fast tokenizer.
        """
        if isinstance(tokenizer, Backend):
            return tokenizer
        from tokenizers import Tokenizer

        source = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(source, Tokenizer):
            raise TokenizerError(
                f"{type(tokenizer).__name__} is not a fast tokenizer, and only those tell which characters a token "
                "covers; convert it so that it has a tokenizer.json"
            )
        core = Tokenizer.from_str(source.to_str())
        core.no_truncation()
        core.no_padding()
        core.encode_special_tokens = False
        special = {name: str(value) for name, value in tokenizer.special_tokens_map.items() if isinstance(value, str)}
        digest = hashlib.blake2b(core.to_str().encode(), digest_size=16)
        digest.update(json.dumps(special, sort_keys=True).encode())
        bos = tokenizer.bos_token_id
        adds_bos = bos is not None and core.encode("a").ids[:1] == [bos]
        core.post_processor = None  # it would trim offsets, and adds tokens that nobody asked for here
        added = {number: str(token.content) for number, token in core.get_added_tokens_decoder().items()}
        declared = {number for number, token in core.get_added_tokens_decoder().items() if token.special}
        piped = {number for number, text in added.items() if re.fullmatch(r"<[|｜].*[|｜]>", text, re.DOTALL)}
        templates = tokenizer.chat_template or {}
        return cls(
            core=core,
            digest=digest.hexdigest(),
            templates={"default": templates} if isinstance(templates, str) else dict(templates),
            special=special,
            bos_id=bos,
            eos_id=tokenizer.eos_token_id,
            pad_id=tokenizer.pad_token_id,
            adds_bos=adds_bos,
            added=added,
            control=frozenset(declared | piped),
            vocab_size=max(core.get_vocab(with_added_tokens=True).values(), default=-1) + 1,
        )

    def encode(self, texts: Sequence[str]) -> Sequence[Encoding]:
        """Encode `texts` as they are; control tokens spelled in them become those tokens."""
        encodings: Sequence[Encoding] = self.core.encode_batch(list(texts), add_special_tokens=False)
        self._held.keep(encodings, sum(map(len, texts)))
        return encodings

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens included."""
        return str(self.core.decode(list(ids), skip_special_tokens=False))
