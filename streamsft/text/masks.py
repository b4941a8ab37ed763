"""Character ranges to loss masks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from streamsft.text.backend import Encoding
from streamsft.types import Bools, Int32s

__all__ = ["Encoded", "mask_of"]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Encoded:
    """One conversation as tokens.

    Attributes:
        input_ids: int32[n].
        loss_mask: bool[n], True where the token is one that the model is trained to predict.
        seams: tokens that hold supervised characters together with others; they are supervised.
    """

    input_ids: Int32s
    loss_mask: Bools
    seams: int = 0


def mask_of(
    encoding: Encoding, tokens: int, spans: Sequence[tuple[int, int]], added: Collection[int]
) -> tuple[Bools, int]:
    """The loss mask over `tokens` tokens of `encoding`, and how many tokens are on a seam.

    A token is supervised when it holds a character of one of `spans`. An added token that only swallowed
    whitespace after itself (``rstrip``) is not.
    """
    mask = np.zeros(tokens, dtype=np.bool_)
    seams = 0
    for start, stop in spans:
        first = _token_at(encoding, range(start, stop))
        last = _token_at(encoding, range(stop - 1, start - 1, -1))
        if first is None or last is None:
            continue
        begins = _chars(encoding, first)[0]
        if begins < start and encoding.ids[first] in added:
            first += 1
        elif begins < start:
            seams += 1
        while last + 1 < tokens and _chars(encoding, last + 1)[0] < stop:
            last += 1  # further tokens of the last character
        if _chars(encoding, last)[1] > stop:
            seams += 1
        mask[first : last + 1] = True
    return mask, seams


def _token_at(encoding: Encoding, positions: range) -> int | None:
    """The first token that holds the first of `positions` that is in any; some tokenizers drop whitespace."""
    for position in positions:
        token = encoding.char_to_token(position)
        if token is not None:
            return token
    return None


def _chars(encoding: Encoding, token: int) -> tuple[int, int]:
    chars = encoding.token_to_chars(token)
    assert chars is not None, "every token of a plain text has offsets"
    return chars
