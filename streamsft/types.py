"""The values that flow through a pipeline: `Sample`, `Pack`, `Shard`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, TypeGuard, final

import numpy as np
from numpy.typing import NDArray

from streamsft.errors import ConfigError

__all__ = [
    "Bools",
    "Floats",
    "IdBuffer",
    "Int32s",
    "Ints",
    "Pack",
    "Sample",
    "Shard",
    "check_name",
    "is_count",
    "lacking",
    "samples_of",
]

Ints = NDArray[np.int64]
Int32s = NDArray[np.int32]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
IdBuffer = Int32s | memoryview
"""Token ids, int32, one behind the other: an array, or the memory of one, which is cut and copied in less time."""

_NAME = re.compile(r"[A-Za-z0-9_.-]+")


def check_name(name: str, what: str = "source") -> str:
    """Return `name` unchanged if it may name a source, a mix or a metric.

    Raises:
        ConfigError: `name` is not made of letters, digits, ``_``, ``.`` and ``-``.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"{what} name {name!r}: use letters, digits, '_', '.' and '-' only")
    return name


def is_count(value: Any) -> TypeGuard[int]:
    """Whether `value` is an integer from 0 to below 2**62: sums of two of them are int64."""
    return type(value) is int and 0 <= value < 1 << 62


def lacking(value: Any, members: Iterable[str]) -> list[str]:
    """Those of `members` that `value` does not have. None of them is evaluated, so nothing is opened."""
    missing = object()
    return [member for member in members if inspect.getattr_static(value, member, missing) is missing]


@final
@dataclass(frozen=True, slots=True)
class Shard:
    """Which part of a stream: number `index` of `count` equal parts.

    Data code is given a shard; it never asks the process which rank or worker it is.
    """

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        whole = all(isinstance(number, Integral) for number in (self.index, self.count))
        if not whole or not 0 <= self.index < self.count:
            raise ConfigError(f"Shard({self.index!r}, {self.count!r}): need whole numbers with 0 <= index < count")


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Sample:
    """One training example.

    Attributes:
        input_ids: token ids, int32[n].
        loss_mask: True where the model is trained to predict this token, bool[n], aligned with `input_ids`.
        source: name of the source.
        row: the row's number in the source's input order, from 0, rejected rows counted too.
        pass_index: how often the source had been gone through before, from 0.
        start: index within the row of the first token, above 0 only in fragments that ``overflow: split`` made.
        extras: further fields that travel with the sample untouched.
    """

    input_ids: Int32s
    loss_mask: Bools
    source: str
    row: int
    pass_index: int = 0
    start: int = 0
    extras: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.input_ids)

    def __repr__(self) -> str:
        piece = f" from token {self.start:,}" if self.start else ""
        supervised = int(np.count_nonzero(self.loss_mask))
        where = f"{self.source}:{self.row}{piece}, pass {self.pass_index}"
        return f"Sample({where}, {len(self):,} tokens, {supervised:,} supervised)"


_SET = [Sample.__dict__[name].__set__ for name in Sample.__slots__]


def samples_of(
    source: str,
    ids: Sequence[Int32s],
    masks: Sequence[Bools],
    rows: Sequence[int],
    extras: Sequence[Mapping[str, Any]] | None = None,
) -> list[Sample]:
    """Whole rows of a source as samples of its first pass, all as `Sample` has them.

    The slots are filled directly: the constructor of a frozen class takes three times as long, and is most of what
    reading a row costs.
    """
    set_ids, set_mask, set_source, set_row, set_pass, set_start, set_extras = _SET
    samples = []
    for at, (row_ids, row_mask, row) in enumerate(zip(ids, masks, rows, strict=True)):
        sample = object.__new__(Sample)
        set_ids(sample, row_ids)
        set_mask(sample, row_mask)
        set_source(sample, source)
        set_row(sample, row)
        set_pass(sample, 0)
        set_start(sample, 0)
        set_extras(sample, {} if extras is None else extras[at])
        samples.append(sample)
    return samples


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Pack:
    """The samples that share one row of `sequence_length` slots, in draw order."""

    samples: tuple[Sample, ...]
    sequence_length: int

    def __repr__(self) -> str:
        return f"Pack({len(self.samples)} samples, {self.tokens:,} of {self.sequence_length:,} slots filled)"

    @property
    def tokens(self) -> int:
        """Slots that hold a token; the others are padding."""
        return sum(map(len, self.samples))

    @property
    def rows(self) -> tuple[tuple[str, int, int], ...]:
        """The (source, row, pass) triple of each sample."""
        return tuple((s.source, s.row, s.pass_index) for s in self.samples)
