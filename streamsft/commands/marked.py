"""Text in which the supervised parts stand out: by colour, or in ⟦brackets⟧ where there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
from rich.console import Console
from rich.text import Text

from streamsft.types import Bools, Int32s

__all__ = ["LEGEND", "mark", "runs"]

LEGEND = "supervised"
_SUPERVISED = "bold green"
_OTHER = "dim"


def mark(console: Console, parts: Iterable[tuple[str, bool]]) -> Text:
    """The texts of `parts`, in order; those with True are supervised."""
    plain = console.no_color or not console.is_terminal
    text = Text()
    for part, supervised in parts:
        if plain:
            text.append(f"⟦{part}⟧" if supervised else part)
        else:
            text.append(part, _SUPERVISED if supervised else _OTHER)
    return text


def runs(ids: Int32s, mask: Bools, decode: Callable[[Sequence[int]], str]) -> Iterator[tuple[str, bool]]:
    """The decoded tokens, cut where the mask (bool[n]) changes."""
    borders = [0, *(np.flatnonzero(np.diff(mask.astype(np.int8))) + 1).tolist(), len(ids)]
    for start, stop in pairwise(borders):
        yield decode(ids[start:stop].tolist()), bool(mask[start])
