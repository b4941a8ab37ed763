"""Character ranges to loss masks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, final

import numpy as np

from streamsft.text.backend import Encoding
from streamsft.types import Bools, Int32s

__all__ = ["Encoded", "encoded_batch"]

Spans = Sequence[tuple[int, int]]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Encoded:
    """One conversation as tokens.

    Attributes:
        input_ids: int32[n].
        loss_mask: bool[n], True where the token is one that the model is trained to predict.
        seams: tokens that hold supervised characters together with others; they are supervised.
        pair: of a preference pair `shared_length` and `chosen_length`, see `streamsft.sources.pairs`.
    """

    input_ids: Int32s
    loss_mask: Bools
    seams: int = 0
    pair: tuple[int, int] | None = None


def encoded_batch(
    encodings: Sequence[Encoding], spans: Sequence[Spans], added: Collection[int], control: Bools
) -> list[tuple[Encoded, int]]:
    """Tokens and masks of `encodings`, of which `spans` are supervised, and how many control tokens each holds.

    A token is supervised when it holds a character of a span. An added token that only swallowed whitespace after
    itself (``rstrip``) is not. The arrays are views of one array for all.

    Args:
        encodings: of the texts.
        spans: supervised character ranges of each text, not empty.
        added: ids of added tokens.
        control: bool[vocabulary], True for control tokens.
    """
    lists = [encoding.ids for encoding in encodings]
    borders = [0, *accumulate(map(len, lists))]
    ids = np.fromiter(chain.from_iterable(lists), np.int32, borders[-1])
    mask = np.zeros(len(ids), dtype=np.bool_)
    found = np.concatenate([[0], np.cumsum(control[ids])])[borders]
    results = []
    for number, encoding in enumerate(encodings):
        start, stop = borders[number], borders[number + 1]
        row = mask[start:stop]
        seams = sum([_supervise(row, encoding, lists[number], span, added) for span in spans[number]])
        encoded = Encoded(input_ids=ids[start:stop], loss_mask=row, seams=seams)
        results.append((encoded, int(found[number + 1] - found[number])))
    return results


def _supervise(
    mask: Bools, encoding: Encoding, ids: Sequence[int], span: tuple[int, int], added: Collection[int]
) -> int:
    """Set `mask` where `encoding` has tokens of `span`; how many of these hold other characters too."""
    start, stop = span
    first, last = encoding.char_to_token(start), encoding.char_to_token(stop - 1)
    if first is None:
        first = _token_at(encoding, range(start, stop))
    if last is None:
        last = _token_at(encoding, range(stop - 1, start - 1, -1))
    if first is None or last is None:
        return 0
    chars: Any = encoding.token_to_chars  # every token of a plain text has offsets
    seams = 0
    if chars(first)[0] < start:
        if ids[first] in added:
            first += 1
        else:
            seams = 1
    end, following = chars(last)[1], last + 1
    while following < len(ids) and (place := chars(following))[0] < stop:
        following, end = following + 1, place[1]  # further tokens of the last character
    if end > stop:
        seams += 1
    mask[first:following] = True
    return seams


def _token_at(encoding: Encoding, positions: range) -> int | None:
    """The first token that holds the first of `positions` that is in any; some tokenizers drop whitespace."""
    for position in positions:
        token = encoding.char_to_token(position)
        if token is not None:
            return token
    return None
